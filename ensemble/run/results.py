"""What a finished run leaves and returns: scores, findings, predictions, plots, its ensemble."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ensemble import pytrees
from ensemble.config import FORMAT
from ensemble.notes import conclude, said
from ensemble.predictor import Ensemble
from ensemble.report import charts, plots
from ensemble.report.baselines import baselines
from ensemble.report.evaluation import VERSION, Evaluation
from ensemble.report.svg import data_url, escaped
from ensemble.report.training import as_text, training_findings
from ensemble.runtime.algorithm import Status
from ensemble.runtime.loading import PARAMETERS, Saved
from ensemble.runtime.run import Run
from ensemble.sharding import processes
from ensemble.storage.predictions import write_predictions
from ensemble.storage.workdir import Workdir, read_metrics

REPORTED_SPLITS = ("test", "validation")
"""Splits that are scored, the most telling first."""


class _Returned(NamedTuple):
    report: Any
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
        images = "".join(
            f'<img style="{style}" alt="{file.stem}" src="{data_url(file.read_bytes())}">'
            for file in files
        )
        return f"<pre>{escaped(repr(self))}</pre>{images}"


def result_of(run: Run) -> TrainResult:
    """Scores the members, says what there is to say of them, and writes the results.

    Args:
        run: A run whose members have taken all steps.
    """
    task, config, report, work = run.task, run.config, run.report, run.where.work
    report.judge(run)
    predictions = run.predictions([name for name in task.sizes if name != "train"])
    content: Any = {
        "format": FORMAT,
        "version": VERSION,
        "config": config.to_dict(),
        "dataset": task.describe(),
        "method": config.method,
        "num_members": len(run.numbers),
        "active_members": run.live,
        "failed_members": run.failed,
        "stopped_early": np.array(run.numbers)[run.loop.status == Status.STOPPED_EARLY].tolist(),
        "num_train_examples": task.num_train_examples,
        "timing": run.clock.timing(),
        **report.sections(run),
    }
    evaluation = None
    for split in (name for name in REPORTED_SPLITS if name in predictions):
        p, strata = predictions[split], task.dataset.strata(split)
        e = Evaluation(
            p,
            np.asarray(task.dataset.targets(split)),
            baselines=[] if evaluation else baselines(p, task.dataset, split),
            groups=None if strata is None else strata.groups,
            draw=content.get("single_draw", {}).get(split, {}),
            noun=report.noun,
            split=split,
        )
        evaluation = evaluation or e
        found = pytrees.without(e.scores(), "single_draw")  # Of all splits it is there.
        content.setdefault("metrics", {})[split] = found.pop("metrics")
        if e.targets:
            each = [{"name": name, **one.scores()} for name, one in e.targets.items()]
            content.setdefault("targets", {})[split] = each
        content = {**found, **content}
    arrays = {}  # As of a checkpoint.
    if task.dataset is not None and run.has_parameters():
        arrays[PARAMETERS] = run.devices.fetch_members(run.loop.parameters())
    result = TrainResult({}, None)
    if processes.is_main():
        findings = training_findings(content, evaluation, report.remedy)
        predictor = None
        if task.dataset is not None:
            about = config.to_dict(), task.describe()
            saved = Saved(work, *about, arrays, run.counters(), run.live, run.draws)
            parts = [(task, saved.fitted)]
            predictor = Ensemble(parts, run.live, config.num_devices, identity=work.identity())
        conclude(one.text for one in findings if one.level == "warning")
        content["findings"] = [one._asdict() for one in findings]
        content["notes"] = said()
        result = TrainResult(content, predictor)
        result.evaluation = evaluation
    if run.where.keep:
        report.write(run)
        if processes.is_main():
            if task.dataset is not None:
                for name, one in predictions.items():
                    targets = task.dataset.targets(name)
                    write_predictions(work, name, one, targets, run.live)
                metrics = {} if evaluation is None else evaluation.main
                panels = {"training": charts.learning_curves(read_metrics(work.metrics), metrics)}
                if evaluation is not None:
                    panels |= plots.figures(evaluation)
                plots.write(work.plots, panels)
            work.manifest.write(work.report, content)  # It says that all is there.
    result.data = report.data()
    processes.wait_for_all("written")
    return result
