"""One evaluation, from a workdir to `evaluation.json` and `report.html`."""

import datetime
import importlib.metadata
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from ensemble import metrics
from ensemble.config import FORMAT
from ensemble.errors import UserError
from ensemble.evaluation import derived
from ensemble.evaluation.class_predictions import ClassPredictions
from ensemble.evaluation.comparison import compare as compare_with
from ensemble.evaluation.evaluation import Evaluation
from ensemble.evaluation.next_member import score_sizes
from ensemble.evaluation.out_of_distribution import score_detection, uncertainty_scores
from ensemble.evaluation.scoring import score_calibrated, score_classes, score_predictions
from ensemble.evaluation.shift import SHIFTS
from ensemble.evaluation.strata import strata_of
from ensemble.evaluation.subject import Subject
from ensemble.evaluation.thresholds import RULES, score_abstention
from ensemble.evaluation.verdict import verdict
from ensemble.storage.files import write_text, write_together
from ensemble.storage.schema import to_json
from ensemble.storage.workdir import Workdir, check_links

logger = logging.getLogger("ensemble")

PACKAGES = ("jax", "jaxlib", "flax", "numpy", "scipy")


def evaluate(
    workdir: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    datasets: Sequence[str] | None = None,
    compare: Sequence[str | os.PathLike[str]] = (),
    *,
    data_dir: str | None = None,
    data: Any = None,
    num_devices: int | None = None,
    abstain: Sequence[str] | None = None,
    nonempty_sets: bool = False,
    show_progress: bool = True,
) -> Evaluation:
    """Scores an ensemble on its test split, on shifted and on out-of-distribution data.

    Nothing is written but to `out`: `evaluation.json`, `report.html`, and predictions of what is
    beside the test split, which the next evaluation takes from there.

    Args:
        workdir: of a run, finished or in training.
        out: directory for the results; None: `evaluation` in the workdir.
        datasets: what to predict beside the test split: `shift`, `uniform`, `constant`, and names
            of data sets as `ensemble.sources.load_dataset` takes them; empty for nothing. None: all
            of them that are here and have the right shape.
        compare: workdirs of runs on the same data to lay beside this one.
        data_dir: where TFDS sets lie; None: where the run had them, if they are still there.
        data: the arrays that the run learned, where it was given arrays.
        num_devices: to predict on; None for all.
        abstain: what thresholds of abstention to fit, as `ensemble.load` takes each; None: for
            errors of 1, 2 and 5%, and for a coverage of 90%.
        nonempty_sets: whether every conformal set is to hold the most probable class at least.
        show_progress: whether to show on stderr, or below a notebook's cell, how far it is.

    Returns:
        The content of evaluation.json, which a terminal and a notebook show as its summary.

    Raises:
        UserError: the workdir, what it is compared with, or the data cannot be used.
    """
    from ensemble.evaluation.page import render  # It imports Matplotlib: a second.

    datasets = [datasets] if isinstance(datasets, str) else datasets
    compare = [compare] if isinstance(compare, str | os.PathLike) else compare
    abstain = [abstain] if isinstance(abstain, str) else abstain
    rules = [metrics.Rule.parse(one) for one in (RULES if abstain is None else abstain)]
    subject = Subject(os.fspath(workdir), data_dir, data, num_devices)
    others = [Subject(os.fspath(other), data_dir, data, num_devices) for other in compare]
    comparisons = [compare_with(subject, other) for other in others]
    sets = derived.plan(subject, datasets)
    directory = _output_directory(subject, out)
    predictions = derived.predict(subject, sets, directory / "predictions", show_progress)
    evaluation = Evaluation(score(subject, predictions, comparisons, rules, nonempty_sets))
    log_probs = {name: one.log_probs for name, one in predictions.items()}
    page = render(evaluation, subject, log_probs)
    with derived.write_errors(directory):
        write_together(
            {directory / "report.html": page, directory / "evaluation.json": to_json(evaluation)}
        )
    return evaluation


