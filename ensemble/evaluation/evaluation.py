"""What `ensemble.evaluate` returns."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensemble.pictures import curves, matrices, member_scores, tabular
from ensemble.pictures.plot_style import figure_to_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_CLASSES = 20
"""Of which a matrix of counts can be read in a cell."""


class Evaluation(dict[str, Any]):
    """The content of evaluation.json, which shows itself as verdict and scores.

    A notebook draws pictures too; `report.html` has all of them.
    """

    def __repr__(self) -> str:
        titles, rows = self._scores()
        table = [list(zip(titles, row, strict=True)) for row in rows]
        return "\n".join([*self["verdict"], "", tabular.aligned(table)])

    def _repr_html_(self) -> str:
        pictures = [
            tabular.html_picture(figure_to_png(figure), name)
            for name, figure in self._figures().items()
        ]
        verdict = map(tabular.paragraph, self["verdict"])
        return tabular.page([*verdict, tabular.html_table(*self._scores()), *pictures])

    def _scores(self) -> tuple[list[str], list[list[str]]]:
        """Titles and rows of a table: each score of the ensemble, its interval, the members'."""
        # Imported here, as by `evaluate`: it imports Matplotlib.
        from ensemble.evaluation.page import TITLES, interval, number, percent

        test = self["test"]

        def row(name: str) -> list[str]:
            show = percent if "accuracy" in name else number
            low_high = interval(test["interval"][name], name)
            return [TITLES[name], show(test["ensemble"][name]), low_high, show(test["mean"][name])]

        names = [name for name in TITLES if name in test["ensemble"]]
        return ["test", "ensemble", "95% interval", "mean of members"], [row(n) for n in names]

    def _figures(self) -> Mapping[str, "Figure"]:
        drawn = {}
        if len(self["members"]) > 1:
            drawn["sizes"] = member_scores.score_against_size(self["next_member"])
        if self["shift"]:
            drawn["shift"] = curves.shift_curves(self["shift"], self["test"])
        classes = self["classes"]
        if len(classes["names"]) <= _MAX_CLASSES:
            drawn["confusion"] = matrices.confusion_matrix(
                classes["confusion"], classes["names"], range(len(classes["names"]))
            )
        return drawn
