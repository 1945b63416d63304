"""What `ensemble.train` returns."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ensemble.report import text
from ensemble.storage.workdir import Workdir


def as_text(report: Mapping[str, Any], workdir: str | None) -> str:
    """Returns what a run shows of itself in a program.

    Args:
        report: the content of report.json; empty in other processes than the main one.
        workdir: where the run lives; None where nothing was kept.
    """
    if not report:
        return "The main process has the result."
    where = "" if workdir is None else f"Results: {workdir}"
    parts = [text.format_table(report), text.summary_sentence(report), text.notes(report), where]
    return "\n\n".join(filter(None, parts))


class _Returned(NamedTuple):
    report: dict[str, Any]
    predictor: Any


class Result(_Returned):
    """What `train` returns: a pair that shows itself as its table, in a notebook with pictures.

    Attributes:
        report: the content of report.json.
        predictor: the ensemble as a function.
        workdir: where the run lives, with the pictures; None where nothing was kept.
        data: of a NumPyro model or a log density that was sampled, `arviz.InferenceData`. Of a
            network it is None: the workdir has its draws, as `posterior.nc` and in `draws/`.
    """

    workdir: str | None = None
    data: Any = None

    def __repr__(self) -> str:
        return as_text(self.report, self.workdir)

    def _repr_html_(self) -> str | None:
        from ensemble.pictures import tabular  # Of notebooks alone.

        if not self.report:
            return None
        parts = [
            tabular.html_table(part.titles, filter(None, part.rows))
            if isinstance(part, text.Table)
            else tabular.paragraph(part)
            for part in text.contents(self.report)
            if part
        ]
        lines = [text.summary_sentence(self.report), *text.notes(self.report).splitlines()]
        return tabular.page([*parts, *map(tabular.paragraph, lines), *self._pictures()])

    def _pictures(self) -> list[str]:
        from ensemble.pictures import tabular  # As in `_repr_html_`.

        if self.workdir is None:
            return []
        files = sorted(Workdir(self.workdir).plots.glob("*.png"))
        return [tabular.html_picture(file.read_bytes(), file.stem) for file in files]
