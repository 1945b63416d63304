"""A report on the terminal: its table, and its result in one sentence."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ensemble import likelihoods, registry
from ensemble.pictures import plot_style
from ensemble.report import simple_predictors
from ensemble.report.results import reported_split
from ensemble.report.sections import sections_of
from ensemble.scoring.score import named


class Table(NamedTuple):
    """A table as text, the first column flush left.

    Attributes:
        titles: of the columns, the first included.
        rows: the cells of each row, or None for a rule.
        label_width: of the first column, in characters.
        cell_width: of the others.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[str] | None]
    label_width: int
    cell_width: int = 12

    def __str__(self) -> str:
        header, rule = self._line(self.titles), "-" * len(self._line(self.titles))
        return "\n".join([header, rule, *(self._line(row) if row else rule for row in self.rows)])

    def _line(self, cells: Sequence[str]) -> str:
        label, *others = cells
        return f"{label:<{self.label_width}}" + "".join(f"{c:>{self.cell_width}}" for c in others)


def format_table(report: Mapping[str, Any]) -> str:
    """Returns the table of members, their mean and standard deviation, and the ensemble."""
    return "\n".join(map(str, contents(report)))


def contents(report: Mapping[str, Any]) -> list[Table | str]:
    """The tables of a report, and lines of text between and after them."""
    sections = sections_of(report)
    own = [part for section in sections for part in section.contents(report)]
    if any(section.stands_alone for section in sections):
        return own
    split = reported_split(report)
    if split is None:
        return ["There are no scores: every example was learned from.", *own]
    return [_scores_table(report, split), *own]


def _scores_table(report: Mapping[str, Any], split: str) -> Table:
    names, scores = likelihood_of(report).columns, report[split]["scores"]
    is_posterior = "posterior" in report
    one, whole = ("chain", "all chains") if is_posterior else ("member", "ensemble")

    def row(label: str, values: Iterable[float]) -> list[str]:
        return [label, *(named(name).shown(one) for name, one in zip(names, values, strict=True))]

    summary = [
        row(f"average {one}", [scores[name]["mean"] for name in names]),
        row(f"sd of {one}s", [scores[name]["sd"] for name in names]),
    ]
    if is_posterior:
        of_draw = report["average_draw"][split]
        summary.append(row("average draw", [of_draw.get(name, np.nan) for name in names]))
    rows = [
        *(
            row(f"{one} {k}", [scores[name]["members"][i] for name in names])
            for i, k in enumerate(report["live_members"])
        ),
        *([f"{one} {k}: {why}"] for k, why in report["failed_members"].items()),
        None,
        *summary,
        None,
        row(whole, [scores[name]["value"] for name in names]),
        *(
            row(label, [values.get(name, np.nan) for name in names])
            for label, values in simple_predictors.rows_of(report)
        ),
    ]
    width = max(len(cells[0]) for cells in rows if cells)
    return Table([split, *(named(name).title for name in names)], rows, width)


def likelihood_of(report: Mapping[str, Any]) -> Any:
    """The likelihood that a report's scores are of."""
    return likelihoods.described(report["config"]["likelihood"], report["dataset"])


def summary_sentence(report: Mapping[str, Any]) -> str:
    """Says in one line what the ensemble brings over its average member, or a posterior's draws."""
    for section in sections_of(report):
        if sentence := section.sentence(report):
            return sentence
    split = reported_split(report)
    if "posterior" in report:
        return _posterior_sentence(report, split)
    if split is None:
        number = len(report["live_members"])
        return f"{plot_style.plural(number, 'member')} {'is' if number == 1 else 'are'} live."
    return str(likelihood_of(report).sentence(report[split], split, len(report["live_members"])))


def notes(report: Mapping[str, Any]) -> str:
    """What a user should know of a run beside its scores, a line each; empty: nothing."""
    chosen = report.get("cross_fitted", {}).get("summary")
    lines = [f"Note: {line}" for line in report.get("notes", ())]
    return "\n".join([chosen, *lines] if chosen else lines)


