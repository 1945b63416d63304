"""`report.html`: one file with everything in it, which fetches nothing."""

from __future__ import annotations

import base64
import html
import inspect
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
import markupsafe
from etils import epath

from ensemble import metrics
from ensemble.config import flatten
from ensemble.errors import UserError, in_one_line, visible
from ensemble.evaluation import score_table
from ensemble.evaluation.class_evaluator import shown_classes
from ensemble.evaluation.evaluator import Evaluator
from ensemble.evaluation.questions import others
from ensemble.evaluation.questions.calibration import is_available
from ensemble.evaluation.several_evaluator import evaluator_of_one, parts_of
from ensemble.evaluation.strata import NUM_PERIODS, stratified
from ensemble.evaluation.summary import lines_of, text_of, texts_of
from ensemble.evaluation.tiles import tiles_of
from ensemble.evaluation.words import say
from ensemble.pictures import curves, intervals
from ensemble.pictures.plot_style import GRID_COLOR, TEXT_COLOR
from ensemble.report.simple_predictors import TITLES
from ensemble.scoring.score import declared, digits, joined, percent
from ensemble.scoring.view import View
from ensemble.storage.metrics_log import read_metrics
from ensemble.storage.workdir import check_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.sections import Evaluated
    from ensemble.evaluation.subject import Subject

_MAX_DRAWN = 1e30  # Of a learning curve; Matplotlib fails near the end of its numbers.
_TRAINING = "How the members learned."
_GROUPS = "How many groups have which coverage."
_OF_CHAINS = {
    "traces": "Draws of every chain, one after the other.",
    "ranks": "Ranks of each chain's draws among all: flat where chains agree.",
}
"""Pictures that the run drew, by their names in its plots."""
_MOST_BYTES = 4 << 20
WORDS = {
    "agreement": "agreement",
    "total_variation": "total variation",
    "distance": "distance of the means",
    "overlap": "overlap of 90% intervals",
    "entropy": "entropy",
    "one_minus_max": "1 \N{MINUS SIGN} max probability",
    "mutual_information": "mutual information",
    "epistemic": "members' disagreement",
    "total": "total variance",
    "aleatoric": "members' noise",
    "width": "width",
    "deviation": "predicted sd",
    "disagreement": "members' disagreement (sd)",
}
"""What stands for keys of evaluation.json that are no scores."""
METHODS = {
    "sets": "sets of classes",
    "distance": "split conformal, by |y \N{MINUS SIGN} median| / width",
    "quantiles": "conformalised quantiles",
}
"""The same of conformal predictions."""


class Part(NamedTuple):
    """What a page shows of all targets, or of one.

    Attributes:
        id: that identifiers of HTML begin with; empty of all.
        evaluation: of it.
        figures: by name, as SVG.
        captions: of these.
        under_shift: scores that the table of shifts shows.
    """

    id: str
    evaluation: Mapping[str, Any]
    figures: Mapping[str, str]
    captions: Mapping[str, str]
    under_shift: Sequence[str]


def render(evaluation: Mapping[str, Any], evaluated: Evaluated, subject: Subject) -> str:
    """Returns the page as HTML; whatever comes from data or paths is escaped.

    Args:
        evaluation: the content of evaluation.json.
        evaluated: what it was made of.
        subject: of the evaluation.
    """
    whole = _part("", evaluation, evaluated, subject.evaluator)
    if records := drawable_records(subject):
        training = curves.training_curves(records, subject.likelihood.curves())
        figures = {**whole.figures, "training": _svg(training, "training", _TRAINING)}
        captions = {**whole.captions, "training": _TRAINING}
        whole = whole._replace(figures=figures, captions=captions)
    if evaluation["posterior"] is not None:
        drawn = {
            name: _png(subject.work.plots / f"{name}.png", caption)
            for name, caption in _OF_CHAINS.items()
        }
        figures = {**whole.figures, **{name: one for name, one in drawn.items() if one}}
        whole = whole._replace(figures=figures, captions={**whole.captions, **_OF_CHAINS})
    parts = []
    if evaluated.parts:
        kind = evaluator_of_one(evaluation)
        for d, content in enumerate(parts_of(evaluation)):
            content["findings"] = [one.to_json(say(one)) for one in kind.findings(content)]
            parts.append(_part(f"target-{d}-", content, evaluated.parts[d], kind))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ensemble.evaluation", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": digits,
        "numbers": _pair_of(digits),
        "percent": percent,
        "percents": _pair_of(percent),
        "score": score_table.shown,
        "interval": score_table.interval,
    }
    one = (parts or [whole])[0].evaluation
    return environment.get_template("report.html").render(
        evaluation=evaluation,
        whole=whole,
        parts=parts,
        config=flatten(evaluation["config"]),
        is_available=is_available,
        few_errors=metrics.FEW_ERRORS,
        names_of=score_table.names_of,
        columns_of=score_table.columns_of,
        simple_titles=TITLES,
        title_of=score_table.title_of,
        targets_table=score_table.score_table(evaluation) if parts else None,
        shown_classes=shown_classes,
        lines_of=lines_of,
        tiles_of=tiles_of,
        noun=others.noun_of(evaluation),
        stratified=stratified,
        text_of=text_of,
        texts_of=texts_of,
        power_of=lambda one: say(others.power(one)),
        definitions=definitions((evaluated.parts or [evaluated])[0].test),
        defined=one,
        words=WORDS,
        methods=METHODS,
    )


