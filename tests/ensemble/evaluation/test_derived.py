"""Inputs of an evaluation are read and made in pieces: no split is held in memory."""

import errno
import json
import logging
import subprocess
import sys
import types

import numpy as np
import pytest
from conftest import ROOT, small_config
from etils import epath
from programs import PEAK

import ensemble
from ensemble import UserError
from ensemble.evaluation import derived
from ensemble.evaluation.subject import Subject
from ensemble.sources.own_arrays import OwnData
from ensemble.sources.records.conversion import write_records

MEASURE = (
    PEAK
    + """
import json, sys
from etils import epath
from ensemble.evaluation import derived
from ensemble.evaluation.subject import Subject

workdir, other, out = sys.argv[1:]
subject = Subject(workdir, num_devices=1)
sets = derived.plan(subject, ["constant", "shift", "uniform", other])
warm = [one for one in sets if one.name == "constant"]
large = [one for one in sets if one.name in ("shift/noise/1", "shift/rotation/3", "uniform", other)]
found = [len(sets), len(large)]
for some in (warm, large):
    derived.predict(subject, some, epath.Path(out), show_progress=False)
    found.append(peak_bytes())
print(json.dumps(found))
"""
)

PREDICT = (
    PEAK
    + """
import sys
from etils import epath
from ensemble.commands.predict import write_answers

workdir, data, out = sys.argv[1:]
count = write_answers(workdir, [data], epath.Path(out))
print(count, peak_bytes())
"""
)


class Grey:
    """Pictures [N, 64, 64, 1] that are nowhere: the n-th has the value n modulo 256."""

    dtype = np.dtype(np.uint8)

    def __init__(self, count):
        self.shape = (count, 64, 64, 1)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, where):
        values = np.arange(*where.indices(len(self))).astype(np.uint8)
        return np.broadcast_to(values[:, None, None, None], (len(values), *self.shape[1:]))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A workdir."""
    workdir = str(tmp_path_factory.mktemp("derived") / "run")
    config = small_config(model="mlp", num_epochs=1, ensemble_size=2, dataset="digits")
    ensemble.train(config, workdir=workdir, show_progress=False)
    return workdir


def _write(folder, **counts):
    inputs = {split: Grey(count) for split, count in counts.items()}
    targets = {split: np.arange(n, dtype=np.int32) % 256 // 128 for split, n in counts.items()}
    write_records(OwnData(inputs, targets, Grey.dtype, ("dark", "bright")), folder)
    return f"records:{folder}"


@pytest.mark.check
def test_too_many_predictions_are_refused(trained, tmp_path, monkeypatch):
    subject = Subject(trained, num_devices=1)
    (one,) = derived.plan(subject, ["constant"])
    assert subject.test is not None  # Read before the memory shrinks.
    monkeypatch.setattr(derived, "max_bytes", lambda: 1000)
    with pytest.raises(UserError, match=r"of constant take .* 1,000 are allowed"):
        derived.predict(subject, [one], epath.Path(tmp_path), show_progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.check
def test_predictions_are_mapped_from_their_files(trained, tmp_path):
    subject = Subject(trained, num_devices=1)
    sets = [one for one in derived.plan(subject, ["uniform", "shift"]) if one.name != "shift"][:3]
    directory = epath.Path(tmp_path)
    found = derived.predict(subject, sets, directory, show_progress=False)
    assert {file.suffix for file in tmp_path.iterdir()} == {".npz"}
    for one in sets:
        whole = subject.predict(one.make()[:]).arrays
        for name, array in found[one.name].arrays.items():
            assert isinstance(array.base, np.memmap)
            np.testing.assert_array_equal(array, whole[name])


@pytest.mark.check
def test_a_kill_leaves_nothing_of_predictions_that_are_not_whole(trained, tmp_path, monkeypatch):
    """What a kill would leave is looked at after the last prediction, and before it is kept."""
    found = []

    def write(path, predictions, *_, **__):
        assert all(isinstance(one, np.memmap) for one in predictions.arrays.values())
        found.append([one.name for one in tmp_path.rglob("*")])
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(derived, "write_arrays", write)
    subject = Subject(trained, num_devices=1)
    sets = derived.plan(subject, ["uniform"])[:1]
    with pytest.raises(UserError, match="no space"):
        derived.predict(subject, sets, epath.Path(tmp_path), show_progress=False)
    assert found == [[]]


def _run(program, *arguments):
    """The last line of what it prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.soak
def test_no_split_is_held_in_memory(tmp_path):
    data = _write(tmp_path / "data", train=300, validation=100, test=120_000)
    other = _write(tmp_path / "other", train=120_000)
    config = {"dataset": data, "model": "mlp", "mlp.widths": "8", "ensemble_size": 2}
    config |= {"num_steps": 5, "batch_size": 64, "num_devices": 1}
    ensemble.train(config, workdir=str(tmp_path / "run"), show_progress=False)
    done = _run(MEASURE, tmp_path / "run", other, tmp_path / "out")
    num_sets, num_large, warm, most = json.loads(done)
    assert (num_sets, num_large) == (28, 4)
    num_bytes = 120_000 * 64 * 64  # A third is above what does not grow with them.
    assert most - warm < num_bytes / 3
    new = tmp_path / "new.jsonl"
    count, of_predict = map(int, _run(PREDICT, tmp_path / "run", data, new).split())
    assert count == 120_400
    assert len(new.read_text().splitlines()) == count
    assert of_predict - warm < num_bytes / 3


def test_a_damaged_set_is_left_out_unless_it_is_asked_for(monkeypatch, caplog):
    evaluator = types.SimpleNamespace(predicts_test_again=lambda subject: False)
    subject = types.SimpleNamespace(dataset=object(), evaluator=evaluator)

    def sets(subject, name):
        if name == "mnist":
            raise UserError("a shard is damaged")
        return [derived.DerivedSet(name, name, 1, lambda: np.zeros(1))]

    monkeypatch.setattr(derived, "_sets", sets)
    monkeypatch.setattr(derived, "_default_names", lambda subject: ["mnist", "constant"])
    with caplog.at_level(logging.WARNING):
        assert [one.name for one in derived.plan(subject, None)] == ["constant"]
    assert caplog.messages == ["mnist is left out of the other data: a shard is damaged"]
    with pytest.raises(UserError, match="a shard is damaged"):
        derived.plan(subject, ["constant", "mnist"])
