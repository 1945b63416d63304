"""A report on the terminal: its table, and its result in one sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ensemble import registry
from ensemble.pictures import plot_style
from ensemble.report.results import SCORES, reported_split


def format_table(report: Mapping[str, Any]) -> str:
    """Returns the table of members, their mean and standard deviation, and the ensemble."""
    if not registry.METHODS[report["method"]].predicts:
        return _moments_table(report["posterior"])
    split = reported_split(report)
    if split is None:
        return "There are no scores: every example was learned from."
    members, ensemble = report[split]["members"], report[split]["ensemble"]
    columns = {name: np.array(members[name], float) for name in SCORES}
    spread = 1 if len(report["live_members"]) > 1 else 0  # Degrees of freedom of the mean.
    is_posterior = "posterior" in report
    one, whole = ("chain", "all draws") if is_posterior else ("member", "ensemble")
    rows: list[tuple[str, list[float] | None]] = [
        (f"{one} {k}", [columns[name][i] for name in SCORES])
        for i, k in enumerate(report["live_members"])
    ]
    rows += [(f"{one} {k}: {why}", None) for k, why in report["failed_members"].items()]
    rows += [
        (f"mean of {one}s", [columns[name].mean() for name in SCORES]),
        (f"sd of {one}s", [columns[name].std(ddof=spread) for name in SCORES]),
    ]
    if is_posterior:
        scores = report["average_draw"][split]
        rows.append(("average draw", [scores.get(name, np.nan) for name in SCORES]))
    rows.append((whole, [ensemble[name] for name in SCORES]))
    width = max(len(label) for label, _ in rows)
    header = f"{split:<{width}}" + "".join(f"{title:>12}" for title in SCORES.values())
    lines = [header, "-" * len(header)]
    for label, values in rows:
        if label in (f"mean of {one}s", whole):
            lines.append("-" * len(header))
        lines.append(f"{label:<{width}}" + ("" if values is None else _cells(values)))
    if "recommendation" in report:
        lines += ["", *_recommendation_rows(report["recommendation"])]
    return "\n".join(lines)


def _moments_table(posterior: Mapping[str, Any]) -> str:
    """The moments of a density with their standard errors, a dimension per line."""
    columns = ("mean", "mcse_mean", "variance", "mcse_variance", "ess")
    titles = ("mean", "+-", "variance", "+-", "ESS")
    header = f"{'dimension':<10}" + "".join(f"{title:>14}" for title in titles)
    rows = [
        f"{d:<10}" + "".join(f"{value:14.6g}" for value in values)
        for d, values in enumerate(zip(*(posterior[name] for name in columns), strict=True))
    ]
    return "\n".join([header, "-" * len(header), *rows])


def _recommendation_rows(recommendation: Mapping[str, Any]) -> list[str]:
    """The lines that lay a factorisation beside simpler models."""
    held_out = recommendation["held_out"]
    titles = {"log_likelihood": "nats a pair", "auc": "AUC", "recall_at_20": "recall@20"}
    if "rmse" in held_out["posterior"]:
        titles["rmse"] = "RMSE of p"
    header = f"{'held out':<12}" + "".join(f"{title:>12}" for title in titles.values())
    rows = [
        f"{model:<12}" + "".join(f"{scores[name]:12.4f}" for name in titles)
        for model, scores in held_out.items()
    ]
    draws = plot_style.plural(recommendation["num_draws"], "draw")
    return [header, "-" * len(header), *rows, f"Here the posterior is the {draws} that were kept."]


def _cells(values: Sequence[float]) -> str:
    accuracy, *others = values
    shown = (" " * 12 if np.isnan(value) else f"{value:12.4f}" for value in others)
    return f"{100 * accuracy:12.2f}" + "".join(shown)


def summary_sentence(report: Mapping[str, Any]) -> str:
    """Says in one line what the ensemble brings over its mean member, or a posterior's draws."""
    split = reported_split(report)
    if "posterior" in report:
        return _posterior_sentence(report, split)
    if split is None:
        return f"{len(report['live_members'])} members are live."
    scores, members = report[split]["ensemble"], report[split]["members"]
    saving = 100 * (1 - scores["nll"] / float(np.mean(members["nll"])))
    gained = gain(scores["accuracy"], float(np.mean(members["accuracy"])))
    return (
        f"The ensemble of {len(report['live_members'])} is right on "
        f"{100 * scores['accuracy']:.2f}% of {split} images, {gained}, at {saving:.0f}% less NLL."
    )


def gain(accuracy: float, mean_accuracy: float) -> str:
    """What an ensemble's accuracy is beside its mean member's, shares of 1."""
    return f"{100 * (accuracy - mean_accuracy):+.2f} points from its mean member"


def agreement(rhat: float, ess: float, worst: str = "") -> str:
    """How far chains agree: their largest R-hat, of what, and their least bulk ESS."""
    return f"R-hat up to {rhat:.3f}{f' ({worst})' if worst else ''}, bulk ESS from {ess:.0f}"


def _walk_sentence(posterior: Mapping[str, Any]) -> str:
    """Says what the samples of a density are worth."""
    text = (
        f"{plot_style.plural(posterior['num_total_samples'], 'sample')} of "
        f"{plot_style.plural(posterior['num_chains'], 'chain')}, "
    )
    if np.isfinite(posterior["ess_min"]) and np.isfinite(posterior["rhat_max"]):
        text += f"worth {posterior['ess_min']:,.0f}: R-hat up to {posterior['rhat_max']:.4f}, "
    else:
        text += "too few chains or samples to say what they are worth, "
    text += f"{posterior['accept']:.0%} accepted."
    if posterior["num_invalid"]:
        text += f" {posterior['num_invalid']:,} proposals without a log density were rejected."
    if posterior["num_stuck"]:
        text += f" {posterior['num_stuck']:,} chains never came to where the density is."
    return text


def _posterior_sentence(report: Mapping[str, Any], split: str | None) -> str:
    """Says what averaging draws brings, and how far the chains can be trusted."""
    posterior = report["posterior"]
    if not registry.METHODS[report["method"]].predicts:
        return _walk_sentence(posterior)
    num_chains, num_draws = len(report["live_members"]), posterior["num_samples"]
    text = f"{plot_style.plural(num_chains, 'chain')} of {plot_style.plural(num_draws, 'draw')}: "
    if np.isfinite(posterior["rhat_max"]) and np.isfinite(posterior["ess_bulk_min"]):
        text += agreement(posterior["rhat_max"], posterior["ess_bulk_min"], posterior["rhat_worst"])
        text += ", "
    else:
        text += "too few or degenerate draws for R-hat, "
    accepted = f"{posterior['accept']:.0%} accepted"
    if not registry.METHODS[report["method"]].is_exact:
        accepted = "unadjusted, so somewhat biased"
    text += f"{accepted}, {posterior['divergences']} divergent."
    if posterior["temperature"] != 1:
        text += f" The likelihood has temperature {posterior['temperature']:g}: this is not Bayes."
    if split is None:
        return text
    whole, draw = report[split]["ensemble"]["accuracy"], report["average_draw"][split]["accuracy"]
    return (
        f"The average over all draws is right on {100 * whole:.2f}% of {split} "
        f"{'pairs' if 'recommendation' in report else 'images'}, "
        f"{100 * (whole - draw):+.2f} points from the average draw. {text}"
    )
