"""What holds of every run of the table: its numbers, and that nothing beside the seed changes them.

`python -m tests.public.record` records the numbers anew, in `expected.json`: a change of them is
seen there, and meant.
"""

import json
import math
import os
import pathlib
import shutil
import signal
from typing import Any, NamedTuple

import jax.export
import names
import numpy as np
import pytest
from programs import run_here
from runs import RUNS, Run

EXPECTED = pathlib.Path(__file__).with_name("expected.json")
RECORDS = os.environ.get("RECORD_EXPECTED") == "1"

LEFT_OUT = (
    "config", "timing", "identity", "checksum", "fingerprint", "version", "format", "notes",
    "environment", "findings",
)  # fmt: skip
"""Keys whose numbers are of the machine or of the file, or said again if an interval decides."""
IF_DECIDED = ("abstention", "detects_errors")
"""Keys that are there if an interval decides, which the rounding of chains may change."""
LEFT_OUT_PARTS = ("second", "bytes", "runtime", "least_certain", "disagreement_matrix")
TOLERANCES = {False: (0.01, 1e-3), True: (0.05, 0.06)}
"""Relative and absolute, of members after some steps and of chains, whose rounding grows."""


class Trained(NamedTuple):
    """A row of the table, and a run of it.

    Attributes:
        name: of the row.
        row: itself.
        folder: for other runs of it.
        keys: beside those of the row.
        workdir: of the run, which is only to be read.
        result: of `train`.
    """

    name: str
    row: Run
    folder: pathlib.Path
    keys: dict[str, Any]
    workdir: pathlib.Path
    result: Any

    def again(self, workdir, **how):
        """Trains the row in another workdir."""
        return train(self.row, self.folder / workdir, **how, **self.keys)


def train(row, workdir, **how):
    data = row.data and row.data()
    return names.train(row.config(**how), data, str(workdir), show_progress=False)


QUICK = ("deep_ensemble", "hmc")
"""Rows that `make test` runs too."""


def of_rows(*rows):
    """Runs a test on those rows of the table in which it can fail alone."""
    marked = [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.check) for name in rows
    ]
    return pytest.mark.parametrize("trained", marked, indirect=True)


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Five members on two devices, which do not divide them."""
    row = RUNS[request.param]
    folder = tmp_path_factory.mktemp("row")
    keys = {}
    if "init_from" in row.keys:
        train(RUNS["deep_ensemble"], folder / "start")
        keys["init_from"] = str(folder / "start")
    result = train(row, folder / "run", **keys)
    return Trained(request.param, row, folder, keys, folder / "run", result)


@pytest.fixture(scope="module")
def small(trained):
    """A workdir of three members."""
    trained.again("small", size=3)
    return trained.folder / "small"


def said(workdir, row, num_inputs=9):
    """Everything that a run's ensemble predicts of some inputs; else what it has found."""
    if row.data is None:
        return {path: np.float64(one) for path, one in numbers_of(names.report(workdir)).items()}
    return names.arrays(names.load(workdir)(row.data()["inputs"][:num_inputs]))


def assert_same(found, expected, atol):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        scale = max(1.0, float(np.abs(values).max()))
        np.testing.assert_allclose(found[name], values, rtol=0, atol=atol * scale, err_msg=name)


def numbers_of(document, of_chains=False):
    """Every number of results by its path, but those of time and place."""
    found = names.floats(document, (*LEFT_OUT, *(IF_DECIDED if of_chains else ())))
    return {
        path: value
        for path, value in found.items()
        if not any(part in path for part in LEFT_OUT_PARTS)
    }


def metrics_of(workdir):
    """The lines of metrics.jsonl but for speeds."""
    lines = names.metrics(workdir)
    return [{tag: one for tag, one in line.items() if "per_second" not in tag} for line in lines]


# Numbers.


COMPARED = (*QUICK, "deep_ensemble several")


@of_rows(*RUNS)
def test_every_number_is_what_it_was(trained, request, tmp_path):
    report = names.report(trained.workdir)
    assert report["method"] == names.config(trained.row.keys)["method"]
    found = {
        "results": numbers_of(report, trained.row.of_chains),
        "metrics": numbers_of(metrics_of(trained.workdir)),
    }
    if trained.row.data is not None:
        compared = trained.name in COMPARED
        names.evaluate(
            trained.workdir,
            out=tmp_path,
            compare=[str(request.getfixturevalue("small"))] if compared else [],
            data=trained.row.data(),
            show_progress=False,
        )
        found["evaluation"] = numbers_of(names.evaluation(tmp_path), trained.row.of_chains)
        assert (tmp_path / "report.html").stat().st_size > 10_000
    if RECORDS:
        record(trained.name, found)
        return
    expected = json.loads(EXPECTED.read_text())[trained.name]
    relative, absolute = TOLERANCES[trained.row.of_chains]
    for part, values in found.items():
        assert values.keys() == expected[part].keys()
        wrong = {
            path: (value, expected[part][path])
            for path, value in values.items()
            if not math.isclose(value, expected[part][path], rel_tol=relative, abs_tol=absolute)
        }
        assert not wrong


def record(name, found):
    """Puts the numbers of a row into `expected.json`, with five digits, a line a part."""
    stored = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    stored[name] = {
        part: {path: float(f"{value:.5g}") for path, value in values.items()}
        for part, values in found.items()
    }
    rows = (
        f"{json.dumps(row)}: {{\n"
        + ",\n".join(f"{json.dumps(part)}: {json.dumps(one)}" for part, one in parts.items())
        + "\n}"
        for row, parts in sorted(stored.items())
    )
    EXPECTED.write_text("{\n" + ",\n".join(rows) + "\n}\n")


LEARNING = [name for name, row in RUNS.items() if row.data and row.tunes]


