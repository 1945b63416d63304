"""One network in place of an ensemble: a run that learns from another one's workdir."""

import os
from collections.abc import Mapping
from typing import Any

from ensemble.config import by_path, fields_for, flatten
from ensemble.data.data_forms import bundled
from ensemble.errors import InputError
from ensemble.predictor import check_is_workdir
from ensemble.run.loop import TrainResult, train
from ensemble.storage.selection import is_selection
from ensemble.storage.workdir import Workdir

_METHOD = "deep_ensemble"
_NOT_TAKEN = {"method", "ensemble_size", "prior", "class_weights", "label_smoothing"}
"""Keys of the teacher that its student does not take: they are of many networks, or of labels."""


def distill(
    teacher: str | os.PathLike[str],
    workdir: str | None = None,
    config: Mapping[str, Any] | None = None,
    data: Any = None,
    *,
    started: float | None = None,
    show_progress: bool = True,
) -> TrainResult:
    """Trains one network to predict what an ensemble predicts, and lays it beside that.

    Args:
        teacher: workdir of the ensemble, which is not changed.
        workdir: of the run, as of `train`.
        config: keys that are to differ from the teacher's, such as `model`, `num_epochs` or
            `likelihood`. `ensemble_size` is 1 otherwise.
        data: the arrays that the teacher has learned, if it was given arrays.
        started: as of `train`.
        show_progress: as of `train`.

    Returns:
        As of `train`. The report's entry `distillation` has the scores, sizes and speeds of both.

    Raises:
        InputError: as of `train`, or the teacher is no workdir with an ensemble.
        TrainingError: as of `train`.
        Interrupted: as of `train`.
    """
    work = Workdir(teacher)
    if is_selection(work):
        raise InputError(
            f"{teacher} selects members of several runs, which cannot be distilled; name one of "
            "these runs"
        )
    check_is_workdir(work)
    values = _student_config(work, by_path(config or {}))
    return train(values, data, workdir, started=started, show_progress=show_progress)


def _student_config(work: Workdir, values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run that learns from an ensemble: as the ensemble's, of one network.

    Of a teacher that SGD has not trained, how to train is by `data_forms.bundled`.
    """
    of_teacher = flatten(work.read_config() or {})
    chosen = {"method": _METHOD, "task": "distillation", "ensemble_size": 1}
    own = fields_for({**of_teacher, **values, **chosen})
    taken = {key: one for key, one in of_teacher.items() if key in own and key not in _NOT_TAKEN}
    if of_teacher.get("method") != _METHOD:
        taken.pop("init_from", None)  # It says where chains started.
    if "num_epochs" not in taken:
        data = work.read_report().get("dataset", {})
        descent = bundled(data.get("input_shape", ()), "table" in data, _METHOD)
        if values.keys() & {"optimizer", "learning_rate"}:  # Which suit each other only.
            descent = {"num_epochs": descent["num_epochs"]}
        if values.get("num_steps"):
            del descent["num_epochs"]
        descent.pop("model", None)
        taken = {key: one for key, one in descent.items() if key in own} | taken
    return {**taken, **chosen, "teacher": os.fspath(work.path), **values}
