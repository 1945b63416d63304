"""What a finished run leaves: results.json, predictions and plots."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from ensemble.config import FORMAT
from ensemble.errors import plural
from ensemble.likelihoods.predictive import Predictive
from ensemble.report import charts, plots
from ensemble.report.baselines import baselines
from ensemble.report.evaluation import VERSION, Evaluation
from ensemble.runtime.status import Status
from ensemble.storage.metrics_log import read_metrics
from ensemble.storage.predictions import write_predictions

logger = logging.getLogger("ensemble")

REPORTED_SPLITS = ("test", "validation")
"""Splits that are scored, the most telling first."""


def log_stopped(run: Any) -> None:
    """Logs how many members stopped early, and when."""
    taken = run.devices.fetch_members(run.loop.members.taken)
    steps = taken[run.loop.status == Status.STOPPED_EARLY]
    if len(steps):
        epochs = steps // run.method.steps_per_epoch
        line = "%d of %s stopped early, at epochs %d to %d; the best weights of each are kept."
        members = plural(len(run.numbers), "member")
        logger.info(line, len(steps), members, min(epochs), max(epochs), extra={"stays": True})


def evaluations_of(
    run: Any, predictions: Mapping[str, Predictive], results: Mapping[str, Any]
) -> dict[str, Evaluation]:
    """Evaluations of the splits that are reported, with baselines of the first one.

    Args:
        run: An `ensemble.runtime.run.Run`.
        predictions: Predictions of the live members, by split.
        results: Content of results.json but for the metrics.
    """
    found: dict[str, Evaluation] = {}
    for split in (name for name in REPORTED_SPLITS if name in predictions):
        source = run.scored.dataset
        strata = source.strata(split)
        p = predictions[split]
        found[split] = Evaluation(
            p,
            np.asarray(source.targets(split)),
            baselines=[] if found else baselines(p, source, split),
            groups=None if strata is None else strata.groups,
            draw=results.get("single_draw", {}).get(split, {}),
            noun=run.report.noun,
            split=split,
        )
    return found


def content_of(run: Any) -> dict[str, Any]:
    """The content of results.json but for the metrics."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "config": run.config.to_dict(),
        "dataset": run.task.describe(),
        "method": run.config.method,
        "num_members": len(run.status),
        "active_members": run.live,
        "failed_members": run.failed,
        "stopped_early": [k for k, s in run.status.items() if s == Status.STOPPED_EARLY],
        "num_train_examples": run.task.num_train_examples,
        "timing": run.clock.timing(),
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
    run: Any,
    results: Mapping[str, Any],
    predictions: Mapping[str, Predictive],
    evaluation: Evaluation | None,
) -> None:
    """Writes predictions, plots and, last, the results that say that all is there.

    Args:
        run: An `ensemble.runtime.run.Run`.
        results: Content of results.json.
        predictions: Predictions of the live members, by split.
        evaluation: Evaluation of the reported split; None if nothing is scored.
    """
    work = run.where.work
    if run.scored is not None:
        for name, one in predictions.items():
            targets = run.scored.dataset.targets(name)
            write_predictions(work, name, one, targets, results["active_members"])
        titles = {"loss": "loss"} if evaluation is None else evaluation.recorded
        found = {"training": charts.learning_curves(read_metrics(work.metrics), titles)}
        if evaluation is not None:
            found |= plots.figures(evaluation)
        plots.write(work.plots, found)
    work.manifest.write(work.report, results)
