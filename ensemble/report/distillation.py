"""What a report says of a network that has learned what an ensemble predicts."""

from collections.abc import Mapping, Sequence
from typing import Any

from ensemble.applications import ReportSection
from ensemble.pictures import plot_style
from ensemble.report.text import Table, likelihood_of
from ensemble.scoring.score import named


def _contents(report: Mapping[str, Any]) -> list[Table | str]:
    """The student beside the ensemble that it has learned from."""
    found = report["distillation"]
    teacher, student = found["teacher"], found["student"]
    title = f"teacher, {plot_style.plural(teacher['num_networks'], 'network')}"
    entries = [(title, teacher), ("student", student)]
    names: Sequence[str] = ()
    if "split" in found:
        names = likelihood_of(report).columns
        entries.insert(1, ("its average member", {"scores": found["mean_member"]}))
    rows = []
    for label, one in entries:
        cells = [named(name).shown(one["scores"][name]) for name in names]
        if "num_parameters" in one:
            cells += [f"{one['num_parameters']:,}", f"{one['examples_per_second']:,.0f}"]
        rows.append([label, *cells])
    titles = [found.get("split", ""), *(named(name).title for name in names)]
    width = max(len(label) for label, _ in entries)
    kept = _kept(found) if names else ""
    if names and "nll_over_mean_member" in found:  # As of runs since it is there.
        kept += _beside_member(*found["nll_over_mean_member"])
    return [
        "",
        Table([*titles, "parameters", "examples/s"], rows, width),
        f"The student is {found['speedup']:.1f} times as fast as its teacher{kept}.",
    ]


def _kept(found: Mapping[str, Any]) -> str:
    """What of a teacher's scores its student has kept, in a half sentence."""
    lost = found["student"]["scores"]["nll"] - found["teacher"]["scores"]["nll"]
    of_member = found["mean_member"]["nll"] - found["teacher"]["scores"]["nll"]
    text = f", at an NLL of {lost:+.4f} nats from it (its average member {of_member:+.4f})"
    correlation = found["rank_correlation"].get("epistemic")
    if correlation is not None:
        text += f"; their epistemic uncertainties have a rank correlation of {correlation:.2f}"
    return text


def _beside_member(low: float, high: float) -> str:
    """Whether a single member does as well, by an interval of the difference in NLL."""
    if high < 0:
        return ""
    spread = f"the difference is [{low:+.4f}, {high:+.4f}] over these examples"
    what = "a single member does better"
    if low <= 0:
        what = "whether a single member does better is not known"
    return (
        f": {what} ({spread}). A larger network, more epochs or config.num_blends=1 may bring it "
        "nearer"
    )


SECTION = ReportSection("distillation", _contents)
