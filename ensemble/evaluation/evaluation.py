"""What `ensemble.evaluate` returns."""

from typing import Any

from ensemble import likelihoods, registry
from ensemble.evaluation.evaluator import Evaluator
from ensemble.pictures import tabular
from ensemble.pictures.plot_style import figure_to_png


class Evaluation(dict[str, Any]):
    """The content of evaluation.json, which shows itself as verdict and scores.

    A notebook draws pictures too; `report.html` has all of them.
    """

    def __repr__(self) -> str:
        titles, rows = self._evaluator.table(self)
        table = [list(zip(titles, row, strict=True)) for row in rows]
        return "\n".join([*self["verdict"], "", tabular.aligned(table)])

    def _repr_html_(self) -> str:
        pictures = [
            tabular.html_picture(figure_to_png(figure), name)
            for name, figure in self._evaluator.figures(self).items()
        ]
        verdict = map(tabular.paragraph, self["verdict"])
        return tabular.page([*verdict, tabular.html_table(*self._evaluator.table(self)), *pictures])

    @property
    def _evaluator(self) -> Evaluator:
        found: Evaluator = registry.load(
            likelihoods.described(self["config"]["likelihood"], self["dataset"]).evaluator
        )()
        return found
