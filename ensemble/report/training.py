"""What a finished training shows: findings on how it went, and its results as text."""

from __future__ import annotations

from ensemble.report.evaluation import Evaluation
from ensemble.report.findings import Finding, as_lines, find
from ensemble.report.table import ByName, sections_of

_RULES = ("quality", "gain", "baseline", "several")
"""Rules of an evaluation that a training tells."""
_MAX_GAIN = 0.05
"""Who is better than a constant by less than this share of its score has learned nothing."""


def training_findings(results: ByName, evaluation: Evaluation | None, remedy: str) -> list[Finding]:
    """Looks for signs of a mistake, and says how good the ensemble is.

    Args:
        results: content of results.json.
        evaluation: of the reported split; None if nothing is scored.
        remedy: what to try if training has failed, such as 'lower config.learning_rate=0.1'.
    """
    found = []
    if failed := results["failed_members"]:
        reasons = " or ".join(sorted(set(failed.values())))
        text = (
            f"{len(failed)} of {results['num_members']} became {reasons} and are left out: "
            f"{', '.join(map(str, failed))}; {remedy}."
        )
        found.append(Finding("failed_members", "warning", text, {"failed": len(failed)}))
    if "posterior" in results:
        from ensemble.report.posterior import chain_findings  # Of samplers alone.

        found += chain_findings(results)
    for section in sections_of(results):
        found += section.findings(results)
    if evaluation is not None:
        said = find(evaluation, _RULES)
        found += said
        is_open = all(one.level == "warning" for one in said if one.code == "baseline")
        for title, constant in [*evaluation.simple.items()][:1] if is_open else ():
            score = abs(evaluation.metrics[evaluation.proper].value(constant, evaluation.y))
            gain = evaluation.against(constant, evaluation.proper)
            if gain.below(_MAX_GAIN * max(score, 1.0)):
                text = (
                    f"It is not measurably better than {title}; check that inputs and targets "
                    f"belong together, train longer, or {remedy}."
                )
                numbers = gain._asdict()
                found.append(Finding("no_better_than_constant", "warning", text, numbers))
    return found


def as_text(results: ByName, evaluation: Evaluation | None) -> str:
    """The table of a run, its findings and its notes.

    Args:
        results: content of results.json; empty in processes other than the main one.
        evaluation: of the reported split; None if nothing is scored.
    """
    if not results:
        return "The main process has the result."
    sections = sections_of(results)
    parts = [part for section in sections for part in section.contents(results)]
    if evaluation is not None:
        parts.insert(0, evaluation.table)
    elif "metrics" not in results and not any(one.stands_alone for one in sections):
        parts.insert(0, "There are no scores: every example was learned from.")
    findings = [Finding(**one) for one in results.get("findings", ())]
    blocks = [
        "\n".join(parts),
        results.get("kfold_bagging", {}).get("summary"),
        "\n".join(as_lines(findings, results.get("notes", ()))),
    ]
    return "\n\n".join(filter(None, blocks))
