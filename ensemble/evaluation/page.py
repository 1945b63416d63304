"""`report.html`: one file with everything in it, which fetches nothing."""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jinja2
import markupsafe
import matplotlib

from ensemble import metrics
from ensemble.config import flatten
from ensemble.errors import UserError, in_one_line, visible
from ensemble.evaluation import recipe
from ensemble.evaluation.classes import worst_classes
from ensemble.evaluation.derived import SHIFT
from ensemble.evaluation.sentences import is_available
from ensemble.pictures import curves, examples, matrices, member_scores, reliability, uncertainty
from ensemble.pictures.plot_style import GRID_COLOR, TEXT_COLOR
from ensemble.scoring.score import scores_of
from ensemble.scoring.scores.ranked_class import sides_of
from ensemble.storage.metrics_log import read_metrics
from ensemble.storage.workdir import check_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ensemble.evaluation.subject import Subject

_MAX_DRAWN = 1e30  # Of a learning curve; Matplotlib fails near the end of its numbers.

TITLES = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE",
    "adaptive_ece": "adaptive ECE",
    "aurc": "AURC",
    "accuracy_at_80": "accuracy at 80%",
    "auroc": "AUROC",
}


def titles_of(evaluation: Mapping[str, Any]) -> dict[str, str]:
    """Titles of the scores that tables show, by name; those that were asked for among them."""
    names = evaluation["classes"]["names"]
    found = {**TITLES, **{f"auprc:{c}": f"AUPRC of {name}" for c, name in enumerate(names)}}
    found |= {name: name for name in evaluation["asked"] if name not in found}
    return {name: title for name, title in found.items() if name in evaluation["test"]["ensemble"]}


def render(evaluation: Mapping[str, Any], subject: Subject, outside: Mapping[str, Any]) -> str:
    """Returns the page as HTML; whatever comes from data or paths is escaped.

    Args:
        evaluation: the content of evaluation.json.
        subject: of the evaluation.
        outside: views of shifted and out-of-distribution data, by name.
    """
    classes = evaluation["classes"]
    return fill(
        "report.html",
        evaluation,
        draw(evaluation, subject, outside),
        CAPTIONS,
        {"percent": percent, "number": number, "interval": interval},
        titles=titles_of(evaluation),
        few_errors=metrics.FEW_ERRORS,
        all_classes=list(range(len(classes["names"]))),
        shown_classes=_shown_classes(classes),
    )


