"""Draws the documentation's picture of an evaluation report: a real report in a real browser.

    python evaluate.py --workdir=runs/digits
    python -m scripts.draw_report --report=runs/digits/evaluation/report.html \\
      --out=docs/images/report.png
"""

import argparse
import io
import pathlib
import sys

from PIL import Image

from scripts.browser import missing, open_page

WIDTH, HEIGHT = 1200, 1500


def draw(report: pathlib.Path) -> Image.Image:
    """Returns the first screens of a report, in few colours to keep the file small.

    Args:
        report: a `report.html`.
    """
    with open_page(report.resolve().as_uri(), width=WIDTH, height=HEIGHT) as opened:
        picture = Image.open(io.BytesIO(opened.page.screenshot()))
    return picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)


def main() -> int:
    """Draws what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    reason = missing() or (None if args.report.is_file() else f"no file {args.report}")
    if reason:
        print(f"draw_report: there is {reason}", file=sys.stderr)
        return 2
    draw(args.report).save(args.out, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
