"""One evaluation, from a workdir to `evaluation.json` and `report.html`."""

import dataclasses
import datetime
import importlib.metadata
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ensemble import metrics
from ensemble.errors import UserError
from ensemble.evaluation import chain_error, derived, page
from ensemble.evaluation.beside import Beside, lay_beside
from ensemble.evaluation.comparison import compare as compare_runs
from ensemble.evaluation.evaluation import Evaluation
from ensemble.evaluation.sections import Evaluated, sections
from ensemble.evaluation.subject import Subject
from ensemble.evaluation.words import say
from ensemble.scoring.sections import VERSION
from ensemble.scoring.view import View
from ensemble.storage import packages
from ensemble.storage.files import write_file, write_together
from ensemble.storage.paths import is_remote
from ensemble.storage.predictions import MemberPredictions
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
    exact_sets: bool = False,
    scores: Sequence[str] = (),
    show_progress: bool = True,
) -> Evaluation:
    """Scores an ensemble on its test split, on shifted and on out-of-distribution data.

    Nothing is written but to `out`: `evaluation.json`, `report.html`, and predictions of what is
    beside the test split, which the next evaluation takes from there.

    Args:
        workdir: of a run, finished or in training.
        out: directory for the results; None: `evaluation` in the workdir.
        datasets: what to predict beside the test split: `shift`, `uniform`, `constant`, of tables
            `box` and `outside`, and names of data sets as `ensemble.sources.load_dataset` takes
            them, or a string of some with commas; empty for nothing. None: those that suit the run,
            are here and have its shape.
        compare: workdirs of runs on the same data to lay beside this one. What a posterior's
            chains start from stands beside it anyway.
        data_dir: where TFDS sets lie; None: where the run had them, if they are still there.
        data: the arrays that the run learned, where it was given arrays.
        num_devices: to predict on; None for all.
        abstain: what thresholds of abstention to fit, as `ensemble.load` takes each; None: some
            errors and coverages.
        exact_sets: whether conformal sets may be empty, to cover no more than is guaranteed.
        scores: what to score beside the usual: `cost:FILE` and such, by `docs/metrics.md`; or a
            string of some with commas.
        show_progress: whether to show on stderr, or below a notebook's cell, how far it is.

    Returns:
        The content of evaluation.json, which a terminal and a notebook show as its summary.

    Raises:
        UserError: the workdir, what it is compared with, or the data cannot be used.
    """
    datasets = datasets.split(",") if isinstance(datasets, str) else datasets
    compare = [compare] if isinstance(compare, str | os.PathLike) else compare
    abstain = abstain.split(",") if isinstance(abstain, str) else abstain
    scores = scores.split(",") if isinstance(scores, str) else scores
    rules = None if abstain is None else [metrics.Rule.parse(one) for one in abstain]
    subject = Subject(os.fspath(workdir), data_dir, data, num_devices, scores)
    subject.check_has_test()
    for view in subject.view.parts or [subject.view]:  # Before more is predicted.
        _check(subject, view, rules, exact_sets)

    def compare_with(workdir: str) -> dict[str, Any]:
        other = Subject(workdir, data_dir, data, num_devices, scores)
        other.check_has_test()
        _check_same_kind(subject, other)
        return compare_runs(subject, other)

    beside = lay_beside(subject, [os.fspath(one) for one in compare], compare_with)
    sets = derived.plan(subject, datasets)
    directory = _output_directory(subject, out)
    predictions = derived.predict(subject, sets, directory / "predictions", show_progress)
    evaluated = _evaluated(subject, predictions, rules, exact_sets)
    evaluation = Evaluation(score(subject, evaluated, beside))
    html = page.render(evaluation, evaluated, subject)
    with derived.write_errors(directory):
        write_together(
            {directory / "report.html": html, directory / "evaluation.json": to_json(evaluation)}
        )
    return evaluation


def _evaluated(
    subject: Subject,
    predicted: Mapping[str, MemberPredictions],
    rules: Sequence[metrics.Rule] | None,
    exact_sets: bool,
) -> Evaluated:
    """What sections are made of.

    Args:
        subject: of the evaluation.
        predicted: of the members beside the test split, by the names of `derived.plan`.
        rules: as of `Evaluated`.
        exact_sets: likewise.
    """
    view = subject.view

    def outside(name: str, said: MemberPredictions) -> View:
        targets = view.targets if name.startswith(f"{derived.SHIFT}/") else None
        return dataclasses.replace(said.view(subject.likelihood, targets), asked=view.asked)

    return Evaluated(
        subject.likelihood,
        view,
        subject.calibration_view,
        {name: outside(name, said) for name, said in predicted.items()},
        subject.dataset,
        subject.why_no_data,
        rules,
        exact_sets,
    )