@of_rows(*LEARNING)
def test_it_learns(trained):
    """More than a constant knows."""
    data = trained.row.data()
    if "labels" in data:
        constant = np.bincount(data["labels"]).max() / len(data["labels"])
        assert names.number(trained.result, "accuracy") > constant + 0.1
    elif data["targets"].ndim == 1:
        assert names.number(trained.result, "rmse") < 0.95 * np.std(data["targets"])


# Interruption, growth, devices and failures.


class Stop:
    """Asks a run to stop when it has got so far, once."""

    def __init__(self):
        self.at = math.inf

    def __call__(self, step, metrics):
        if step >= self.at:
            self.at = math.inf
            signal.raise_signal(signal.SIGTERM)


stop = Stop()


@of_rows(
    *QUICK,
    "deep_ensemble normalised",
    "deep_ensemble early",
    "snapshot_ensemble",
    "swag",
    "kfold_bagging",
    "laplace",
    "nuts",
    "mclmc",
    "parallel_tempering",
    "sghmc",
    "rwm",
)
def test_a_run_that_is_stopped_goes_on_to_the_same_bits(trained):
    steps = [line["step"] for line in names.metrics(trained.workdir)]
    stop.at = steps[len(steps) // 3]
    keys = names.on_metrics(stop)
    with pytest.raises(names.Interrupted):
        trained.again("stopped", **keys)
    workdir = trained.folder / "stopped"
    assert not names.file(workdir, "results.json").exists()
    trained.again("stopped", **keys)
    assert numbers_of(names.report(workdir)) == numbers_of(names.report(trained.workdir))
    assert metrics_of(workdir) == metrics_of(trained.workdir)
    if trained.row.data is None:
        return
    found = names.stored(workdir)
    expected = names.stored(trained.workdir)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@of_rows(
    *QUICK,
    "deep_ensemble normalised",
    "deep_ensemble cnn",
    "deep_ensemble early",
    "hyper_ensemble",
    "swag",
    "batch_ensemble",
    "snapshot_ensemble",
    "sghmc",
)
def test_a_run_that_grows_is_the_larger_run(trained, request):
    """By members that join it, on other devices too, or by draws that are added."""
    workdir = trained.folder / "grown"
    if trained.row.of_chains:
        name = next(key for key in trained.row.keys if key.endswith("num_samples"))
        trained.again("grown", **{name: trained.row.keys[name] // 2})
        trained.again("grown")
    else:
        shutil.copytree(request.getfixturevalue("small"), workdir)
        trained.again("grown", num_devices=4)
    assert names.active_members(names.report(workdir)) == [0, 1, 2, 3, 4]
    grown, larger = (
        {tag for line in metrics_of(one) for tag in line} for one in (workdir, trained.workdir)
    )
    assert grown >= larger
    atol = 1e-4 if trained.row.of_chains else 1e-3
    assert_same(said(workdir, trained.row), said(trained.workdir, trained.row), atol)


@pytest.mark.check
@of_rows(*QUICK, "kfold_bagging", "laplace", "sghmc")
def test_the_number_of_devices_changes_nothing(trained):
    """Of members what they predict; of chains their first steps, before rounding has grown."""
    if not trained.row.of_chains:
        trained.again("devices_4", num_devices=4)
        moved = trained.folder / "devices_4"
        assert_same(said(moved, trained.row), said(trained.workdir, trained.row), atol=1e-3)
        return
    found = []
    for number in (4, 2):
        workdir = trained.folder / f"devices_{number}"
        trained.again(workdir.name, num_devices=number, log_every_steps=1)
        found.append(numbers_of(max(metrics_of(workdir)[:4], key=len)))
    first, expected = found
    assert len(first) > 5
    assert first == pytest.approx(expected, rel=1e-2, abs=1e-3)


@of_rows("deep_ensemble", "swag", "kfold_bagging", "batch_ensemble")
def test_a_member_that_is_nan_leaves_the_others_as_they_are(trained):
    report = trained.again("poisoned", is_poisoned=True).report
    failed = names.failed_members(report)
    alive = names.active_members(report)
    assert failed
    assert sorted(failed + alive) == [0, 1, 2, 3, 4]
    predictions = said(trained.folder / "poisoned", trained.row)
    assert all(np.isfinite(values).all() for values in predictions.values())
    every, found = (names.of_members(one, "nll") for one in (trained.result, report))
    # Of k-fold bagging the rows that all members hold out say when they stop.
    rtol = 0.1 if trained.row.keys["method"] == "kfold_bagging" else 1e-3
    np.testing.assert_allclose(found, [every[k] for k in alive], rtol=rtol)


# Use.


@of_rows(
    *QUICK,
    "deep_ensemble normalised",
    "deep_ensemble numbers",
    "deep_ensemble several",
    "deep_ensemble cnn",
    "hyper_ensemble",
    "mc_dropout",
    "batch_ensemble",
    "packed_ensemble",
    "laplace closed",
)
def test_what_is_loaded_and_exported_predicts_what_was_trained(trained, tmp_path):
    inputs = trained.row.data()["inputs"][:9]
    expected = names.arrays(trained.result.predictor(inputs))
    assert_same(said(trained.workdir, trained.row), expected, atol=1e-5)
    out = tmp_path / "model.bin"
    done = run_here(*names.command("export"), *names.flags(workdir=trained.workdir, out=out))
    assert done.returncode == 0, done.stderr
    exported = jax.export.deserialize(bytearray(out.read_bytes())).call(inputs)
    name = "probs" if "probs" in expected else "quantiles"
    scale = np.abs(expected[name]).max()
    np.testing.assert_allclose(exported[name] / scale, expected[name] / scale, atol=1e-4)
