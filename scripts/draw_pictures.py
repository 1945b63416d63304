"""Draws pictures of the documentation from real runs, the last two in a real browser.

    make train
    python -m scripts.draw_pictures clutter runs/clutter docs/images/clutter.png

    python evaluate.py --workdir=runs/clutter
    python -m scripts.draw_pictures report runs/clutter docs/images/report.png

    python train.py --config=configs/digits_ensemble.py --workdir=runs/digits
    python train.py --config=configs/digits_ensemble.py --workdir=runs/digits_slow \\
      --config.learning_rate=0.05 --config.ensemble_size=4
    python -m scripts.draw_pictures tensorboard runs docs/images/tensorboard.png
"""

import argparse
import contextlib
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from ensemble import likelihoods, metrics
from ensemble.pictures.plot_style import (
    ENSEMBLE_COLOR,
    MEMBER_COLOR,
    RIGHT_COLOR,
    TEXT_COLOR,
    WRONG_COLOR,
    as_pictures,
    figure_to_array,
    member_line,
    style,
)
from ensemble.sources import in_memory, load_dataset
from ensemble.storage.predictions import read_predictions
from ensemble.storage.workdir import Workdir
from scripts.browser import missing, open_page

_BOLD: dict[str, Any] = {"fontsize": 12, "weight": "bold", "color": TEXT_COLOR}


