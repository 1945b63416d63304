"""`ensemble.evaluate`: from a workdir to evaluation/report.json and evaluation/report.html."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath
from etils.epath import PathLike

from ensemble.config.builtin import DATASETS, PRIOR, STARTS, is_file
from ensemble.config.pieces import path_of, trusting
from ensemble.data.catalogue import KNOWN_DATASETS, find_entry, load_test_inputs
from ensemble.data.image_form import parse_size
from ensemble.data.splitting import POOL
from ensemble.data.tables.columns import read_files
from ensemble.draws.store import Draws
from ensemble.errors import InputError, in_one_line, logger, plural
from ensemble.metrics import requested
from ensemble.metrics.abstention import Rule
from ensemble.report import charts, page, shift
from ensemble.report.baselines import baselines
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.report.evaluation import VERSION, Evaluation
from ensemble.report.findings import Finding
from ensemble.report.shift import BOX, CONSTANT, MADE, OUTSIDE, SHIFT, UNIFORM
from ensemble.report.table import ByName
from ensemble.run.progress import Progress, open_display
from ensemble.storage.files import write_file
from ensemble.storage.manifest import Json, to_json
from ensemble.storage.predictions import read_predictive, write_predictive
from ensemble.storage.workdir import Workdir, read_metrics


def evaluate(
    workdir: PathLike,
    out: PathLike | None = None,
    datasets: Sequence[str] | None = None,
    compare: Sequence[PathLike] = (),
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
    rules = [Rule.parse(one) for one in abstain]
    with trusting(trust, model=model):
        run = EvaluatedRun(workdir, data_dir, data, num_devices)
        p, y, members = run.test
        asked = [one if isinstance(one, str) else path_of(one) for one in metrics]
        further = requested(asked, p)
        others = _others(run, compare, data_dir)
        inputs = _inputs(run, datasets)
        directory = Workdir(out).path if out else run.work.path / "evaluation"
        source = run.dataset
        held = run.predicted("calibration")
        strata = source and source.strata("test")
        facts = [
            plural(p.num_members, run.noun),
            run.config["method"].replace("_", " "),
            str(run.description["name"]),
            f"{len(y):,} test examples",
        ]
        if not run.is_finished:
            facts.append(f"in training, step {run.step:,}")
        about = {
            "version": VERSION,
            "workdir": str(run.work.path),
            "name": run.work.path.name,
            "facts": facts,
            "is_finished": run.is_finished,
            "step": run.step,
            "members": members.tolist(),
            "failed_members": run.results["failed_members"],
            "notes": run.results.get("notes", []),
            "config": run.config,
        }
        traces = []
        if posterior := run.results.get("posterior"):
            scalars = Draws(run.work.draws).scalars()
            for one in [*scalars.values()][:1]:
                first = one.shape[1] - posterior["num_samples"]
                traces = charts.traces(scalars, first, *posterior["monte_carlo"])
        try:
            directory.mkdir(parents=True, exist_ok=True)
            shifted, outside = _predict(run, inputs, directory / "predictions", show_progress)
            evaluation = Evaluation(
                p,
                y,
                held and held[:2],
                baselines=baselines(p, source, "test") if source else [],
                shifted=shifted,
                outside=outside,
                groups=strata and strata.groups,
                others=others,
                draw=run.results.get("single_draw", {}).get("test", {}),
                traces=traces,
                about=about,
                source=source,
                records=read_metrics(run.work.metrics),
                noun=run.noun,
                rules=rules,
                requested=further,
                allow_empty_sets=allow_empty_sets,
                said=[Finding(**one) for one in run.results.get("findings", ())],
            )
            write_file(directory / "report.html", page.render(evaluation))
            write_file(directory / "report.json", to_json({**about, **evaluation.json()}))
        except OSError as error:
            raise InputError(
                f"{directory} cannot be written: {error.strerror or error}; free space there, or "
                "choose another --out"
            ) from error
        return evaluation


# What it is compared with.


def _others(run: EvaluatedRun, workdirs: Sequence[PathLike], data_dir: str | None) -> Json:
    """Predictives of runs to compare with, by name.

    Raises:
        InputError: A run that was asked for has other targets or test examples.
    """
    found: Json = {}
    start = str(run.config.get("init_from", PRIOR))
    is_posterior = "num_chains" in run.config and "selection" not in run.results
    starts = [] if not is_posterior or start in STARTS or is_file(start) else [start]
    for workdir in [*starts, *(os.fspath(one) for one in workdirs)]:
        try:
            other = EvaluatedRun(workdir, data_dir, run.data)
            both = (run, other)
            kinds = {one.test.predictive.kind.replace("counts", "numbers") for one in both}
            prints = {one.description.get("test_fingerprint") for one in both}
            is_same = np.array_equal(run.test.targets, other.test.targets)
            if len(kinds) > 1 or len(prints) > 1 or not is_same:
                raise InputError(
                    f"--compare={other.work.path} has other targets or test examples than "
                    f"{run.work.path}; compare classes with classes, and give both the same "
                    "splits, or, where splits are carved, the same config.seed"
                )
        except InputError as error:
            if workdir not in starts:
                raise
            logger.warning("The run that the chains start from is not compared: %s", error)
        else:
            name = f"{'its start, ' if workdir in starts else ''}{other.work.path.name}"
            found[workdir if name in found else name] = other.test.predictive
    return found


# Other inputs: shifted, of other data sets, made up.


def _inputs(run: EvaluatedRun, names) -> Json:
    """Inputs [N, ...] in addition to the test split, by names such as `shift/rotation/3`.

    Args:
        run: Run to evaluate.
        names: Names of made inputs and data sets, or `none`; None: all that are installed and suit.

    Raises:
        InputError: A name is unknown, or its data are missing.
    """
    source = run.dataset
    is_asked = names is not None
    if source and not is_asked:
        others = [
            name
            for name, entry in DATASETS.items()
            if entry.input_shape == source.input_shape and name != source.name.removeprefix("tfds:")
        ]
        names = [*([SHIFT] if source.has_pictures else []), *others, UNIFORM, CONSTANT]
        if shift.is_table(source) and run.test.predictive.kind != "classes":
            names = [SHIFT, *others, BOX, OUTSIDE]
    if not names or list(names) == ["none"]:
        return {}
    if source is None:
        raise InputError(f"{run.why_no_data}; give them, or use --extra_datasets=none")
    found: Json = {}
    for name in names:
        try:
            found |= shift.made_inputs(source, name) or _of_set(run, name)
        except InputError as error:
            if is_asked:
                raise
            if name in MADE:  # Most known sets are not installed.
                logger.warning("%s is left out of the other data: %s", name, error)
    return found


def _of_set(run: EvaluatedRun, name: str) -> Json:
    """Inputs of a data set."""
    source: Any = run.dataset
    flag = f"--extra_datasets={name}"
    entry = find_entry(name)
    if entry is None:
        known = ", ".join((*MADE, *KNOWN_DATASETS))
        raise InputError(
            f"{flag} is unknown, or not for inputs of shape {source.input_shape}; choose from "
            f"{known}, or none alone"
        )
    if not entry.kind_of_target:
        size = parse_size(run.config.get("resize"))
        return {name: load_test_inputs(name, run.data_dir, size)}
    if source.table is None:
        raise InputError(
            f"{flag} is a table, and {run.work.path} has learned none: give inputs as npz:PATH"
        )
    parts = read_files(name)  # Rows to test, else all.
    rows = next(parts[part] for part in ("test", POOL, "train") if part in parts)
    return {name: source.table.encode(rows)}


def _predict(run: EvaluatedRun, inputs: ByName, directory: epath.Path, show_progress: bool):
    """Predicts inputs; predictions are mapped from files, since those of many draws exceed memory.

    Returns:
        Predictives by kind of shift at each severity, and the others by name.

    Raises:
        InputError: Inputs are of another shape, or a member predicts NaN.
    """
    done = 0
    total = sum(map(len, inputs.values()))
    shifted: Json = {}
    outside: Json = {}
    with (
        open_display(show_progress and total > 0) as display,
        Progress(0, total, display, "predicting", "example") as progress,
    ):
        for number, (name, one) in enumerate(inputs.items()):
            try:
                p = run.predict(one)
                if p.have_nan().any():
                    raise ValueError("a member predicts NaN")
            except ValueError as error:  # Of another shape, or of parameters that overflow.
                raise InputError(
                    f"{name} cannot be predicted: {in_one_line(error)}; leave it out of "
                    "--extra_datasets"
                ) from None
            file = directory / str(number)
            write_predictive(file, p)
            p = read_predictive(file, run.likelihood)
            done += len(one)
            progress.update(done, {"predicted": name})
            group, *kind = name.split("/")
            if group == SHIFT:
                shifted.setdefault(kind[0], []).append(p)
            else:
                outside[name] = p
    return shifted, outside
