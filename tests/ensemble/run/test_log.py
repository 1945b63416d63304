"""`metrics.jsonl` and events: appended, cut back on resume, on local and remote places."""

import json
import math

import numpy as np

from ensemble.run.log import Log
from ensemble.storage.files import write_file
from ensemble.storage.manifest import to_json
from ensemble.storage.workdir import read_metrics


def lines(work):
    return [json.loads(line) for line in work.metrics.read_text().splitlines()]


def test_what_was_written_after_a_checkpoint_is_cut_off(work):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    work.new_members.mkdir()
    work.events.mkdir()
    other = Log(work.of_new_members(4, 5))
    other.scalars(1, {"c/d": 0.5})
    other.close()
    for first, values in [(1, (0.5, 0.25)), (2, (0.125,)), (2, (0.75,))]:  # Killed twice.
        log = Log(work, purge_step=first)
        for step, value in enumerate(values, first):
            log.scalars(step, {"a/b": value})
        log.close()
    assert lines(work) == [{"step": 1, "a/b": 0.5}, {"step": 2, "a/b": 0.75}]
    events = EventAccumulator(str(work.events))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("a/b")] == [(1, 0.5), (2, 0.75)]
    assert len(list(work.events.glob("members_04-05/run*"))) == 1


def test_other_processes_than_the_main_one_write_nothing(work):
    log = Log(work, on_metrics="json:dumps", is_main=False)
    log.scalars(1, {"a": 0.5})
    log.event(1, "histogram", "numbers", np.arange(4.0), "auto")
    log.close()
    assert not work.metrics.exists()
    assert not work.events.exists()


def test_a_run_that_nobody_keeps_has_no_events(work):
    log = Log(work, has_events=False)
    log.describe({"seed": 0}, ["a"], {})
    log.scalars(1, {"a": 0.5})
    log.event(1, "histogram", "weights", np.arange(4.0), "auto")
    log.close()
    assert lines(work) == [{"step": 1, "a": 0.5}]
    assert not work.events.exists()


def test_what_is_not_finite_is_null_and_comes_back_as_nan(work, caplog):
    log = Log(work)
    log.scalars(3, {"a": math.inf, "b": math.nan, "c": 1.0})
    log.close()
    assert lines(work) == [{"step": 3, "a": None, "b": None, "c": 1.0}]
    assert not caplog.records, "tensorboardX would warn of each"
    record = read_metrics(work.metrics)[0]
    assert math.isnan(record["a"])
    assert record["c"] == 1.0


def test_damaged_lines_are_left_out(work):
    damaged = [
        "[1]",
        '{"step": 1e999}',
        "[" * 9999,
        "x",
    ]
    work.metrics.write_text("".join(f"{line}\n" for line in [*damaged, '{"step": 2}']))
    assert read_metrics(work.metrics) == [{"step": 2}]


def test_json_holds_no_infinity(work):
    content = {"nll": math.inf, "x": [math.nan, 1], "y": {2: (3,)}}
    write_file(work.report, to_json(content))
    assert json.loads(work.report.read_text()) == {
        "nll": None,
        "x": [None, 1],
        "y": {"2": [3]},
    }


def test_an_object_store_gets_whole_files(bucket, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert bucket.is_remote
    with bucket.opened():
        killed = Log(bucket)
        killed.scalars(1, {"a/b": 0.5})
        killed.flush()
        killed.scalars(2, {"a/b": 0.25})  # Nothing of this has left the process.
        log = Log(bucket, purge_step=2)
        log.scalars(2, {"a/b": 0.75})
        log.close()
    assert [one["a/b"] for one in lines(bucket)] == [0.5, 0.75]
    for path in bucket.events.glob("run.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("a/b")] == [(1, 0.5), (2, 0.75)]
    killed.close()  # Only to be tidy.