def _part(id: str, content: Mapping[str, Any], one: Evaluated, evaluator: Evaluator) -> Part:
    captions = evaluator.captions
    figures = {
        name: _svg(figure, f"{id}{name}", captions[name])
        for name, figure in evaluator.draw(content, one).items()
    }
    _, told_by = stratified(content)
    if len(groups := told_by.get("by_stratum", ())) > NUM_PERIODS:
        shares, captions = [group["share"] for group in groups], {**captions, "strata": _GROUPS}
        figure = intervals.coverage_of_groups(shares, told_by["level"])
        figures["strata"] = _svg(figure, f"{id}strata", _GROUPS)
    return Part(id, content, figures, captions, evaluator.under_shift)


_UNITS = {"nats": "In nats", "target": "In the targets' units", "target_squared": "In their square"}
_BETTER = {"lower": "lower is better", "higher": "higher is better"}


def definitions(view: View) -> dict[str, str]:
    """What the scores of a view are, by their titles: as the functions of their terms say.

    Args:
        view: of the test split.
    """
    kinds, asked = type(view).__mro__, {one.name.partition(":")[0] for one in view.asked}
    found = {}
    others = filter(None, map(joined, asked))
    for one in (*declared(), *others):
        if one.of in kinds and (one.name in asked or one.at(view)):
            text = " ".join((inspect.getdoc(one.terms) or "").split())
            more = ", ".join(filter(None, [_UNITS.get(one.unit), _BETTER.get(one.better)]))
            text += f" {more[0].upper()}{more[1:]}." if more else ""
            found[one.title.replace("{}", "P")] = text
    return found


def _visible(value: Any) -> Any:
    """Text without characters that nobody sees; the page's own parts are none."""
    is_own = isinstance(value, markupsafe.Markup) or not isinstance(value, str)
    return value if is_own else visible(value)


def drawable_records(subject: Subject) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl of which every value can be drawn.

    Raises:
        UserError: it is too large, or cannot be read.
    """
    path = subject.work.metrics
    if not path.exists():
        return []
    check_size(path)
    try:
        records = read_metrics(path)
    except (OSError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read ({in_one_line(error)}); remove it, and the report shows no "
            "learning curves"
        ) from None
    return [record for record in records if _is_drawable(record)]


def _is_drawable(record: Mapping[str, Any]) -> bool:
    """Whether a line has its step, and numbers where curves have them."""
    numbers = [value for key, value in record.items() if "/" in key or key in ("step", "epoch")]
    return "step" in record and all(
        isinstance(value, int | float) and not abs(value) > _MAX_DRAWN for value in numbers
    )


def _svg(figure: Figure, name: str, caption: str) -> str:
    """A figure as SVG to stand in a page: its neutral colours follow the page's light or dark.

    Identifiers get the figure's name, for all figures share one document.
    """
    # As in `plot_style.new_figure`.
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    content = io.StringIO()
    style: Any = {"svg.hashsalt": name, "svg.fonttype": "none"}  # The browser has all glyphs.
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set(facecolor="none", edgecolor="none")
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        # Matplotlib's `savefig` draws twice.
        FigureCanvasSVG(figure).print_svg(content, metadata={"Date": None})
    svg = visible(content.getvalue())
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for color, variable in ((TEXT_COLOR, "--ink"), (GRID_COLOR, "--grid")):
        svg = svg.replace(color.lower(), f"var({variable})")
    label = html.escape(caption, quote=True)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _png(path: epath.Path, caption: str) -> str:
    """A picture to stand in a page; empty where there is none."""
    if not path.exists():
        return ""
    check_size(path, _MOST_BYTES)
    content, label = base64.b64encode(path.read_bytes()).decode(), html.escape(caption, quote=True)
    return f'<img alt="{label}" src="data:image/png;base64,{content}">'


def _pair_of(shown: Callable[[float | None], str]) -> Callable[[Sequence[float] | None], str]:
    """What shows an interval, of what shows a number; a dash where there is none."""
    return lambda pair: "-" if pair is None else f"[{shown(pair[0])}, {shown(pair[1])}]"
