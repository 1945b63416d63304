"""Writers of users: they get what `metrics.jsonl` has, and cannot end a run."""

import json
import logging
import os
import signal

import pytest
from conftest import make_blobs, small_config
from run_parts import validated

import ensemble
from ensemble import RunFailed, UserError, registry
from ensemble.run.own_writers import OwnWriter, open_own_writers
from ensemble.sharding import processes
from ensemble.testing.writers import PROMISES, WriterCase

QUIET = {"show_progress": False}


@pytest.fixture(autouse=True)
def only_ours(monkeypatch):
    """What a test registers is there in the test alone."""
    monkeypatch.setattr(registry.WRITERS, "registered", {})


class Kept:
    """A writer that keeps what it is told."""

    all: list["Kept"]

    def __init__(self, config, workdir, step):
        self.config, self.workdir, self.step = config, workdir, step
        self.rows, self.num_closed = [], 0
        type(self).all.append(self)

    def __call__(self, step, metrics):
        assert not self.num_closed
        self.rows.append((step, metrics))

    def close(self):
        self.num_closed += 1


@pytest.fixture
def kept(monkeypatch):
    monkeypatch.setattr(Kept, "all", [], raising=False)
    ensemble.register("writer", "kept", registry.WriterEntry(Kept))
    return Kept.all


