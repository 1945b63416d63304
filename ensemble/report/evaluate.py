"""`ensemble.evaluate`: from a workdir to evaluation/report.json and evaluation/report.html."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ensemble.config.builtin import PRIOR, STARTS, is_file
from ensemble.config.pieces import path_of, trusting
from ensemble.draws.store import LOG_DENSITY, Draws
from ensemble.errors import InputError, plural
from ensemble.likelihoods.predictive import Predictive
from ensemble.metrics import requested
from ensemble.metrics.abstention import Rule
from ensemble.report import charts, other_inputs, page
from ensemble.report.baselines import baselines
from ensemble.report.evaluated_run import AnyPath, EvaluatedRun
from ensemble.report.evaluation import VERSION, Evaluation
from ensemble.report.findings import Finding
from ensemble.report.svg import Chart
from ensemble.report.table import Json
from ensemble.storage.files import write_file
from ensemble.storage.manifest import to_json
from ensemble.storage.metrics_log import read_metrics
from ensemble.storage.workdir import Workdir

logger = logging.getLogger("ensemble")


def evaluate(
    workdir: AnyPath,
    out: AnyPath | None = None,
    datasets: Sequence[str] | None = None,
    compare: Sequence[AnyPath] = (),
    *,
    data_dir: str | None = None,
    data: Any = None,
    num_devices: int | None = None,
    abstain: Sequence[str] = (),
    allow_empty_sets: bool = False,
    metrics: Sequence[Any] = (),
    show_progress: bool = True,
    trust: bool = False,
    model: Any = None,
) -> Evaluation:
    """Scores an ensemble on its test split, on shifted inputs and on out-of-distribution data.

    Writes `report.json`, `report.html` and the predictions of other inputs to `out`, and nothing
    else.

    Args:
        workdir: Directory of the run, finished or in training.
        out: Directory of the results; None: `evaluation` in the workdir.
        datasets: Additional inputs: `shift`, `uniform`, `constant`, of tables `box` and `outside`,
            and names of data sets; empty: none. None: installed sets that suit the run.
        compare: Workdirs of runs on the same data to compare with. A posterior is also compared
            with the run that its chains start from.
        data_dir: Directory of TFDS data sets; None: that of the run, if it still exists.
        data: Arrays that the run has learned, if it was given arrays.
        num_devices: Devices to predict on; None: all.
        abstain: Rules of abstention, such as `max_error=0.02` or `coverage=0.9`.
        allow_empty_sets: If True, conformal sets may be empty, so that they cover no more than
            needed.
        metrics: Additional metrics, such as `cost:FILE`.
        show_progress: If True, show progress on stderr or below a notebook's cell.
        trust: If True, code that the workdir names by a path is imported and run.
        model: Network of the run, if it is your own: a class or factory, as in training.

    Returns:
        The evaluation, which prints as findings and a table; `json()` is the content of
        report.json.

    Raises:
        InputError: The workdir, a run to compare with, or the data cannot be used.

    Example:
        >>> ensemble.evaluate("runs/digits").findings
    """
    metrics = [one if isinstance(one, str) else path_of(one) for one in metrics]
    rules = [Rule.parse(one) for one in abstain]
    with trusting(trust, model=model):
        run = EvaluatedRun(workdir, data_dir, data, num_devices)
        p, y, _ = run.test
        asked = requested(metrics, p, getattr(p, "class_names", ()))
        others, notes = _others(run, [os.fspath(one) for one in compare], data_dir, data)
        inputs = other_inputs.plan(run, datasets)
        directory = Workdir(out).path if out else run.work.path / "evaluation"
        with other_inputs.write_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
        shifted, outside = other_inputs.predict(
            run, inputs, directory / "predictions", show_progress
        )
        about = _about(run, [*run.results.get("notes", ()), *notes])
        held = run.predicted("calibration")
        strata = run.dataset and run.dataset.strata("test")
        evaluation = Evaluation(
            p,
            y,
            held and held[:2],
            baselines=baselines(p, run.dataset, "test") if run.dataset else [],
            shifted=shifted,
            outside=outside,
            groups=strata.groups if strata else None,
            others=others,
            draw=run.results.get("single_draw", {}).get("test", {}),
            traces=_traces(run),
            about=about,
            source=run.dataset,
            records=read_metrics(run.work.metrics),
            noun=run.noun,
            rules=rules,
            requested=asked,
            allow_empty_sets=allow_empty_sets,
            said=[Finding(**one) for one in run.results.get("findings", ())],
        )
        logger.info("Scoring %d %ss on %d examples.", p.num_members, run.noun, len(y))
        content = to_json({**about, **evaluation.json()})
        files = {"report.html": page.render(evaluation), "report.json": content}
        with other_inputs.write_errors(directory):
            for name, one in files.items():
                write_file(directory / name, one)
        return evaluation


def _others(
    run: EvaluatedRun, workdirs: Sequence[str], data_dir: str | None, data: Any
) -> tuple[dict[str, Predictive], list[str]]:
    """Predictives of runs to compare with, and notes on those that are missing.

    Raises:
        InputError: A run that was asked for cannot be compared.
    """
    found = {}
    notes = []
    start = str(run.config.get("init_from", PRIOR))
    is_posterior = "num_chains" in run.config and "selection" not in run.results
    starts = [] if not is_posterior or start in STARTS or is_file(start) else [start]
    for workdir in [*starts, *workdirs]:
        try:
            other = EvaluatedRun(workdir, data_dir, data)
            _check_comparable(run, other)
        except InputError as error:
            if workdir not in starts:
                raise
            notes.append(f"The run that the chains start from is not compared: {error}")
        else:
            name = f"{'its start, ' if workdir in starts else ''}{other.work.path.name}"
            found[workdir if name in found else name] = other.test.predictive
    return found, notes


def _check_comparable(run: EvaluatedRun, other: EvaluatedRun) -> None:
    """Refuses runs that predict other targets, or were tested on other examples."""
    both = (run, other)
    kinds = {one.test.predictive.kind.replace("counts", "numbers") for one in both}
    prints = {one.description.get("test_fingerprint") for one in both}
    is_same = np.array_equal(run.test.targets, other.test.targets)
    if len(kinds) > 1 or len(prints) > 1 or not is_same:
        raise InputError(
            f"--compare={other.work.path} has other targets or test examples than {run.work.path}; "
            "compare classes with classes, and give both the same splits, or, where splits are "
            "carved, the same config.seed"
        )


def _traces(run: EvaluatedRun) -> list[Chart]:
    """Traces of chains, and of a score of single draws."""
    posterior = run.results.get("posterior", {})
    scalars = Draws(run.work.draws).scalars() if posterior else {}
    names = [name for name in posterior.get("monte_carlo", {}) if name != LOG_DENSITY]
    for one in [*scalars.values()][:1]:
        return charts.traces(scalars, one.shape[1] - posterior["num_samples"], *names[:1])
    return []


def _about(run: EvaluatedRun, notes: Sequence[str]) -> Json:
    """Particulars of the run, for report.json and for the page."""
    p, y, members = run.test
    facts = [
        plural(p.num_members, run.noun),
        run.config["method"].replace("_", " "),
        str(run.description["name"]),
        f"{len(y):,} test examples",
    ]
    if not run.is_finished:
        facts.append(f"in training, step {run.step:,}")
    kept: Json = {
        name: run.results[name] for name in ("posterior", "selection") if name in run.results
    }
    return {
        "version": VERSION,
        "workdir": str(run.work.path),
        "name": run.work.path.name,
        "facts": facts,
        "is_finished": run.is_finished,
        "step": run.step,
        "members": members.tolist(),
        "failed_members": run.results["failed_members"],
        "notes": notes,
        "dataset": run.description,
        "config": run.config,
        **kept,
    }
