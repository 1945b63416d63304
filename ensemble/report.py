"""What a finished run leaves: scores, predictions, pictures, a table on the terminal."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from ensemble import metrics, plots
from ensemble.classification import Classification, describe
from ensemble.config import FORMAT
from ensemble.errors import RunFailed
from ensemble.members import Status
from ensemble.predictions import write_predictions
from ensemble.sgd import SGD, SGDState
from ensemble.workdir import Workdir, write_bytes, write_json
from ensemble.writer import read_metrics

REPORTED_SPLITS = ("test", "validation")  # The most telling first.
SCORES = {"accuracy": "accuracy %", "nll": "NLL nats", "brier": "Brier", "ece": "ECE"}


def live_predictions(
    method: SGD, state: SGDState, splits: Sequence[str]
) -> tuple[dict[str, np.ndarray], dict[int, Status]]:
    """Predicts splits with the members in training, and leaves out those that have failed.

    A member whose parameters are finite but whose predictions are not has failed too.

    Args:
        method: of the run.
        state: of the method.
        splits: names.

    Returns:
        `(log_probs, status)`: [M, N, C] of the live members by split, and every member's status.

    Raises:
        RunFailed: no member is live.
    """
    inputs = {name: method.task.dataset.splits[name].inputs for name in splits}
    log_probs = {name: method.predict(state, values) for name, values in inputs.items()}
    status = method.status(state)
    for i, k in enumerate(state.indices):
        if any(np.isnan(values[i]).any() for values in log_probs.values()):
            status[k] = Status.NON_FINITE
    live = [i for i, k in enumerate(state.indices) if status[k] != Status.NON_FINITE]
    if not live:
        raise RunFailed(
            f"none of the {len(status)} members predicts finite probabilities at step "
            f"{state.step}; lower config.learning_rate={method.config.learning_rate}"
        )
    return {name: values[live] for name, values in log_probs.items()}, status


def build_report(
    config: ml_collections.FrozenConfigDict,
    task: Classification,
    log_probs: Mapping[str, np.ndarray],
    status: Mapping[int, Status],
    timing: Mapping[str, float | None],
) -> dict[str, Any]:
    """Scores the live members and their mean.

    Args:
        config: of the run.
        task: what was learned.
        log_probs: [M, N, C] of the live members, by split.
        status: of all members, by number.
        timing: seconds and rates, as they go into the report.

    Returns:
        The content of report.json.
    """
    failed = {k: "non-finite" for k, s in status.items() if s == Status.NON_FINITE}
    splits = task.dataset.splits
    return {
        "format": FORMAT,
        "config": config.to_dict(),
        "dataset": describe(task.dataset),
        "method": config.method,
        "num_members": len(status),
        "live_members": [k for k in status if k not in failed],
        "failed_members": failed,
        "stopped_early": [k for k, s in status.items() if s == Status.STOPPED_EARLY],
        "num_train_examples": task.num_train_examples,
        **{
            name: metrics.summarise(log_probs[name], splits[name].labels)
            for name in REPORTED_SPLITS
            if name in splits
        },
        "timing": dict(timing),
    }


def write_results(
    workdir: Workdir,
    task: Classification,
    report: Mapping[str, Any],
    log_probs: Mapping[str, np.ndarray],
) -> None:
    """Writes predictions, plots and, last, the report that says that all is there."""
    workdir.predictions.mkdir(parents=True, exist_ok=True)
    workdir.plots.mkdir(parents=True, exist_ok=True)
    for name, values in log_probs.items():
        labels = task.dataset.splits[name].labels
        path = workdir.predictions / f"{name}.npz"
        write_predictions(path, values, labels, report["live_members"], report["config"])
    for name, figure in final_figures(workdir, task, report, log_probs).items():
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=110)
        write_bytes(workdir.plots / f"{name}.png", content.getvalue())
    write_json(workdir.report, report)


def final_figures(
    workdir: Workdir,
    task: Classification,
    report: Mapping[str, Any],
    log_probs: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """Draws the pictures of a finished run from its predictions [M, N, C] of each split."""
    figures = {"training": plots.training_curves(read_metrics(workdir.metrics))}
    split = reported_split(report)
    if split is None:
        return figures
    labels = task.dataset.splits[split].labels
    return {
        **figures,
        "members": plots.member_scores(report[split]),
        "entropy": plots.entropy_histogram(log_probs[split], labels),
        **split_figures(task, split, log_probs[split]),
    }


def split_figures(task: Classification, split: str, log_probs: np.ndarray) -> dict[str, Any]:
    """Draws the pictures of one split: reliability, and the least certain images."""
    inputs, labels = task.dataset.splits[split]
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
    split = reported_split(report)
    if split is None:
        return "There are no scores: every example was learned from."
    members, ensemble = report[split]["members"], report[split]["ensemble"]
    columns = {name: np.array(members[name], float) for name in SCORES}
    spread = 1 if len(report["live_members"]) > 1 else 0  # Degrees of freedom of the mean.
    rows: list[tuple[str, list[float] | None]] = [
        (f"member {k}", [columns[name][i] for name in SCORES])
        for i, k in enumerate(report["live_members"])
    ]
    rows += [(f"member {k}: {why}", None) for k, why in report["failed_members"].items()]
    rows += [
        ("mean of members", [columns[name].mean() for name in SCORES]),
        ("sd of members", [columns[name].std(ddof=spread) for name in SCORES]),
        ("ensemble", [ensemble[name] for name in SCORES]),
    ]
    width = max(len(label) for label, _ in rows)
    header = f"{split:<{width}}" + "".join(f"{title:>12}" for title in SCORES.values())
    lines = [header, "-" * len(header)]
    for label, values in rows:
        if label in ("mean of members", "ensemble"):
            lines.append("-" * len(header))
        lines.append(f"{label:<{width}}" + ("" if values is None else _cells(values)))
    return "\n".join(lines)


def _cells(values: Sequence[float]) -> str:
    accuracy, *others = values
    return f"{100 * accuracy:12.2f}" + "".join(f"{value:12.4f}" for value in others)


def summary_sentence(report: Mapping[str, Any]) -> str:
    """Says in one line what the ensemble brings over its mean member."""
    split = reported_split(report)
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
