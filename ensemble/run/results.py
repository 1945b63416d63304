"""What a finished run leaves: results.json, predictions and plots."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import ml_collections
import numpy as np

from ensemble.config import FORMAT
from ensemble.errors import plural
from ensemble.likelihoods.predictive import Predictive
from ensemble.report import charts, plots
from ensemble.report.baselines import MAX_PRODUCTS, baselines
from ensemble.report.evaluation import VERSION, Evaluation
from ensemble.report.sections import sections_of
from ensemble.report.svg import Chart
from ensemble.runtime.status import FAILURES, Status
from ensemble.storage.metrics_log import read_metrics
from ensemble.storage.predictions import write_predictions
from ensemble.storage.workdir import Workdir
from ensemble.task import Scored

logger = logging.getLogger("ensemble")

REPORTED_SPLITS = ("test", "validation")
"""Splits that are scored, the most telling first."""


def log_stopped(stopped: Mapping[int, int], num_members: int, steps_per_epoch: int) -> None:
    """Logs how many members stopped early, and when.

    Args:
        stopped: steps that these had taken, by number.
        num_members: in all.
        steps_per_epoch: of the method.
    """
    if stopped:
        epochs = sorted(step // steps_per_epoch for step in stopped.values())
        line = "%d of %s stopped early, at epochs %d to %d; the best weights of each are kept."
        members = plural(num_members, "member")
        logger.info(line, len(stopped), members, epochs[0], epochs[-1], extra={"stays": True})


def evaluations_of(
    scored: Scored | None,
    predictions: Mapping[str, Predictive],
    results: Mapping[str, Any],
    noun: str = "member",
) -> dict[str, Evaluation]:
    """Evaluations of the splits that are reported, with baselines of the first one.

    Args:
        scored: what predictions are scored by; None: nothing.
        predictions: of the live members, by split.
        results: content of results.json but for the metrics.
        noun: what a member is called.
    """
    if scored is None:
        return {}
    source = scored.dataset
    found: dict[str, Evaluation] = {}
    for split in REPORTED_SPLITS:
        if split not in source.sizes:
            continue
        strata, p = source.strata(split), predictions[split]
        draw = results.get("single_draw", {}).get(split)
        found[split] = Evaluation(
            p,
            np.asarray(source.targets(split)),
            baselines=[] if found else baselines(p, source, split, MAX_PRODUCTS),
            groups=None if strata is None else strata.groups,
            chains=None if draw is None else {"draw": draw},
            noun=noun,
            split=split,
        )
    return found


def build_results(
    config: ml_collections.FrozenConfigDict,
    description: Mapping[str, Any],
    num_train_examples: int,
    status: Mapping[int, Status],
    timing: Mapping[str, float | None],
) -> dict[str, Any]:
    """The content of results.json but for the metrics.

    Args:
        config: of the run.
        description: of the task.
        num_train_examples: of the task.
        status: of all members, by number.
        timing: seconds and rates.
    """
    failed = {k: FAILURES[s] for k, s in status.items() if s in FAILURES}
    return {
        "format": FORMAT,
        "version": VERSION,
        "config": config.to_dict(),
        "dataset": dict(description),
        "method": config.method,
        "num_members": len(status),
        "active_members": [k for k in status if k not in failed],
        "failed_members": failed,
        "stopped_early": [k for k, s in status.items() if s == Status.STOPPED_EARLY],
        "num_train_examples": num_train_examples,
        "timing": dict(timing),
    }


def metrics_json(evaluations: Mapping[str, Evaluation]) -> dict[str, Any]:
    """`metrics` by split, `targets` of several, and of the first split `baselines` and `gain`."""
    found: dict[str, Any] = {"metrics": {}, "targets": {}}
    for split, e in evaluations.items():
        content = e.table.json()
        content.pop("single_draw", None)  # Of all splits it is there already.
        found["metrics"][split] = content.pop("metrics")
        if e.targets:
            found["targets"][split] = [
                {"name": name, **one.table.json()} for name, one in e.targets.items()
            ]
        found = {**content, **found}
    return {name: one for name, one in found.items() if one}


def write_results(
    workdir: Workdir,
    scored: Scored | None,
    results: Mapping[str, Any],
    predictions: Mapping[str, Predictive],
    evaluation: Evaluation | None,
) -> None:
    """Writes predictions, plots and, last, the results that say that all is there.

    Args:
        workdir: of the run.
        scored: what predictions are scored by; None: nothing.
        results: content of results.json.
        predictions: of the live members, by split.
        evaluation: of the reported split; None if nothing is scored.
    """
    workdir.predictions.mkdir(parents=True, exist_ok=True)
    workdir.plots.mkdir(parents=True, exist_ok=True)
    if scored is not None:
        for name, one in predictions.items():
            targets = scored.dataset.targets(name)
            write_predictions(workdir, name, one, targets, results["active_members"])
        plots.write(workdir.plots, _figures(workdir, results, evaluation))
    workdir.write_report(results)


def _figures(
    workdir: Workdir, results: Mapping[str, Any], evaluation: Evaluation | None
) -> dict[str, list[Chart]]:
    """Charts of a finished run: learning curves, and what the predictions of a split show."""
    titles = {"loss": "loss"} if evaluation is None else evaluation.recorded
    found = {"training": charts.learning_curves(read_metrics(workdir.metrics), titles)}
    if evaluation is not None:
        found |= plots.figures(evaluation)
        for section in sections_of(results):
            found |= section.figures(results)
    return found
