"""Pictures of recommendations: what the draws of a posterior recommend first, and how they differ.

As in the notebook "Distributed Inference with JAX" of TensorFlow Probability: who has watched much
is known well, so the draws agree; who has watched little is not, so they do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensemble.pictures.plot_style import (
    ENSEMBLE_COLOR,
    MEMBER_COLOR,
    literal,
    new_figure,
    shorten,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_BARS = 20


def first_choice_figures(first_choices: Mapping[str, Mapping[str, Any]]) -> dict[str, Figure]:
    """Draws how many draws recommend which title, and which genre, first.

    Args:
        first_choices: of `recommendation_section`: of the users with most and fewest watches, or
            ratings.

    Returns:
        Two figures of two panels, by name.
    """
    return {
        f"recommended_{kind}": _figure(first_choices, kind, title)
        for kind, title in (
            ("titles", "What the draws recommend first"),
            ("genres", "Genres of what the draws recommend first"),
        )
    }


def _figure(first_choices: Mapping[str, Mapping[str, Any]], kind: str, title: str) -> Figure:
    """One panel a user; bars that many draws chose come first, and the rest in one bar."""
    rows = max(min(len(user[kind]), _MAX_BARS + 1) for user in first_choices.values())
    figure = new_figure(title, width=11, height=1.6 + 0.24 * rows)
    for axes, (which, user) in zip(
        figure.subplots(1, len(first_choices), squeeze=False)[0],
        first_choices.items(),
        strict=True,
    ):
        counts = list(user[kind].items())
        shown, rest = counts[:_MAX_BARS], counts[_MAX_BARS:]
        noun, key = (
            ("watches", "num_watched") if "num_watched" in user else ("ratings", "num_rated")
        )
        names = [literal(shorten(name)) for name, _ in shown]
        values = [count for _, count in shown]
        colors = [ENSEMBLE_COLOR] * len(shown)
        if rest:
            names.append(f"{len(rest)} others")
            values.append(sum(count for _, count in rest))
            colors.append(MEMBER_COLOR)
        style(
            axes,
            literal(f"user {user['user']}, with {which} {noun}: {user[key]:,}"),
            xlabel="draws",
        )
        # By position: two movies may have one short name.
        axes.barh(range(len(values)), values, color=colors)
        axes.set_yticks(range(len(values)), names, fontsize=8)
        axes.invert_yaxis()
    return figure
