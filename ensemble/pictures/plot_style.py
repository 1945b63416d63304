"""The look that all pictures share.

One palette, safe for colour-blind readers (Okabe & Ito 2008): blue is the ensemble or a right
prediction, vermilion a wrong one, grey the members. Matplotlib is imported on the first call,
because it would slow the start of a run.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ensemble.errors import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENSEMBLE_COLOR = RIGHT_COLOR = "#0072B2"
WRONG_COLOR = "#D55E00"
MEMBER_COLOR = "#8C8C8C"
TEXT_COLOR = "#333333"
GRID_COLOR = "#E6E6E6"
PALETTE = (ENSEMBLE_COLOR, WRONG_COLOR, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", MEMBER_COLOR)

_DPI = 100
_MAX_NAME_LENGTH = 21
_NAME_HEIGHT = 0.06  # Of axes, for a name at the end of a line.


def figure_to_array(figure: Figure) -> NDArray[np.uint8]:
    """Draws a figure at its own resolution.

    Args:
        figure: any figure.

    Returns:
        `[H, W, 3]` red, green and blue, 0..255.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # As in `new_figure`.

    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        canvas.draw()
    for one in found:  # They may quote a character of a stranger's name as it is.
        warnings.warn(shown(str(one.message)), one.category, stacklevel=2)
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def figure_to_png(figure: Figure) -> bytes:
    """Draws a figure as a PNG file: once, where Matplotlib's `savefig` does so twice."""
    content = io.BytesIO()
    Image.fromarray(figure_to_array(figure)).save(content, "png")
    return content.getvalue()


def new_figure(title: str, width: float, height: float) -> Figure:
    """An empty figure of the given size in inches, with its title in bold."""
    # Matplotlib takes a second to import, which the first step of a run need not wait for.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained", facecolor="w")
    font: dict[str, Any] = {"fontsize": 13, "weight": "bold", "color": TEXT_COLOR}
    figure.suptitle(title, x=0.01, ha="left", parse_math=False, **font)
    return figure


def style(axes: Axes, title: str = "", xlabel: str = "", ylabel: str = "") -> None:
    """Quiet axes: a light grid behind the data, no box, dark grey text."""
    axes.set_title(title, loc="left", fontsize=10, color=TEXT_COLOR)
    axes.set_xlabel(xlabel, color=TEXT_COLOR)
    axes.set_ylabel(ylabel, color=TEXT_COLOR)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MEMBER_COLOR)
    axes.tick_params(which="both", color=MEMBER_COLOR, labelcolor=TEXT_COLOR, labelsize=9)
    axes.grid(color=GRID_COLOR, linewidth=0.8)
    axes.set_axisbelow(True)


def legend(axes: Axes, place: Axes | Figure | None = None, **kwargs: Any) -> None:
    """A frameless legend that names each kind of artist once, on the axes or another place."""
    handles, names = axes.get_legend_handles_labels()
    once = dict(zip(names, handles, strict=True))
    (place or axes).legend(
        list(once.values()), list(once), frameon=False, labelcolor=TEXT_COLOR, **kwargs
    )


def label_ends(axes: Axes, ends: Mapping[str, tuple[float, str]]) -> None:
    """Names lines at their right ends, in place of a legend; names keep a distance.

    Args:
        axes: with all their lines, and their limits.
        ends: the last value of a line and its colour, by its name; what is not finite has none.
    """
    shown = {name: end for name, end in ends.items() if np.isfinite(end[0])}
    axes.get_ylim()  # Fits the limits to what has been drawn, which the transformation does not.
    heights = {
        name: axes.transAxes.inverted().transform(axes.transData.transform((0, value)))[1]
        for name, (value, _) in shown.items()
    }
    lowest = -np.inf
    for i, name in enumerate(sorted(heights, key=lambda one: heights[one])):
        most = 1 - _NAME_HEIGHT * (len(heights) - 1 - i)  # Leaves room for those above.
        lowest = min(max(heights[name], lowest + _NAME_HEIGHT), most)
        font: dict[str, Any] = {"color": shown[name][1], "fontsize": 9, "va": "center"}
        axes.text(1.01, lowest, literal(name), transform=axes.transAxes, **font)


def member_line(num_members: int) -> dict[str, Any]:
    """A thin grey line, fainter the more there are."""
    alpha = float(np.clip(4 / num_members, 0.1, 0.6))
    style = {"color": MEMBER_COLOR, "alpha": alpha, "linewidth": 1, "markersize": 4}
    return {**style, "label": "members"}


def draw_histogram(axes: Axes, counts: NDArray, edges: NDArray, color: str) -> None:
    """Draws counts [K] as bars between edges [K + 1]."""
    axes.bar(edges[:-1], counts, 0.92 * np.diff(edges), align="edge", color=color)


def as_pictures(inputs: NDArray) -> NDArray[np.float64]:
    """Images `[N, H, W, C]` scaled together to 0..1; grey `[N, H, W]` unless C is 3."""
    if inputs.ndim != 4:
        raise ValueError(f"inputs has shape {inputs.shape}, must be images [N, H, W, C]")
    low, high = float(np.min(inputs)), float(np.max(inputs))
    pictures = (inputs - low) / (high - low if high > low else 1.0)
    return pictures if inputs.shape[-1] == 3 else pictures.mean(axis=-1)


def shorten(name: str) -> str:
    """Cuts the middle out of a name too long to stand above an image."""
    half = _MAX_NAME_LENGTH // 2
    return name if len(name) <= _MAX_NAME_LENGTH else f"{name[:half]}…{name[-half:]}"


def literal(text: str) -> str:
    """Text that Matplotlib shows as it is, though it may hold dollars, which start formulae."""
    return text.replace("$", r"\$")


def plural(number: int, noun: str) -> str:
    """A number and its noun."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
