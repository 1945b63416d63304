"""What `ensemble.train` returns."""

from typing import Any, NamedTuple

from ensemble.report.evaluation import Evaluation
from ensemble.report.svg import data_url, escaped
from ensemble.report.training import as_text
from ensemble.storage.workdir import Workdir


class _Returned(NamedTuple):
    report: dict[str, Any]
    predictor: Any


class TrainResult(_Returned):
    """What `train` returns: a pair that shows itself as its table, in a notebook with its plots.

    Attributes:
        report: content of results.json.
        predictor: the ensemble as a function.
        workdir: where the run lives, with the plots; None where nothing was kept.
        data: draws of a NumPyro model or a log density, as the installed ArviZ takes them. None of
            a network: the workdir has its draws, as `posterior.nc` and in `draws/`.
        evaluation: of the test or else the validation split; None if nothing is scored.
    """

    workdir: str | None = None
    data: Any = None
    evaluation: Evaluation | None = None

    def __repr__(self) -> str:
        where = "" if self.workdir is None else f"\n\nResults: {self.workdir}"
        return as_text(self.report, self.evaluation) + where

    def _repr_html_(self) -> str | None:
        if not self.report:
            return None
        files = [] if self.workdir is None else sorted(Workdir(self.workdir).plots.glob("*.png"))
        style = "max-width:100%;display:block;margin-top:1em"
        plots = "".join(
            f'<img style="{style}" alt="{file.stem}" src="{data_url(file.read_bytes())}">'
            for file in files
        )
        return f"<pre>{escaped(repr(self))}</pre>{plots}"
