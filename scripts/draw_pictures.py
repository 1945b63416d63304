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
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator

from PIL import Image

from ensemble.errors import InputError
from ensemble.report import charts, plots
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.report.evaluation import Evaluation
from scripts.browser import missing, open_page


def draw_clutter(workdir: pathlib.Path) -> Image.Image:
    """The picture of the README: calibration of an ensemble, and what abstention brings.

    Args:
        workdir: of a finished run.
    """
    predicted = EvaluatedRun(str(workdir)).test
    e = Evaluation(predicted.predictive, predicted.targets)
    return Image.fromarray(plots.pixels([charts.calibration(e), charts.abstention(e)]))


_EXPLAINED = ("header .findings", "header .good", "tr.ensemble td", "tr.gain td")
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
_SHOWN = "validation/(calibration|members|uncertainty|ensemble/(accuracy|nll|ece))$"


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
    except InputError as error:
        print(f"draw_pictures: {error}", file=sys.stderr)
        return 2
    # 256 colours are enough, at a third of the bytes.
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(args.out, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