def agreement(rhat: float, ess: float, worst: str = "", least: str = "") -> str:
    """How far chains agree: their largest R-hat, of what, and their least bulk ESS, of what."""
    of_rhat, of_ess = (f" ({name})" if name else "" for name in (worst, least))
    return f"R-hat up to {rhat:.3f}{of_rhat}, bulk ESS from {ess:.0f}{of_ess}"


def _unadjusted(posterior: Mapping[str, Any]) -> str:
    """What size of bias is expected of a sampler that accepts every step."""
    mean, worst = posterior["sd_bias"]
    if mean is None:
        return "unadjusted, so biased by an amount that is not known"
    text = f"unadjusted, so standard deviations are off by about {mean:.1%}"
    return text + (f" and up to {worst:.0%} in one direction" if worst is not None else "")


def _unseen_modes(posterior: Mapping[str, Any], num_chains: int) -> str:
    """What chains that agree cannot tell of modes that none has seen."""
    from ensemble.draws.diagnostics import MIN_CHAINS  # Of chains alone.

    if not posterior["converged"] or num_chains >= MIN_CHAINS:
        return ""
    if num_chains == 1:
        return " One chain cannot tell of modes that it has not seen."
    missed = 2.0 ** (1 - num_chains)
    return f" Of two equal modes, {num_chains} chains all miss one in {missed:.0%} of runs."


def _predictive(posterior: Mapping[str, Any]) -> str:
    """How far the chains agree on predictions, and what more draws would make of their NLL."""
    found = posterior.get("predictive")  # Models have none.
    if found is None or found["rhat_max"] is None or not np.isfinite(found["rhat_max"]):
        return ""
    level, above = next(iter(found["rhat_above"].items()))
    examples = plot_style.plural(found["num_examples"], f"{posterior['tracked_split']} example")
    text = f" Predictions on {examples}: largest R-hat {found['rhat_max']:.3f} ({above:.0%} above "
    text += f"{level}), "
    if found["nll_interval"] is None:
        return f"{text}Monte Carlo error of their NLL not known."
    low, high = found["nll_interval"]
    return f"{text}Monte Carlo error of their NLL \N{PLUS-MINUS SIGN}{(high - low) / 2:.4f}."


def _posterior_sentence(report: Mapping[str, Any], split: str | None) -> str:
    """Says what averaging draws brings, and how far the chains can be trusted."""
    posterior = report["posterior"]
    num_chains, num_draws = len(report["live_members"]), posterior["num_samples"]
    text = f"{plot_style.plural(num_chains, 'chain')} of {plot_style.plural(num_draws, 'draw')}: "
    if np.isfinite(posterior["rhat_max"]) and np.isfinite(posterior["ess_bulk_min"]):
        names = (posterior["rhat_worst"], posterior.get("ess_bulk_worst", ""))
        named = names if names[0] != names[1] else names[:1]
        text += f"{agreement(posterior['rhat_max'], posterior['ess_bulk_min'], *named)}, "
    else:
        text += "too few or degenerate draws for R-hat, "
    if "draw_temperature" in posterior:
        text += f"drawn at temperature {posterior['draw_temperature']:.2f} by gradients of batches."
    else:
        accepted = f"{posterior['accept']:.0%} accepted"
        if not registry.METHODS[report["method"]].is_exact:
            accepted = _unadjusted(posterior)
        text += f"{accepted}, {posterior['divergences']} divergent."
    if not posterior["converged"]:
        text += " The run has not converged."
    text += _predictive(posterior)
    evidence = report.get("ladder", {}).get("log_evidence")
    if evidence is not None and np.isfinite(evidence):
        error = report["ladder"]["log_evidence_error"]
        text += f" Log evidence {evidence:.2f}{'' if error is None else f' +- {error:.2f}'} nats."
    if posterior["temperature"] != 1:
        text += f" The likelihood has temperature {posterior['temperature']:g}: this is not Bayes."
    if split is None:
        return text + _unseen_modes(posterior, num_chains)
    brings = likelihood_of(report).posterior_sentence(
        report[split], report["average_draw"][split], split
    )
    return f"{brings} {text}"
