"""What a finished run leaves: scores, predictions, pictures."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from ensemble import metrics
from ensemble.config import FORMAT
from ensemble.errors import RunFailed
from ensemble.method import FAILURES, Method, State, Status
from ensemble.pictures import curves, examples, member_scores, reliability, uncertainty
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
                predictions[name].log_probs, task.dataset.targets(name), predictions[name].entropies
            )
            for name in REPORTED_SPLITS
            if name in task.sizes
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
        labels = task.dataset.targets(name)
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
    if not task.sizes:
        return {}
    figures = {"training": curves.training_curves(read_metrics(workdir.metrics))}
    split = reported_split(report)
    if split is None:
        return figures
    labels = task.dataset.targets(split)
    if "recommendation" in report:
        figures |= first_choice_figures(report["recommendation"]["first_choices"])
    return {
        **figures,
        "members": member_scores.member_scores(report[split]),
        "entropy": uncertainty.entropy_histogram(log_probs[split], labels),
        **split_figures(task, split, log_probs[split]),
    }


def split_figures(task: Classification, split: str, log_probs: np.ndarray) -> dict[str, Any]:
    """Draws the pictures of one split: reliability, and the least certain images."""
    dataset, labels = task.dataset, task.dataset.targets(split)
    figures = {
        "reliability": reliability.reliability_diagram(
            log_probs, labels, title=f"{dataset.name} {split}"
        )
    }
    if dataset.has_pictures:
        figures["uncertain"] = examples.uncertain_examples(
            lambda indices: dataset.read(split, indices).inputs,
            log_probs,
            labels,
            dataset.class_names or (),
        )
    return figures


def reported_split(report: Mapping[str, Any]) -> str | None:
    """The split whose scores say most: test, else validation; None where all is learned from."""
    return next((name for name in REPORTED_SPLITS if name in report), None)