def draw_scores(
    summary: Mapping[str, Any],
    log_probs: NDArray[np.float64],
    inputs: NDArray[np.uint8],
    labels: NDArray[np.int32],
) -> Figure:
    """Members' scores and reliability beside the ensemble's, and what it is sure and unsure of.

    Args:
        summary: of the scores, as `score_split` returns them.
        log_probs: `[M, N, C]` log-probabilities of the members.
        inputs: `[N, H, W, 1]` images.
        labels: `[N]` integer labels.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(12.4, 5.2), dpi=100, layout="constrained", facecolor="w")
    panels = figure.subfigures(1, 3, width_ratios=(3.6, 4.0, 4.8), wspace=0.03, squeeze=False)
    scores, reliability, pictures = panels[0]
    scores.suptitle("Ensemble and members", **_BOLD)
    accuracy, nll = scores.subplots(2, 1)
    _draw_scores(accuracy, summary, "accuracy", 100, "accuracy %", "{:.1f}%")
    _draw_scores(nll, summary, "nll", 1, "NLL, nats (lower is better)", "{:.2f}")
    reliability.suptitle("Is 90% sure right 90% of the time?", **_BOLD)
    _draw_reliability(reliability.subplots(), log_probs, labels)
    pictures.suptitle("What the ensemble is sure of, and what not", **_BOLD)
    _draw_pictures(pictures, log_probs, inputs, labels)
    return figure


def _draw_scores(axes, summary, score: str, scale: float, ylabel: str, number: str) -> None:
    """Dots for the members, a dashed line for their mean, a bold one for the ensemble."""
    members = scale * np.asarray(summary["scores"][score]["members"])
    whole = scale * summary["scores"][score]["value"]
    axes.axhline(members.mean(), color=MEMBER_COLOR, linestyle="--", linewidth=1)
    axes.axhline(whole, color=ENSEMBLE_COLOR, linewidth=2.5)
    axes.plot(members, "o", color=MEMBER_COLOR, markersize=8, markeredgecolor="w", zorder=3)
    style(axes, ylabel=ylabel)
    axes.set_xlim(-0.8, 1.75 * len(members))  # Room for the two names.
    axes.margins(y=0.22)
    axes.set_xticks([])
    for value, name, color in (
        (whole, "ensemble", ENSEMBLE_COLOR),
        (members.mean(), "average member", "#6E6E6E"),
    ):
        axes.annotate(
            f"{name}\n{number.format(value)}",
            (len(members) + 0.1, value),
            (0, 3),
            textcoords="offset points",
            color=color,
            weight="bold" if name == "ensemble" else "normal",
        )


def _draw_reliability(axes, log_probs, labels) -> None:
    """Accuracy against confidence; bins of fewer than 10 examples are left out."""
    axes.plot((0, 1), (0, 1), "--", color=TEXT_COLOR, linewidth=1)
    curves = [(one, member_line(len(log_probs))) for one in log_probs]
    bold: dict[str, Any] = {
        "color": ENSEMBLE_COLOR,
        "linewidth": 2.5,
        "markersize": 10,
        "zorder": 3,
    }
    for one, line in [*curves, (metrics.ensemble_log_probs(log_probs), bold)]:
        bins = metrics.reliability_bins(one, labels)
        kept = bins.counts >= 10
        axes.plot(bins.confidence[kept], bins.accuracy[kept], ".-", **line)
    style(axes, xlabel="confidence of the prediction", ylabel="share that is right")
    axes.set(xlim=(0.15, 1.02), ylim=(0, 1.03))
    axes.text(0.19, 0.9, "ensemble", color=ENSEMBLE_COLOR, weight="bold")
    axes.text(0.19, 0.84, "members", color="#6E6E6E")
    axes.text(0.98, 0.05, "below the diagonal: overconfident", ha="right", color=TEXT_COLOR)


def _draw_pictures(figure, log_probs, inputs, labels) -> None:
    """A row of images that the ensemble is sure of, each of another class; then the least sure."""
    probs = np.exp(metrics.ensemble_log_probs(log_probs))
    order = np.argsort(metrics.uncertainty(log_probs)["total"], kind="stable")
    _, first = np.unique(labels[order], return_index=True)
    sure = order[np.sort(first)][:4]
    unsure = order[::-1][:8]
    grid = figure.subplots(3, 4)
    drawn = as_pictures(inputs)
    for axes, n in zip(grid.ravel(), [*sure, *unsure], strict=True):
        axes.imshow(drawn[n], cmap="gray", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        one, other = np.argsort(-probs[n], kind="stable")[:2]
        right = one == labels[n]
        text = f"{'✓' if right else '✗'} {one} {probs[n, one]:.0%}"
        if n in unsure:
            text = f"true: {labels[n]}\n{text}, {other} {probs[n, other]:.0%}"
        axes.set_title(text, fontsize=8.5, color=RIGHT_COLOR if right else WRONG_COLOR)
    for row, text in enumerate(("most sure", "least sure", "least sure")):
        grid[row, 0].set_ylabel(text, color=TEXT_COLOR, fontsize=9)


def draw_clutter(workdir: pathlib.Path) -> Image.Image:
    """The picture of docs/results.md: what an ensemble of image classifiers brings.

    Args:
        workdir: of a finished run.
    """
    report = json.loads((workdir / "report.json").read_text())
    inputs, labels = in_memory(load_dataset(report["config"]["dataset"]), "test")
    likelihood = likelihoods.named(report["config"]["likelihood"]).described(report["dataset"])
    work = Workdir(workdir)
    stored = read_predictions(
        work.predictions / "test.npz",
        report["config"],
        likelihood,
        identity=work.identity(),
        fingerprint=report["dataset"]["fingerprint"],
    )
    assert stored is not None
    log_probs = stored.arrays["log_probs"]
    return Image.fromarray(figure_to_array(draw_scores(report["test"], log_probs, inputs, labels)))


_EXPLAINED = (
    ".tile",
    ".tile.good",
    ".tile.caution",
    ".tile.inconclusive",
    "#findings summary",
    "#scores tr:nth-of-type(2) td:nth-of-type(2)",
    "#scores tr:nth-of-type(4) td:nth-of-type(2)",
    "p:has(+ .pair #figure-reliability)",
)
"""What docs/evaluation.md explains, by number: the first of each."""
_NUMBERED = """selectors => selectors.forEach((selector, k) => {
  const {left, top} = document.querySelector(selector).getBoundingClientRect();
  const mark = document.body.appendChild(document.createElement("b"));
  mark.textContent = k + 1;
  mark.style = `position: absolute; left: ${left - 22}px; top: ${top + 1}px; width: 20px;
    line-height: 20px; border-radius: 10px; text-align: center; font-size: 13px;
    color: white; background: #B3005E`;
})"""


def draw_report(workdir: pathlib.Path) -> Image.Image:
    """The first screens of an evaluation's report; what the documentation explains has numbers.

    Args:
        workdir: of a run that was evaluated.
    """
    report = (workdir / "evaluation" / "report.html").resolve(strict=True)
    with open_page(report.as_uri(), width=1200, height=1500) as opened:
        opened.page.evaluate(_NUMBERED, list(_EXPLAINED))
        return Image.open(io.BytesIO(opened.page.screenshot()))


# Six cards of two runs, which fill the window.
_SHOWN = "validation/(.*/epistemic|ensemble/(accuracy|nll)|entropy|uncertain)$"


@contextlib.contextmanager
def serving(logdir: pathlib.Path, timeout: float = 120) -> Iterator[str]:
    """Runs `tensorboard` on a free port of 127.0.0.1.

    Args:
        logdir: a workdir, or a folder of workdirs.
        timeout: seconds until it must say where it listens.

    Yields:
        Its URL, without a slash at the end; what it reads appears there in time.

    Raises:
        RuntimeError: it ended, or was too slow; with what it said.
    """
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}"]
    with (
        tempfile.NamedTemporaryFile() as log,
        subprocess.Popen(
            [*command, "--host=127.0.0.1", "--port=0"], stdout=log, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            yield _address(process, pathlib.Path(log.name), time.monotonic() + timeout)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            process.kill()


def _address(process: subprocess.Popen[bytes], log: pathlib.Path, deadline: float) -> str:
    """Waits for the line in which TensorBoard says where it listens."""
    while True:
        ended = process.poll() is not None
        said = log.read_text(errors="replace")
        found = re.search(r"at (http://127\.0\.0\.1:\d+)", said)
        if found:
            return found[1]
        if ended or time.monotonic() > deadline:
            raise RuntimeError(f"tensorboard does not listen; it said:\n{said}")
        time.sleep(0.1)


def draw_tensorboard(logdir: pathlib.Path) -> Image.Image:
    """The time series dashboard of a folder of workdirs, 1400 pixels wide."""
    query = urllib.parse.urlencode({"smoothing": 0, "tagFilter": _SHOWN})
    with (
        serving(logdir) as url,
        open_page(f"{url}/?{query}#timeseries", width=1400, height=940) as (page, _, _),
    ):
        page.get_by_label("Toggle settings side pane").click()
        reload = page.locator("button.reload-button")
        deadline = time.monotonic() + 60
        while not page.locator("image-card img").count():  # Events are read after the start.
            if time.monotonic() > deadline:
                raise RuntimeError(f"TensorBoard shows no picture of a run in {logdir}")
            page.wait_for_timeout(2_000)
            reload.click()
        reload.click()
        page.wait_for_timeout(3_000)  # Charts move into place.
        return Image.open(io.BytesIO(page.screenshot()))


PICTURES = {"clutter": draw_clutter, "report": draw_report, "tensorboard": draw_tensorboard}


def main() -> int:
    """Draws what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", choices=PICTURES)
    parser.add_argument("source", type=pathlib.Path, help="a workdir, or a folder of workdirs")
    parser.add_argument("out", type=pathlib.Path, help="a PNG file")
    args = parser.parse_args()
    reason = None if args.picture == "clutter" else missing()
    if reason:
        print(f"draw_pictures: there is {reason}", file=sys.stderr)
        return 2
    try:
        picture = PICTURES[args.picture](args.source)
    except FileNotFoundError as error:
        print(f"draw_pictures: there is no file {error.filename}", file=sys.stderr)
        return 2
    # 256 colours are enough, at a third of the bytes.
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(args.out, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