def score(subject: Subject, evaluated: Evaluated, beside: Beside) -> dict[str, Any]:
    """Computes every number of an evaluation; this is the content of evaluation.json.

    Args:
        subject: of the evaluation.
        evaluated: what its members say.
        beside: other workdirs.
    """
    num_members, num_examples = len(subject.test.members), len(subject.test.targets)
    logger.info("Scoring %d members on %d examples.", num_members, num_examples)
    evaluation = {
        "version": VERSION,
        "workdir": str(subject.work.path),
        "name": subject.name,
        "is_finished": subject.is_finished,
        "step": subject.step,
        "members": subject.test.members.tolist(),
        "posterior": subject.report.get("posterior"),
        **{name: subject.report[name] for name in ("selection",) if name in subject.report},
        "chain_error": chain_error.score_chains(subject),
        "temperature": _temperature(subject),
        "failed_members": subject.failed_members,
        "notes": [*subject.report.get("notes", []), *beside.notes],
        "dataset": subject.description,
        "asked": {one.name: one.setting for one in subject.view.asked},
        **_packages(subject.view),
        **sections(evaluated),
        **_known_groups(subject),
        "compare": beside.comparisons,
        "config": subject.config,
        "environment": _environment(),
    }
    found = subject.evaluator.findings(evaluation)
    return {**evaluation, "findings": [one.to_json(say(one)) for one in found]}


def _packages(view: View) -> dict[str, Any]:
    """Which scores are of installed packages, if any is."""
    found = packages.of_scores(one.name for one in view.asked)
    return {"packages": found} if found else {}


def _temperature(subject: Subject) -> float:
    """The likelihood's temperature; members of several runs have none together."""
    return 1.0 if "selection" in subject.report else subject.config.get("temperature", 1.0)


def _known_groups(subject: Subject) -> dict[str, Any]:
    """The report's test section where that knows groups, and the data that tell them are gone."""
    report, asked = subject.report, subject.view.asked
    if subject.dataset is not None or report.get("version") != VERSION:
        return {}
    if "over_groups" not in report.get("test", {}):
        return {}
    of_asked = {one.name: {"value": one.value(subject.view), "interval": None} for one in asked}
    test = report["test"]
    return {"test": {**test, "scores": {**of_asked, **test["scores"]}}}


def _check(
    subject: Subject, view: View, rules: Sequence[metrics.Rule] | None, exact_sets: bool
) -> None:
    """Refuses what was asked for and is not for such targets, and targets that nobody knows.

    Raises:
        UserError: as said.
    """
    if not view.is_known.any():
        raise UserError(
            f"{subject.work.path} has censored targets alone in its test split, of which there are "
            "no scores but the NLL in report.json"
        )
    if exact_sets and not view.has_sets:
        raise UserError(
            "exact_sets is for sets of classes, and the targets are numbers: leave it out"
        )
    if rules and not view.rules:
        raise UserError(
            f"{subject.work.path} has learned quantiles, which have no threshold of abstention: "
            "leave --abstain out"
        )
    for rule in rules or ():
        try:
            view.errs(rule.tolerance)
        except ValueError as error:
            raise UserError(f"abstain={rule}: {error}") from None


def _check_same_kind(subject: Subject, other: Subject) -> None:
    """Refuses to lay classes beside numbers.

    Raises:
        UserError: as said.
    """
    if subject.likelihood.evaluator != other.likelihood.evaluator:
        raise UserError(
            f"--compare={other.work.path} predicts by config.likelihood={other.likelihood.name!r}, "
            f"{subject.work.path} by {subject.likelihood.name!r}; compare classes with classes, "
            "and numbers with numbers"
        )


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
        if not is_remote(directory):
            check_links(directory)
            if (directory / "predictions").is_dir():
                check_links(directory / "predictions", within=directory)
        write_file(directory / ".writable", "Can a file be written?")
        (directory / ".writable").unlink(missing_ok=True)  # Two evaluations may try at once.
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


def _environment() -> dict[str, Any]:
    return {
        "evaluated": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