def rows_of(workdir):
    """What `metrics.jsonl` has: steps, and floats by name."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [(line.pop("step"), line) for line in lines]


@pytest.mark.check
def test_it_gets_what_metrics_jsonl_has_and_is_closed_once(kept, tmp_path):
    ensemble.train(small_config(writers="kept"), make_blobs(), str(tmp_path), **QUIET)
    (writer,) = kept
    assert (writer.workdir, writer.step, writer.num_closed) == (str(tmp_path), 0, 1)
    assert writer.config.ensemble_size == 4
    assert writer.rows == rows_of(tmp_path)
    assert {type(one) for _, metrics in writer.rows for one in metrics.values()} == {float}
    assert {"epoch", "train/member_03/loss", "validation/ensemble/nll"} <= {
        name for _, metrics in writer.rows for name in metrics
    }


@pytest.mark.parametrize("promise", PROMISES, ids=str)
def test_it_keeps(kept, promise):
    promise.keep(WriterCase("kept"))


@pytest.mark.check
def test_it_is_told_from_which_step_a_run_goes_on(kept, tmp_path):
    config = small_config(writers="kept", num_epochs=2)
    ensemble.train(config, make_blobs(), str(tmp_path), **QUIET)
    ensemble.train({**config, "num_epochs": 4}, make_blobs(), str(tmp_path), **QUIET)
    first, second = kept
    assert second.step == first.rows[-1][0]
    assert min(step for step, _ in second.rows) > second.step
    assert first.rows + second.rows == rows_of(tmp_path)


@pytest.mark.check
def test_writers_may_come_and_go_and_there_may_be_several(kept, tmp_path):
    steps = []
    entry = registry.WriterEntry(lambda config, workdir, step: lambda step, _: steps.append(step))
    ensemble.register("writer", "steps", entry)
    config = small_config(num_epochs=2)
    ensemble.train(config, make_blobs(), str(tmp_path), **QUIET)
    both = {**config, "num_epochs": 3, "writers": "kept, steps"}
    ensemble.train(both, make_blobs(), str(tmp_path), **QUIET)
    assert [step for step, _ in kept[0].rows] == steps
    assert steps
    registry.WRITERS.registered.clear()
    assert len(ensemble.load(tmp_path).members) == 4, "what predicts needs no writers"


def test_without_a_workdir_there_is_no_path(kept):
    ensemble.train(small_config(writers="kept", num_epochs=1), make_blobs(), **QUIET)
    assert kept[0].workdir is None


@pytest.mark.check
def test_members_that_join_are_written_when_they_are_level(kept, tmp_path):
    config = small_config(writers="kept", num_epochs=2, batching="independent")
    few = {**config, "ensemble_size": 2}
    ensemble.train(few, make_blobs(), str(tmp_path), **QUIET)
    ensemble.train({**config, "num_epochs": 3}, make_blobs(), str(tmp_path), **QUIET)
    first, second = kept
    assert second.step == first.rows[-1][0]
    assert min(step for step, _ in second.rows) > second.step
    assert "train/member_03/loss" in second.rows[0][1]


@pytest.mark.check
@pytest.mark.parametrize("by_signal", [False, True])
def test_it_is_closed_where_a_run_fails_or_is_interrupted(kept, monkeypatch, tmp_path, by_signal):
    config = small_config(writers="kept")
    if by_signal:
        monkeypatch.setattr(Kept, "__call__", lambda self, *_: stop())
        expected: type[BaseException] = ensemble.Interrupted
    else:
        config |= {"model": "explosive", "learning_rate": 1e9, "on_nonfinite": "stop"}
        expected = RunFailed
    with pytest.raises(expected):
        ensemble.train(config, make_blobs(), str(tmp_path), **QUIET)
    assert [one.num_closed for one in kept] == [1]


def stop():
    """As SIGTERM does."""
    os.kill(os.getpid(), signal.SIGTERM)


class Fails(Kept):
    """A writer that fails when it is called a second time, and may fail when it is closed."""

    fails_to_close = False

    def __call__(self, step, metrics):
        super().__call__(step, metrics)
        if len(self.rows) == 2:
            raise OSError("no space left")

    def close(self):
        super().close()
        if self.fails_to_close:
            raise RuntimeError("nothing to close")


@pytest.mark.check
@pytest.mark.parametrize("fails_to_close", [False, True])
def test_one_that_fails_is_named_once_and_called_no_more(
    kept, monkeypatch, caplog, tmp_path, fails_to_close
):
    monkeypatch.setattr(Fails, "fails_to_close", fails_to_close)
    ensemble.register("writer", "mine", registry.WriterEntry(Fails))
    config = small_config(writers="mine,kept")
    with caplog.at_level(logging.WARNING, "ensemble"):
        found = ensemble.train(config, make_blobs(), str(tmp_path), **QUIET)
    fails, whole = kept
    assert (len(fails.rows), fails.num_closed) == (2, 1)
    assert whole.rows == rows_of(tmp_path)
    (line,) = [one for one in found.report["notes"] if "writer" in one]
    assert line.startswith("The writer 'mine' failed at ")
    assert line.endswith(
        f"(OSError: no space left) at step {fails.rows[1][0]}; it is called no more."
    )
    assert [one for one in caplog.messages if "writer" in one] == [line]


def test_one_that_fails_to_close_is_named(kept, monkeypatch):
    monkeypatch.setattr(Kept, "close", lambda self: 1 / 0)
    found = ensemble.train(small_config(writers="kept", num_epochs=1), make_blobs(), **QUIET)
    (line,) = [one for one in found.report["notes"] if "writer" in one]
    assert "(ZeroDivisionError: division by zero) when the run ended" in line


BAD = {
    "makes a number": (lambda *_: 5, "made no writer: its factory must return a function of a st"),
    "makes nothing": (lambda *_: None, "made no writer"),
    "other arguments": (
        lambda config: print,
        r"failed \(TypeError.*ensemble\.entries\.WriterEntry says",
    ),
    "an error": (lambda *_: 1 / 0, r"failed at .*py:\d+ \(ZeroDivisionError"),
    "no factory": (5, "failed .*'int' object is not callable"),
    "no module": ("not_there:AT_ALL", "cannot be loaded: importing not_there:AT_ALL failed"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_factory_is_one_line(kept, name):
    factory, line = BAD[name]
    ensemble.register("writer", "mine", registry.WriterEntry(factory))
    with pytest.raises(UserError, match=f"^the writer 'mine' .*{line}") as found:
        ensemble.train(small_config(writers="kept,mine"), make_blobs(), **QUIET)
    assert "\n" not in str(found.value)
    assert [(one.rows, one.num_closed) for one in kept] in ([], [([], 1)])


@pytest.mark.parametrize(
    ("writers", "line"),
    [
        ("kept,mlflow", "has 'mlflow', which is no writer; register it, or choose from kept$"),
        (["kept"], "is written as text: 'kept'"),
        (3, "has the wrong type int; it must be text"),
    ],
)
def test_a_name_of_none_is_one_line(kept, tmp_path, writers, line):
    with pytest.raises(UserError, match=line):
        ensemble.train(small_config(writers=writers), make_blobs(), str(tmp_path / "a"), **QUIET)
    assert not kept
    assert not (tmp_path / "a").exists()


def test_the_main_process_alone_has_it(kept, monkeypatch):
    config = small_config(writers="kept")
    monkeypatch.setattr(processes, "from_main", lambda value: None)  # As in another process.
    with open_own_writers(validated(config), None, 0) as writers:
        assert not writers
    assert not kept


def test_what_is_not_finite_is_a_float(kept):
    writer = OwnWriter("kept", validated(small_config()), None, 0)
    writer.scalars(3, {"a": float("inf"), "b": 2})
    assert kept[0].rows == [(3, {"a": float("inf"), "b": 2.0})]
