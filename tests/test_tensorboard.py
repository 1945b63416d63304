"""The real TensorBoard on real workdirs: what its endpoints answer, what a browser shows."""

import io
import json
import time
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pytest
from conftest import small_config
from PIL import Image

import ensemble
from scripts.browser import open_page, require_browser
from scripts.draw_pictures import draw_tensorboard, serving

pytestmark = pytest.mark.check

PATIENCE = 60  # Seconds; a busy machine needs a few.
RUNS = ["fast/events", "slow/events"]
METRICS = [f"validation/ensemble/{name}" for name in ("accuracy", "nll", "ece")]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of two workdirs, of runs on images that differ in two values."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 120)
    noise = rng.integers(0, 60, (120, 6, 6, 1))
    data = {"inputs": (noise + 90 * labels[:, None, None, None]).astype(np.uint8), "labels": labels}
    folder = tmp_path_factory.mktemp("runs")
    for name, overrides in (
        ("fast", {}),
        ("slow", {"learning_rate": 0.01, "num_devices": None, "ensemble_size": 2}),
    ):
        config = small_config(plot_every_epochs=1, **overrides)
        ensemble.train(config, data, str(folder / name))
    return folder


@pytest.fixture(scope="session")
def server(folder):
    with serving(folder) as url:
        eventually(lambda: ask(f"{url}/data/runs") == RUNS)
        eventually(lambda: set(ask(f"{url}/data/plugin/histograms/tags")) == set(RUNS))
        yield url


def ask(url, **query):
    """What an endpoint answers, from JSON; `post=` sends that as JSON."""
    body = query.pop("post", None)
    if query:
        url += "?" + urllib.parse.urlencode(query)
    content = fetch(url, None if body is None else json.dumps(body).encode())
    return json.loads(content)


def fetch(url, body=None):
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    # 127.0.0.1 is asked directly, whatever proxy the environment names.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=PATIENCE) as response:
        return response.read()


