"""TensorBoard's events, read back: what its pages show of a run."""

import io

import names
import numpy as np
import pytest
from PIL import Image
from small import train

loader = pytest.importorskip(
    "tensorboard.backend.event_processing.event_file_loader",
    reason="tensorboard is not installed: event files were NOT read back",
)
tensor_util = pytest.importorskip("tensorboard.util.tensor_util")

pytestmark = pytest.mark.check


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The workdir of a run on pictures, and its events: (step, summary value)."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 120)
    noise = rng.integers(0, 60, (120, 6, 6, 1)) + 90 * labels[:, None, None, None]
    workdir = tmp_path_factory.mktemp("events") / "run"
    values = {"num_epochs": 3, "log_every_steps": 2}
    train(values, {"inputs": noise.astype(np.uint8), "labels": labels}, workdir)
    events = [
        (event.step, value)
        for path in sorted(names.file(workdir, "events").glob("*tfevents*"))
        for event in loader.EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]
    return workdir, events


def of_plugin(events, name):
    """Steps and tensors by tag, of one plugin."""
    found = {}
    plugins = {}
    for step, value in events:
        plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
        if plugins[value.tag] == name:
            found.setdefault(value.tag, []).append((step, tensor_util.make_ndarray(value.tensor)))
    return found


def test_scalars_are_those_of_the_metrics_file(run):
    workdir, events = run
    scalars = of_plugin(events, "scalars")
    written = {}
    for line in names.metrics(workdir):
        for tag, value in line.items():
            if "/" in tag:
                written.setdefault(tag, []).append((line["step"], value))
    assert {"train/member_00/loss", "validation/member_01/nll", "validation/ensemble/nll"} <= (
        scalars.keys() & written.keys()
    )
    for tag in written.keys() & scalars.keys():
        assert [step for step, _ in scalars[tag]] == [step for step, _ in written[tag]]
        np.testing.assert_allclose(
            [value for _, value in scalars[tag]], [value for _, value in written[tag]], rtol=1e-6
        )


def test_images_are_whole_pictures(run):
    images = of_plugin(run[1], "images")
    assert "validation/calibration" in images
    for shown in images.values():
        width, height, content = shown[-1][1][:3]
        picture = Image.open(io.BytesIO(content))
        picture.load()
        assert picture.size == (int(width), int(height))
        assert min(picture.size) > 100
        assert len(picture.convert("RGB").getcolors(picture.width * picture.height)) > 10


def test_a_histogram_of_uncertainty_counts_every_validation_example(run):
    workdir, events = run
    count = len(names.stored(workdir, "validation")["targets"])
    for _, buckets in of_plugin(events, "histograms")["validation/uncertainty"]:
        assert buckets[:, 2].sum() == count
        assert buckets[0, 0] >= 0
        assert buckets[-1, 1] <= np.log(3) + 1e-6  # Nats, of three classes.


def test_the_table_of_runs_has_values_and_scores(run):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    found = {}
    for _, value in run[1]:
        data = value.metadata.plugin_data
        if data.plugin_name == "hparams":
            message = HParamsPluginData.FromString(data.content)
            found[message.WhichOneof("data")] = message
    values = found["session_start_info"].session_start_info.hparams
    assert values["learning_rate"].number_value == pytest.approx(0.1)
    assert values["ensemble_size"].number_value == 2
    shown = {one.name.tag for one in found["experiment"].experiment.metric_infos}
    assert {f"validation/ensemble/{name}" for name in ("accuracy", "nll", "ece")} <= shown


def test_curves_of_all_members_lie_in_one_chart(run):
    from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

    (tag,) = of_plugin(run[1], "custom_scalars")
    layout = Layout.FromString(of_plugin(run[1], "custom_scalars")[tag][-1][1].item())
    charts = [chart.title for chart in layout.category[0].chart]
    assert charts[0] == "training loss"
    assert "validation nll" in charts
