"""What `ensemble.evaluate` returns."""

from typing import Any

from ensemble import likelihoods, registry
from ensemble.evaluation.evaluator import Evaluator
from ensemble.evaluation.score_table import score_table
from ensemble.evaluation.summary import lines_of
from ensemble.pictures import tabular
from ensemble.pictures.plot_style import figure_to_png


class Evaluation(dict[str, Any]):
    """The content of evaluation.json, which shows itself as findings and scores.

    A notebook draws pictures too; `report.html` has all of them.
    """

    def __repr__(self) -> str:
        titles, rows = score_table(self)
        table = [list(zip(titles, row, strict=True)) for row in rows]
        return "\n".join([*lines_of(self), "", tabular.aligned(table)])

    def _repr_html_(self) -> str:
        named = likelihoods.described(self["config"]["likelihood"], self["dataset"])
        evaluator: Evaluator = registry.load(named.evaluator)()
        pictures = [
            tabular.html_picture(figure_to_png(figure), name)
            for name, figure in evaluator.figures(self).items()
        ]
        lines = map(tabular.paragraph, lines_of(self))
        return tabular.page([*lines, tabular.html_table(*score_table(self)), *pictures])