def eventually(condition):
    """Waits until a condition holds: TensorBoard answers before it has read everything."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "TensorBoard has not shown it in time"
        time.sleep(0.2)


def session_groups(server, sort_by="learning_rate"):
    """The rows of the table of runs."""
    return ask(
        f"{server}/data/plugin/hparams/session_groups",
        post={
            "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_RUNNING"],
            "colParams": [{"hparam": sort_by, "order": "ORDER_ASC"}],
            "startIndex": 0,
            "sliceSize": 10,
        },
    )["sessionGroups"]


def test_scalars_are_those_of_the_metrics_file(server, folder):
    tags = ask(f"{server}/data/plugin/scalars/tags")
    assert set(tags) == set(RUNS)
    for run in RUNS:
        assert {"train/member_00/loss", "validation/member_01/nll", *METRICS} <= set(tags[run])
        tag = "validation/ensemble/nll"
        shown = ask(f"{server}/data/plugin/scalars/scalars", run=run, tag=tag)
        lines = (folder / run.split("/")[0] / "metrics.jsonl").read_text().splitlines()
        written = [(r["step"], r[tag]) for r in map(json.loads, lines) if tag in r]
        assert len(written) == 3
        assert [step for _, step, _ in shown] == [step for step, _ in written]
        np.testing.assert_allclose([v for *_, v in shown], [v for _, v in written], rtol=1e-6)


def test_curves_of_all_members_lie_in_one_chart(server):
    eventually(lambda: ask(f"{server}/data/plugin/custom_scalars/layout"))
    (category,) = ask(f"{server}/data/plugin/custom_scalars/layout")["category"]
    charts = {one["title"]: one["multiline"]["tag"] for one in category["chart"]}
    scores = [f"validation {name}" for name in ("accuracy", "nll", "brier", "ece")]
    assert list(charts) == ["training loss", *scores]
    for run, num_members in zip(RUNS, (4, 2), strict=True):
        members = [f"member_{k:02d}" for k in range(num_members)]
        for title, names in (("training loss", members), (scores[1], [*members, "ensemble"])):
            split, score = ("train", "loss") if title == "training loss" else title.split()
            (tag,) = charts[title]
            shown = ask(f"{server}/data/plugin/custom_scalars/scalars", run=run, tag=tag)
            assert shown["regex_valid"]
            assert set(shown["tag_to_events"]) == {f"{split}/{name}/{score}" for name in names}
            assert all(map(len, shown["tag_to_events"].values()))


def test_images_are_whole_pictures(server):
    tags = ask(f"{server}/data/plugin/images/tags")
    for run in RUNS:
        assert set(tags[run]) == {"validation/reliability", "validation/uncertain"}
        for tag in tags[run]:
            shown = ask(f"{server}/data/plugin/images/images", run=run, tag=tag, sample=0)
            assert len(shown) == 3
            content = fetch(f"{server}/data/plugin/images/individualImage?{shown[-1]['query']}")
            picture = Image.open(io.BytesIO(content))
            picture.load()
            assert picture.format == "PNG"
            assert min(picture.size) > 100
            assert len(picture.convert("RGB").getcolors(picture.width * picture.height)) > 10


def test_histograms_of_entropy_count_every_validation_example(server, folder):
    tag = "validation/entropy"
    for run in RUNS:
        assert list(ask(f"{server}/data/plugin/histograms/tags")[run]) == [tag]
        shown = ask(f"{server}/data/plugin/histograms/histograms", run=run, tag=tag)
        assert len(shown) == 3
        count = len(
            np.load(folder / run.split("/")[0] / "predictions" / "validation.npz")["targets"]
        )
        for _, _, buckets in shown:
            assert sum(number for *_, number in buckets) == count
            assert buckets[0][0] >= 0
            assert buckets[-1][1] <= np.log(3) + 1e-6  # Nats, of three classes.


def test_the_table_of_runs_has_values_and_scores(server):
    experiment = ask(f"{server}/data/plugin/hparams/experiment", post={})
    assert [info["name"]["tag"] for info in experiment["metricInfos"]] == METRICS
    columns = [info["name"] for info in experiment["hparamInfos"]]
    first = ["dataset", "ensemble_size", "learning_rate", "method", "model"]
    assert columns[:5] == first
    assert {"num_epochs", "num_devices", "augment.shift"} <= set(columns)
    slow, fast = session_groups(server)
    assert [slow["name"], fast["name"]] == ["slow/events", "fast/events"]
    assert [row["hparams"]["learning_rate"] for row in (slow, fast)] == [0.01, 0.1]
    assert [row["hparams"]["ensemble_size"] for row in (slow, fast)] == [2, 4]
    for row in (slow, fast):
        for metric in row["metricValues"]:
            tag = metric["name"]["tag"]
            *_, (_, _, last) = ask(
                f"{server}/data/plugin/scalars/scalars", run=row["name"], tag=tag
            )
            assert metric["value"] == pytest.approx(last, rel=1e-6)
        assert len(row["metricValues"]) == len(METRICS)


def test_the_table_can_be_sorted_by_a_column_that_one_run_leaves_empty(server):
    fast, slow = session_groups(server, sort_by="num_devices")
    assert fast["hparams"]["num_devices"] == 2
    assert "num_devices" not in slow["hparams"]


def test_a_single_workdir_is_a_run(folder):
    with serving(folder / "fast") as url:
        eventually(lambda: ask(f"{url}/data/runs") == ["events"])
        for plugin in ("scalars", "images", "histograms"):
            eventually(lambda plugin=plugin: ask(f"{url}/data/plugin/{plugin}/tags").get("events"))
        (row,) = session_groups(url)
        assert row["name"] == "events"
        assert len(row["metricValues"]) == len(METRICS)


def test_a_browser_shows_scalars_images_histograms_and_the_table(server):
    require_browser()
    with open_page(f"{server}/#scalars") as (page, requests, errors):
        page.set_default_timeout(1000 * PATIENCE)
        page.locator("tf-scalar-card", has_text="train/learning_rate").first.wait_for()
        chart = page.locator("tf-scalar-card vz-line-chart2 svg .scatter-plot, tf-scalar-card path")
        chart.first.wait_for(state="attached")

        page.goto(f"{server}/#images")
        page.reload()
        picture = page.locator("tf-image-loader img")
        for i in range(4):  # Two of each run.
            picture.nth(i).wait_for()
            page.wait_for_function("i => i.naturalWidth > 0", arg=picture.nth(i).element_handle())

        page.goto(f"{server}/#custom_scalars")
        page.reload()
        chart = page.locator("tf-custom-scalar-multi-line-chart-card", has_text="training loss")
        lines = chart.locator("vz-line-chart2 svg path.line, vz-line-chart2 svg path")
        lines.nth(5).wait_for(state="attached")  # Of four members and two.

        page.goto(f"{server}/#histograms")
        page.reload()
        histogram = page.locator("tf-histogram-loader", has_text="validation/entropy")
        for i in range(2):
            histogram.nth(i).locator(".histogram path").first.wait_for(state="attached")

        page.goto(f"{server}/#hparams")
        page.reload()
        table = page.locator("tf-hparams-table-view")
        for text in (*RUNS, "learning_rate", "0.010000"):
            table.get_by_text(text, exact=True).first.wait_for()
        # What a tab still asks for is dropped when it is left.
        assert [error for error in errors if "net::ERR_ABORTED" not in error] == []
        assert {urllib.parse.urlsplit(url).netloc for url in requests} == {server.split("//")[1]}


@pytest.mark.soak
def test_the_picture_of_the_readme_shows_charts_and_pictures(folder):
    require_browser()
    picture = draw_tensorboard(folder)
    assert picture.width == 1400
    colours = np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)
    assert len(colours) > 100
