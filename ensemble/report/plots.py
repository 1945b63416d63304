"""PNG plots of a run, for `plots/` and TensorBoard: the page's charts, drawn by Matplotlib.

Colours are safe for colour-blind readers (Okabe and Ito 2008). Matplotlib is imported on the first
call, because importing it takes a second.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble.errors import shown
from ensemble.report import charts
from ensemble.report.svg import Chart, Charts
from ensemble.report.table import ByName

_COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C"
)  # fmt: skip
_GREY = {"color": "#8C8C8C"}
_STYLES: Any = {
    "ours": {"linewidth": 2},
    "member": {**_GREY, "linewidth": 2},
    "each": {**_GREY, "alpha": 0.25},
    "single": _GREY,
    "ideal": {"color": "#333333", "linestyle": "--"},
    "count": {"color": "#E6E6E6"},
}
"""How marks are drawn by their kind, in addition to a colour and a thin line."""
_COLUMNS = 3
_RC = Path(__file__).with_name("plots.mplstyle")


def figures(e: Any) -> ByName:
    """Charts of predictions: "calibration", "errors" and, of several members, "members"."""
    if e.test.kind == "several":
        return {}
    several = {"members": charts.sizes(e)} if e.test.num_members > 1 else {}
    return {"calibration": [charts.calibration(e)], "errors": [charts.abstention(e)], **several}


def pixels(panels: Charts) -> NDArray:
    """Draws charts beside and below each other.

    Args:
        panels: at least one chart.

    Returns:
        [H, W, 3] red, green and blue, 0 to 255.
    """
    # `Figure` without pyplot has no global state.
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with rc_context(fname=_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        canvas = FigureCanvasAgg(Figure((4.7 * columns, 3.1 * rows), dpi=100, layout="constrained"))
        for i, chart in enumerate(panels):
            _draw(canvas.figure.add_subplot(rows, columns, i + 1), chart)
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def png(panels: Charts) -> bytes:
    """Draws charts as the content of a PNG file."""
    from PIL import Image

    content = io.BytesIO()
    picture = Image.fromarray(pixels(panels))
    # A palette makes the file a quarter as large.
    picture.quantize(64, Image.Quantize.FASTOCTREE).save(content, "png", optimize=True)
    return content.getvalue()


def write(folder: Any, found: ByName) -> None:
    """Writes charts as `NAME.png` into a folder, which is made.

    Args:
        folder: Path of the folder.
        found: charts by name; nothing is written for a name without charts.
    """
    from ensemble.storage.files import make_folder, write_file

    make_folder(folder)
    for name, panels in found.items():
        if panels:
            write_file(folder / f"{name}.png", png(panels))


def _draw(axes, chart: Chart) -> None:
    """Draws a chart's axes, marks and legend."""
    x, y = chart.axes
    axes.set(title=shown(y.label or chart.title), xlabel=x.label, xlim=x.ends, ylim=y.ends)
    for place, axis in ((axes.set_xticks, x), (axes.set_yticks, y)):
        place([v for v, _ in axis.ticks], [shown(text) for _, text in axis.ticks])
    for mark in chart.marks:
        kind, _, number = mark.kind.partition("-")
        style = {"color": _COLOURS[int(number or 0)], "linewidth": 1, "label": mark.name}
        style |= _STYLES.get(kind, {})
        if mark.shape == "dots":
            style |= {"linestyle": "", "marker": "o"}
        (axes.fill if mark.shape == "area" else axes.plot)(mark.xs, mark.ys, **style)
    handles, names = axes.get_legend_handles_labels()
    if entries := dict(zip(names, handles, strict=True)):
        axes.legend(entries.values(), entries)
