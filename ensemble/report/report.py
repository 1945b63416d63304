"""What a finished run leaves: scores, predictions, pictures, a table on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from ensemble import metrics
from ensemble.config import FORMAT, RANDOM_WALK
from ensemble.errors import RunFailed
from ensemble.method import FAILURES, Method, State, Status
from ensemble.pictures import plots
from ensemble.pictures.plot_style import figure_to_png
from ensemble.pictures.recommendation_plots import first_choice_figures
from ensemble.storage.metrics_log import read_metrics
from ensemble.storage.predictions import MemberPredictions, write_predictions
from ensemble.storage.workdir import Workdir, write_bytes, write_json
from ensemble.tasks.classification import Classification

REPORTED_SPLITS = ("test", "validation")  # The most telling first.
SCORES = {"accuracy": "accuracy %", "nll": "NLL nats", "brier": "Brier", "ece": "ECE"}


def live_predictions(
    method: Method, state: State, splits: Sequence[str]
) -> tuple[dict[str, MemberPredictions], dict[int, Status]]:
    """Predicts splits with the members in training, and leaves out those that have failed.

    A member whose parameters are finite but whose predictions are not has failed too.

    Args:
        method: of the run.
        state: of the method.
        splits: names.

    Returns:
        `(predictions, status)`: of the live members by split, and every member's status.

    Raises:
        RunFailed: no member is live.
    """
    predictions = {name: method.predict_split(state, name) for name in splits}
    status = method.status(state)
    for i, k in enumerate(state.indices):
        if any(np.isnan(one.log_probs[i]).any() for one in predictions.values()):
            status[k] = Status.NON_FINITE
    live = [i for i, k in enumerate(state.indices) if status[k] not in FAILURES]
    if not live:
        raise all_failed(method, status, state.step)
    return {name: one.of_members(live) for name, one in predictions.items()}, status


def all_failed(method: Method, status: Mapping[int, Status], step: int) -> RunFailed:
    """The end of a run whose members under way have all failed."""
    reasons = " or ".join(sorted({FAILURES[one] for one in status.values()}))
    return RunFailed(
        f"all of the {len(status)} {method.noun}s under way became {reasons} by step {step}; "
        f"{method.remedy}"
    )


def build_report(
    config: ml_collections.FrozenConfigDict,
    task: Classification,
    predictions: Mapping[str, MemberPredictions],
    status: Mapping[int, Status],
    timing: Mapping[str, float | None],
) -> dict[str, Any]:
    """Scores the live members and their mean.

    Args:
        config: of the run.
        task: what was learned.
        predictions: of the live members, by split.
        status: of all members, by number.
        timing: seconds and rates, as they go into the report.

    Returns:
        The content of report.json.
    """
    failed = {k: FAILURES[s] for k, s in status.items() if s in FAILURES}
    splits = task.splits
    return {
        "format": FORMAT,
        "config": config.to_dict(),
        "dataset": task.describe(),
        "method": config.method,
        "num_members": len(status),
        "live_members": [k for k in status if k not in failed],
        "failed_members": failed,
        "stopped_early": [k for k, s in status.items() if s == Status.STOPPED_EARLY],
        "num_train_examples": task.num_train_examples,
        **{
            name: metrics.summarise(
                predictions[name].log_probs, splits[name].labels, predictions[name].entropies
            )
            for name in REPORTED_SPLITS
            if name in splits
        },
        "timing": dict(timing),
    }


def write_results(
    workdir: Workdir,
    task: Classification,
    report: Mapping[str, Any],
    predictions: Mapping[str, MemberPredictions],
) -> None:
    """Writes predictions, plots and, last, the report that says that all is there."""
    workdir.predictions.mkdir(parents=True, exist_ok=True)
    workdir.plots.mkdir(parents=True, exist_ok=True)
    for name, values in predictions.items():
        labels = task.splits[name].labels
        path = workdir.predictions / f"{name}.npz"
        write_predictions(path, values, labels, report["live_members"], report["config"])
    log_probs = {name: values.log_probs for name, values in predictions.items()}
    for name, figure in final_figures(workdir, task, report, log_probs).items():
        write_bytes(workdir.plots / f"{name}.png", figure_to_png(figure))
    write_json(workdir.report, report)


def final_figures(
    workdir: Workdir,
    task: Classification,
    report: Mapping[str, Any],
    log_probs: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """Draws the pictures of a finished run from its predictions [M, N, C] of each split."""
    if not task.splits:
        return {}
    figures = {"training": plots.training_curves(read_metrics(workdir.metrics))}
    split = reported_split(report)
    if split is None:
        return figures
    labels = task.splits[split].labels
    if "recommendation" in report:
        figures |= first_choice_figures(report["recommendation"]["first_choices"])
    return {
        **figures,
        "members": plots.member_scores(report[split]),
        "entropy": plots.entropy_histogram(log_probs[split], labels),
        **split_figures(task, split, log_probs[split]),
    }


def split_figures(task: Classification, split: str, log_probs: np.ndarray) -> dict[str, Any]:
    """Draws the pictures of one split: reliability, and the least certain images."""
    inputs, labels = task.splits[split]
    figures = {
        "reliability": plots.reliability_diagram(
            log_probs, labels, title=f"{task.dataset.name} {split}"
        )
    }
    if inputs.ndim == 4:
        figures["uncertain"] = plots.uncertain_examples(
            inputs, log_probs, labels, task.dataset.class_names
        )
    return figures


def reported_split(report: Mapping[str, Any]) -> str | None:
    """The split whose scores say most: test, else validation; None where all is learned from."""
    return next((name for name in REPORTED_SPLITS if name in report), None)


def format_table(report: Mapping[str, Any]) -> str:
    """Returns the table of members, their mean and standard deviation, and the ensemble."""
    if report.get("method") == RANDOM_WALK:
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
    draws = plots.plural(recommendation["num_draws"], "draw")
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
    gain = 100 * (scores["accuracy"] - float(np.mean(members["accuracy"])))
    saving = 100 * (1 - scores["nll"] / float(np.mean(members["nll"])))
    return (
        f"The ensemble of {len(report['live_members'])} is right on "
        f"{100 * scores['accuracy']:.2f}% of {split} images, {gain:+.2f} points from its mean "
        f"member, at {saving:.0f}% less NLL."
    )


def _walk_sentence(posterior: Mapping[str, Any]) -> str:
    """Says what the samples of a density are worth."""
    text = (
        f"{plots.plural(posterior['num_total_samples'], 'sample')} of "
        f"{plots.plural(posterior['num_chains'], 'chain')}, "
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
    if report.get("method") == RANDOM_WALK:
        return _walk_sentence(posterior)
    num_chains, num_draws = len(report["live_members"]), posterior["num_samples"]
    text = f"{plots.plural(num_chains, 'chain')} of {plots.plural(num_draws, 'draw')}: "
    if np.isfinite(posterior["rhat_max"]) and np.isfinite(posterior["ess_bulk_min"]):
        text += (
            f"R-hat up to {posterior['rhat_max']:.3f} ({posterior['rhat_worst']}), bulk ESS from "
            f"{posterior['ess_bulk_min']:.0f}, "
        )
    else:
        text += "too few or degenerate draws for R-hat, "
    accepted = f"{posterior['accept']:.0%} accepted"
    if report["method"] == "mclmc":
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
