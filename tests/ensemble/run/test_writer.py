"""`metrics.jsonl` and events: appended, cut back on resume, on local and remote places."""

import json
import math

import numpy as np

from ensemble.run.writer import Writer
from ensemble.storage.files import write_file
from ensemble.storage.metrics_log import read_metrics
from ensemble.storage.schema import to_json


def lines(work):
    return [json.loads(line) for line in work.metrics.read_text().splitlines()]


def test_what_was_written_after_a_checkpoint_is_cut_off(work):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = Writer(work)
    writer.scalars(1, {"a/b": 0.5})
    writer.record({"step": 1, "c/d": 0.5})
    work.new_members.mkdir()
    other = Writer(work.of_new_members(4, 5))
    other.scalars(1, {"c/d": 0.5})
    other.close()
    sizes = writer.sizes()
    writer.scalars(2, {"a/b": 0.25})
    writer.close()
    killed = Writer(work, sizes, purge_step=2)  # Killed before its next checkpoint.
    killed.scalars(2, {"a/b": 0.125})
    killed.close()
    resumed = Writer(work, sizes, purge_step=2)
    resumed.scalars(2, {"a/b": 0.75})
    resumed.close()
    assert [r.get("a/b") for r in lines(work)] == [0.5, None, 0.75]
    events = EventAccumulator(str(work.events))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("a/b")] == [(1, 0.5), (2, 0.75)]
    assert len(list(work.events.glob("run*"))) == 2
    assert len(list(work.events.glob("members_04-05/run*"))) == 1


def test_without_a_checkpoint_everything_starts_afresh(work):
    for value in (1.0, 2.0):
        writer = Writer(work)
        writer.scalars(1, {"a": value})
        writer.close()
    assert lines(work) == [{"step": 1, "a": 2.0}]
    assert len(list(work.events.glob("run*"))) == 1


def test_a_run_that_nobody_keeps_has_no_events(work):
    writer = Writer(work, has_events=False)
    writer.hparams({"seed": 0}, ["a"])
    writer.scalars(1, {"a": 0.5})
    writer.image(1, "picture", np.zeros((2, 2, 3), np.uint8))
    writer.histogram(1, "weights", np.arange(4.0))
    writer.close()
    assert lines(work) == [{"step": 1, "a": 0.5}]
    assert not work.events.exists()


def test_what_is_not_finite_is_null_and_comes_back_as_nan(work, caplog):
    writer = Writer(work)
    writer.scalars(3, {"a": math.inf, "b": math.nan, "c": 1.0})
    writer.close()
    assert lines(work) == [{"step": 3, "a": None, "b": None, "c": 1.0}]
    assert not caplog.records, "tensorboardX would warn of each"
    record = read_metrics(work.metrics)[0]
    assert math.isnan(record["a"])
    assert record["c"] == 1.0


def test_json_holds_no_infinity(work):
    content = {"nll": math.inf, "x": [math.nan, 1], "y": {2: (3,)}}
    write_file(work.report, to_json(content))
    assert json.loads(work.report.read_text()) == {
        "nll": None,
        "x": [None, 1],
        "y": {"2": [3]},
    }


def test_images_and_histograms_reach_tensorboard(work):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = Writer(work)
    image = np.zeros((4, 6, 3), np.uint8)
    image[0, 0] = 255
    writer.image(7, "picture", image)
    writer.histogram(7, "numbers", np.arange(100.0))
    writer.histogram(7, "alike", np.array([3e17, 3e17, 3e17 + 64]))
    writer.close()
    events = EventAccumulator(str(work.events))
    events.Reload()
    (shown,) = events.Images("picture")
    assert (shown.step, shown.width, shown.height) == (7, 6, 4)
    assert events.Histograms("numbers")[0].histogram_value.num == 100


def test_hparams_reach_the_table_of_runs_and_none_stays_empty(work):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    writer = Writer(work)
    hparams = {"learning_rate": 0.1, "name": "x", "none": None, "flip": True, "shape": [1, 2]}
    writer.hparams(hparams, ["a/b"])
    writer.close()
    events = EventAccumulator(str(work.events))
    events.Reload()
    content = {tag: m.plugin_data.content for tag, m in events.summary_metadata.items()}
    experiment = metadata.parse_experiment_plugin_data(content[metadata.EXPERIMENT_TAG])
    assert [info.name for info in experiment.hparam_infos] == list(hparams)
    assert [i.name for i in experiment.hparam_infos if i.differs] == ["learning_rate"]
    assert [info.name.tag for info in experiment.metric_infos] == ["a/b"]
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
    assert set(start.hparams) == set(hparams) - {"none"}
    assert start.hparams["learning_rate"].number_value == 0.1
    assert start.hparams["flip"].bool_value
    assert start.hparams["shape"].string_value == "[1, 2]"


def test_charts_reach_the_layout_of_tensorboard(work):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata

    writer = Writer(work)
    writer.charts({})
    assert not work.events.exists()
    writer.charts({"loss": "train/member_[0-9]+/loss"})
    writer.close()
    events = EventAccumulator(str(work.events))
    events.Reload()
    (event,) = events.Tensors(metadata.CONFIG_SUMMARY_TAG)
    plugin = events.SummaryMetadata(metadata.CONFIG_SUMMARY_TAG).plugin_data.plugin_name
    assert plugin == metadata.PLUGIN_NAME
    (category,) = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0]).category
    (chart,) = category.chart
    assert chart.title == "loss"
    assert chart.multiline.tag == ["train/member_[0-9]+/loss$"]


def test_an_object_store_gets_whole_files(bucket, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert bucket.is_remote
    with bucket.opened():
        killed = Writer(bucket)
        killed.scalars(1, {"a/b": 0.5})
        sizes = killed.sizes()
        killed.scalars(2, {"a/b": 0.25})  # Nothing of this has left the process.
        writer = Writer(bucket, sizes, purge_step=2)
        writer.scalars(2, {"a/b": 0.75})
        writer.record({"step": 2, "c/d": 0.75})
        writer.close()
    assert [r.get("a/b") for r in lines(bucket)] == [0.5, 0.75, None]
    for path in bucket.events.glob("run.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("a/b")] == [(1, 0.5), (2, 0.75)]
    killed.close()  # Only to be tidy.
