"""Draws the documentation's picture of TensorBoard: real runs, the real program, a real browser.

    python train.py --config=configs/digits_ensemble.py --workdir=runs/digits
    python train.py --config=configs/digits_ensemble.py --workdir=runs/digits_slow \\
      --config.learning_rate=0.05 --config.ensemble_size=4
    python -m scripts.draw_tensorboard --logdir=runs --out=docs/images/tensorboard.png
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

from scripts.browser import missing, open_page

# Six cards of two runs, which fill the window.
_SHOWN = "validation/(.*/epistemic|ensemble/(accuracy|nll)|entropy|uncertain)$"


@contextlib.contextmanager
def serving(logdir: str, timeout: float = 120) -> Iterator[str]:
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


def draw(logdir: str) -> Image.Image:
    """Returns the time series dashboard of a folder of workdirs, 1400 pixels wide."""
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


def main() -> None:
    """Draws and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logdir", required=True, help="a folder of workdirs")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="a PNG file")
    flags = parser.parse_args()
    reason = missing()
    if reason is not None:
        parser.error(reason)
    picture = draw(flags.logdir)
    # 256 colours are enough for lines and letters, at a third of the bytes.
    picture.convert("RGB").quantize(256).save(flags.out, optimize=True)
    print(f"{flags.out}: {picture.width}x{picture.height}, {flags.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
