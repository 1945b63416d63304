"""The six answers that a page begins with: one number, a mark and one sentence each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Numbers = Mapping[str, Any]

_MARKS = {"good": "good", "warning": "caution", "plain": "inconclusive"}
_WITHOUT_MARK = ("quality", "gain")
"""Questions whose answers are numbers, and neither good nor bad by themselves."""


class Tile(NamedTuple):
    """A tile.

    Attributes:
        title: of it.
        number: the one that it shows; a dash where there is none.
        mark: `good`, `caution`, `inconclusive`, or empty.
        sentence: what the number means.
    """

    title: str
    number: str
    mark: str
    sentence: str


def _percent(name: str) -> Callable[[Numbers], str]:
    return lambda n: f"{100 * n[name]:.1f}%"


def _value(name: str) -> Callable[[Numbers], str]:
    return lambda n: f"{n[name]:.4g}"


def _points(n: Numbers) -> str:
    return f"{n['points']:.1f} points"


_NUMBERS: Mapping[str, Callable[[Numbers], str]] = {
    "quality.accuracy": _percent("value"),
    "quality": _value("value"),
    "gain.more_accurate": lambda n: f"+{_points(n)}",
    "gain.less_accurate": lambda n: f"-{_points(n)}",
    "gain.lower_nll": lambda n: f"{n['nll'] - n['nll_of_member']:+.3g} nats",
    "gain.higher_nll": lambda n: f"{n['nll'] - n['nll_of_member']:+.3g} nats",
    "gain.lower": lambda n: f"{_percent('share')(n)} lower",
    "gain.higher": lambda n: f"{_percent('share')(n)} higher",
    "convergence": lambda n: f"R-hat {n['rhat']:.3f}",
    "calibration": lambda n: f"{n['points']:+.1f} points",
    "calibration.underconfident": lambda n: f"-{_points(n)}",
    "coverage": _percent("coverage"),
    "bands": _percent("coverage"),
    "abstention": _percent("abstained"),
    "abstention.accepts_all": lambda n: "0%",
    "shift.error": _value("rmse"),
    "shift": _percent("accuracy"),
    "next_member": lambda n: _percent("share")(n) if "share" in n else f"{n['gain']:.4f} nats",
}
"""What a tile shows, by the longest beginning of a code that is here."""
_TILES = (
    ("Chains", ("convergence",)),
    ("Score", ("quality",)),
    ("Gain of averaging", ("gain",)),
    ("Calibration", ("calibration", "coverage", "bands")),
    ("Abstention", ("abstention",)),
    ("Shifted inputs", ("shift",)),
    ("One more {noun}", ("next_member",)),
)
_TITLES = {
    "quality.accuracy": "Accuracy",
    "quality.rmse": "RMSE",
    "quality.pinball": "Pinball loss",
    "quality.nll": "NLL of all targets",
    "coverage": "Coverage of 90% intervals",
    "bands": "Coverage of the widest band",
    "calibration": "Confidence less accuracy",
}


def tiles_of(evaluation: Mapping[str, Any]) -> list[Tile]:
    """The tiles of an evaluation, from its findings; none of what was not asked.

    Args:
        evaluation: the content of evaluation.json.
    """
    found: dict[str, Any] = {}
    for one in evaluation["findings"]:
        if not one["about"].startswith("targets/"):
            found.setdefault(one["code"].partition(".")[0], one)
    tiles = []
    for title, questions in _TILES:
        asked = [found[question] for question in questions if question in found]
        if asked and asked[0]["code"] != "convergence.ensemble":
            tiles.append(_tile(title, asked[0]))
    return tiles


def _tile(title: str, finding: Mapping[str, Any]) -> Tile:
    code, numbers = finding["code"], finding["numbers"]
    try:
        number = _longest(_NUMBERS, code, lambda _: "-")(numbers)
    except (KeyError, TypeError):  # This answer has no such number.
        number = "-"
    mark = "" if code.startswith(_WITHOUT_MARK) else _MARKS[finding["tone"]]
    sentence = re.split(r"(?<=[.]) (?=[A-Z\d])", finding["text"])[0]
    title = _longest(_TITLES, code, title).format(**numbers)
    return Tile(title, number, mark, sentence)


def _longest(by_code: Mapping[str, Any], code: str, default: Any) -> Any:
    """What stands for the longest beginning of a code."""
    fitting = [one for one in by_code if code.startswith(one)]
    return by_code[max(fitting, key=len)] if fitting else default