def fill(
    template: str,
    evaluation: Mapping[str, Any],
    figures: Mapping[str, Figure],
    captions: Mapping[str, str],
    filters: Mapping[str, Callable[..., str]],
    **content: Any,
) -> str:
    """Fills a template; whatever comes from data or paths is escaped.

    Args:
        template: its name.
        evaluation: the content of evaluation.json.
        figures: by name.
        captions: of the figures, by name.
        filters: of values, by name.
        **content: whatever else the template needs.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ensemble.evaluation", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(template).render(
        evaluation=evaluation,
        figures={name: _svg(figure, name, captions[name]) for name, figure in figures.items()},
        captions=captions,
        config=flatten(evaluation["config"]),
        is_available=is_available,
        recipe_sentence=recipe.sentence,
        recipe_power=recipe.power,
        **content,
    )


def draw(
    evaluation: Mapping[str, Any], subject: Subject, outside: Mapping[str, Any]
) -> dict[str, Figure]:
    """Draws every picture that there are data for, by name."""
    test, classes = evaluation["test"], evaluation["classes"]
    view: Any = subject.view
    mean, labels = view.log_probs, view.labels
    temperature = evaluation["calibrated"]["temperature"]
    scores, value = {"ece": test["ensemble"]["ece"]}, None
    if is_available(temperature):
        scores["calibrated_ece"], value = temperature["ensemble"]["ece"], temperature["value"]
    drawn = {
        "reliability": reliability.tempered_diagram(mean, labels, value, scores),
        "confusion": matrices.confusion_matrix(
            classes["confusion"], classes["names"], _shown_classes(classes)
        ),
    }
    if len(evaluation["members"]) > 1:
        drawn["sizes"] = member_scores.score_against_size(evaluation["next_member"])
        drawn["disagreement"] = matrices.disagreement_matrix(
            test["disagreement_matrix"], evaluation["members"]
        )
    entropies = {
        name: each.entropies["total"]
        for name, each in outside.items()
        if not name.startswith(f"{SHIFT}/")
    }
    if entropies:
        inside = view.entropies["total"]
        drawn["entropy"] = uncertainty.entropies_in_and_out(inside, entropies, mean.shape[1])
        drawn["roc"] = uncertainty.roc_curves(inside, entropies)
    if evaluation["shift"]:
        drawn["shift"] = curves.shift_curves(evaluation["shift"], test)
    ranked = {
        classes["names"][score.setting]: sides_of(view, score.setting)
        for name, score in scores_of(view).items()
        if name.partition(":")[0] == "auprc" and not math.isnan(test["ensemble"][name])
    }
    if ranked:
        drawn["precision_recall"] = uncertainty.precision_recall(ranked)
    drawn |= _draw_examples(subject)
    if records := drawable_records(subject):
        drawn["training"] = curves.training_curves(records, subject.likelihood.curves())
    return drawn


def _shown_classes(classes: Mapping[str, Any]) -> list[int]:
    """All classes or, of more than there is room for, those of the lowest recall."""
    if len(classes["names"]) <= matrices.MAX_NUMBERED:
        return list(range(len(classes["names"])))
    return worst_classes(classes, matrices.MAX_NUMBERED)


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


def _draw_examples(subject: Subject) -> dict[str, Figure]:
    if subject.dataset is None or not subject.dataset.has_pictures:
        return {}
    log_probs, labels = subject.test.arrays["log_probs"], subject.test.targets
    chosen = {
        "least_certain": examples.least_certain(log_probs),
        "confidently_wrong": examples.confidently_wrong(log_probs, labels),
    }
    names = subject.description["class_names"]
    read = subject.dataset.read
    return {
        name: examples.examples(read("test", indices).inputs, log_probs, labels, names, indices)
        for name, indices in chosen.items()
        if len(indices)
    }


def _svg(figure: Figure, name: str, caption: str) -> str:
    """A figure as SVG to stand in a page: its neutral colours follow the page's light or dark.

    Identifiers get the figure's name, for all figures share one document.
    """
    content = io.StringIO()
    style: Any = {"svg.hashsalt": name, "svg.fonttype": "none"}  # The browser has all glyphs.
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
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


def percent(value: float | None, digits: int = 2) -> str:
    """A share as percent; a dash where there is none."""
    return "-" if _missing(value) else f"{100 * value:.{digits}f}%"  # type: ignore[operator]


def number(value: float | None, digits: int = 4) -> str:
    """A number with so many digits; a dash where there is none."""
    return "-" if _missing(value) else f"{value:.{digits}f}"


def interval(pair: Sequence[float] | None, score: str = "") -> str:
    """`[low, high]`, as percent for accuracies; a dash where it cannot be told."""
    if pair is None or (pair[0] <= 0 and math.isinf(pair[1])):
        return "-"
    show = percent if "accuracy" in score else number
    return f"[{show(pair[0])}, {show(pair[1])}]"


def _missing(value: float | None) -> bool:
    return value is None or value != value


CAPTIONS = {
    "reliability": "Accuracy against confidence; below the diagonal it is overconfident.",
    "sizes": "What each further member brings: scores of ensembles of 1 to M of these members.",
    "entropy": "Entropy of the predictions on the test split and on inputs unlike it.",
    "precision_recall": "Precision against recall of a class, called by its probability; a line of "
    "dashes is the share of its examples, which is the precision of calling all.",
    "roc": "Telling out-of-distribution inputs from the test split by the entropy.",
    "shift": "The test split, shifted more and more.",
    "disagreement": "Percent of test examples on which two members predict different classes.",
    "confusion": "Labels and predictions of the ensemble on the test split.",
    "least_certain": "The least certain: the highest entropy.",
    "confidently_wrong": "The most confidently wrong. Bars: the ensemble; dots: its members.",
    "training": "How the members learned.",
}
