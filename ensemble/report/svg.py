"""Charts as data, and as SVG that follows the page: colours are the page's variables.

A `Chart` has axes and marks in the units of the data. `Chart.svg` draws it for a page, and
`ensemble.report.plots` with Matplotlib.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble.errors import visible

_WIDTH, _HEIGHT = 400, 264
"""Pixels of a chart; a page scales it."""


class Axis(NamedTuple):
    """An axis of a chart.

    Attributes:
        label: name and unit.
        ends: (low, high); None: they hold all marks.
        ticks: (value, text) of each tick; empty: round numbers.
        is_share: values are shares, shown as percentages.
    """

    label: str = ""
    ends: Any = None
    ticks: Sequence[Any] = ()
    is_share: bool = False

    def fitted(self, values: Any) -> Axis:
        """The axis with ends and ticks."""
        low, high = self.ends or span(values)
        if self.is_share:
            low, high = max(low, 0.0), min(high, 1.0)
        unit, form = (0.01, "{:.3g}%") if self.is_share else (1, "{:,.4g}")
        numbers = [(v, form.format(v / unit)) for v in ticks(low, high)]
        texts = self.ticks or [(v, text.replace("-", "\N{MINUS SIGN}")) for v, text in numbers]
        return self._replace(ends=(low, high), ticks=texts)


class Mark(NamedTuple):
    """A shape of a chart.

    Attributes:
        shape: "line", "area" or "dots"; points with NaN are left out.
        kind: style, such as "ours".
        xs: [K] in units of the data.
        ys: [K].
        name: in the legend; empty: none.
    """

    shape: str
    kind: str
    xs: NDArray
    ys: NDArray
    name: str = ""


@dataclass
class Chart:
    """Axes and marks in the units of the data.

    Attributes:
        title: what the chart shows, also for screen readers.
        x: horizontal axis.
        y: vertical axis.
        marks: of the chart, from back to front.
    """

    title: str
    x: Axis
    y: Axis
    marks: Any = field(default_factory=list)

    def add(self, shape: str, kind: str, xs: Any, ys: Any, name: str = "") -> None:
        """Adds a mark."""
        self.marks.append(Mark(shape, kind, np.asarray(xs, float), np.asarray(ys, float), name))

    def curve(self, xs: Any, ys: Any, kind: str = "ours", name: str = "ensemble") -> None:
        """Adds a line and its points."""
        self.add("line", kind, xs, ys, name)
        self.add("dots", kind, xs, ys)

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Both axes with ends and ticks."""
        x = self.x.fitted(mark.xs for mark in self.marks)
        return x, self.y.fitted(mark.ys for mark in self.marks)

    def svg(self) -> str:
        """Returns the chart as an SVG element."""
        x, y = self.axes
        left = 10 + 6.7 * max([3, *(len(text) for _, text in y.ticks)])
        right = _WIDTH - 14
        top = 26
        bottom = _HEIGHT - 40
        body = f"<title>{escaped(self.title)}</title>"
        for value, text in y.ticks:
            at = np.interp(value, y.ends, (bottom, top))
            body += f'<path class="grid" d="M{left:.0f} {at:.1f}H{right}"/>'
            body += _text(left - 7, at + 4, text, "end")
        for value, text in x.ticks:
            body += _text(np.interp(value, x.ends, (left, right)), bottom + 17, text)
        body += _text(2, 13, y.label, "start")
        body += _text((left + right) / 2, _HEIGHT - 4, x.label)
        for mark in self.marks:
            xs = np.interp(mark.xs, x.ends, (left, right))
            ys = np.interp(mark.ys, y.ends, (bottom, top))
            points = [
                f"{a:.1f} {b:.1f}" for a, b in zip(xs, ys, strict=True) if not math.isnan(a + b)
            ]
            path = "M" * bool(points) + "L".join(points)
            if mark.shape == "dots":
                path = "".join(f"M{one}h0" for one in points)
            body += f'<path class="{mark.shape} {mark.kind}" d="{path}"/>'
        return f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{body}</svg>'


Charts = list[Chart]


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>'


def escaped(text: Any) -> str:
    """Text of a stranger as a page may have it."""
    return html.escape(visible(str(text)))


def ticks(low: float, high: float) -> list[float]:
    """Returns about five round numbers between two."""
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(one for one in (1, 2, 5, 10) if power * one >= raw * 0.999)
    places = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-6) + 1)
    return [float(f"{k * step:.12g}") for k in places]


def span(values: Any) -> Any:
    """Returns a range that holds all finite values, with some room."""
    found = np.concatenate([[], *map(np.ravel, values)])
    found = found[np.isfinite(found)]
    low, high = (float(found.min()), float(found.max())) if len(found) else (0.0, 1.0)
    more = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return low - more, high + more


def image(pixels: NDArray, low: float, high: float) -> str:
    """An image [H, W, C] of values from low to high as a small picture in a data URL."""
    from PIL import Image

    pixels = pixels if pixels.shape[-1] == 3 else pixels.mean(axis=-1)
    scaled = np.clip((pixels - low) * (255 / (high - low or 1)), 0, 255).astype(np.uint8)
    picture = Image.fromarray(scaled)
    content = io.BytesIO()
    picture.thumbnail((96, 96))
    picture.save(content, "webp", quality=80)
    return data_url(content.getvalue(), "webp")


def data_url(content: bytes, kind: str = "png") -> str:
    """The content of an image file as a URL that stands in a page."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