def score(
    subject: Subject,
    predictions: Mapping[str, ClassPredictions],
    comparisons: Sequence[Mapping[str, Any]],
    rules: Sequence[metrics.Rule],
    nonempty_sets: bool = False,
) -> dict[str, Any]:
    """Computes every number of an evaluation; this is the content of evaluation.json.

    Args:
        subject: of the evaluation.
        predictions: of the members beside the test split, by the names of `derived.plan`.
        comparisons: with other workdirs, as `comparison.compare` returns them.
        rules: of abstention.
        nonempty_sets: as of `evaluate`.
    """
    logger.info("Scoring %d members on %d examples.", *subject.test.log_probs.shape[:2])
    test = score_predictions(subject.test)
    evaluation = {
        "format": FORMAT,
        "workdir": str(subject.work.path),
        "name": subject.name,
        "is_finished": subject.is_finished,
        "step": subject.step,
        "members": subject.test.members.tolist(),
        "posterior": subject.report.get("posterior"),
        "temperature": subject.config.get("temperature", 1.0),  # Of the likelihood.
        "failed_members": subject.failed_members,
        "notes": subject.report.get("notes", []),
        "dataset": subject.description,
        "test": test,
        "classes": score_classes(subject.test, subject.description["class_names"]),
        "calibrated": score_calibrated(
            subject.test, subject.calibration, nonempty_sets, strata_of(subject.dataset)
        ),
        "abstention": score_abstention(subject.test, subject.calibration, rules),
        "next_member": score_sizes(subject.test),
        "shift": _score_shifts(subject, predictions),
        "out_of_distribution": _score_detections(subject, predictions),
        "compare": list(comparisons),
        "config": subject.config,
        "environment": _environment(),
    }
    return {**evaluation, "verdict": verdict(evaluation)}


def _output_directory(subject: Subject, out: str | os.PathLike[str] | None) -> epath.Path:
    """Creates the directory of the results, and sees that it can be written.

    Raises:
        UserError: it cannot, or is a workdir itself.
    """
    directory = Workdir(out).path if out else subject.work.path / "evaluation"
    for workdir in (directory, *directory.parents):
        if (workdir / "config.json").exists() and not is_own_folder(directory, workdir):
            raise UserError(
                f"--out={directory} is the workdir {workdir}, or belongs to its run; choose a "
                "directory of its own"
            )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if "://" not in os.fspath(directory):
            for folder in (directory, directory / "predictions"):
                if folder.is_dir():
                    check_links(folder, within=directory)
        write_text(directory / ".writable", "Can a file be written?")
        (directory / ".writable").unlink()
    except OSError as error:
        raise UserError(
            f"--out={directory} cannot be written: {error.strerror or error}; choose another "
            "directory or free space there"
        ) from None
    return directory


def is_own_folder(directory: epath.Path, workdir: epath.Path) -> bool:
    """Whether a directory in a workdir is none of those that its run writes."""
    parts = directory.relative_to(workdir).parts
    own = Workdir(workdir)
    taken = (own.checkpoints, own.predictions, own.plots, own.events, own.draws)
    return bool(parts) and workdir / parts[0] not in taken


def _score_shifts(subject: Subject, predictions: Mapping[str, ClassPredictions]) -> dict[str, Any]:
    """Scores by kind of shift: [5] for the ensemble and for its mean member, by score."""
    sections = {}
    for kind, shift in SHIFTS.items():
        names = [f"{derived.SHIFT}/{kind}/{severity}" for severity in derived.SEVERITIES]
        if not set(names) <= predictions.keys():
            continue
        summaries = [
            metrics.summarise(
                predictions[name].log_probs, subject.test.targets, predictions[name].entropies
            )
            for name in names
        ]
        sections[kind] = {
            "unit": shift.unit,
            "amounts": list(shift.amounts),
            "ensemble": {
                name: [one["ensemble"][name] for one in summaries] for name in metrics.SCORES
            },
            "mean": {
                name: [float(np.mean(one["members"][name])) for one in summaries]
                for name in metrics.SCORES
            },
            "mean_entropy": [one["diversity"]["total"] for one in summaries],
        }
    return sections


def _score_detections(
    subject: Subject, predictions: Mapping[str, ClassPredictions]
) -> dict[str, Any]:
    """Detection scores of every set beside the test split and its shifts."""
    test = subject.test
    inside = uncertainty_scores(ClassPredictions(test.log_probs, test.entropies))
    return {
        name: score_detection(inside, outside)
        for name, outside in predictions.items()
        if not name.startswith(f"{derived.SHIFT}/")
    }


def _environment() -> dict[str, Any]:
    return {
        "evaluated": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
