"""One network in place of an ensemble: a run that learns from another one's workdir."""

import os
from collections.abc import Mapping
from typing import Any

from etils.epath import PathLike

from ensemble import pytrees
from ensemble.config import by_path, fields_for, flatten
from ensemble.data.data_forms import bundled
from ensemble.run.loop import train
from ensemble.run.results import TrainResult
from ensemble.runtime.loading import config_of
from ensemble.storage.workdir import Workdir

_METHOD = "deep_ensemble"
_TASK = "distillation"
_NOT_TAKEN = {"ensemble_size", "prior", "class_weights", "label_smoothing"}
"""Keys of the teacher that its student does not take: they are of many networks, or of labels."""


def distill(
    teacher: PathLike,
    workdir: str | None = None,
    config: Mapping[str, Any] | None = None,
    data: Any = None,
    *,
    show_progress: bool = True,
) -> TrainResult:
    """Trains one network to predict what an ensemble predicts.

    Args:
        teacher: workdir of the ensemble, which is not changed.
        workdir: of the run, as of `train`.
        config: keys that are to differ from the teacher's, such as `model`, `num_epochs` or
            `likelihood`. `ensemble_size` is 1 otherwise.
        data: the arrays that the teacher has learned, if it was given arrays.
        show_progress: as of `train`.

    Returns:
        As of `train`.

    Raises:
        InputError: as of `train`, or the teacher is no workdir with an ensemble.
        TrainingError: as of `train`.
        Interrupted: as of `train`.
    """
    work = Workdir(teacher)
    of_teacher = flatten(config_of(work))
    chosen = {"method": _METHOD, "task": _TASK, "ensemble_size": 1, "teacher": os.fspath(work.path)}
    chosen |= by_path(config or {})
    own = fields_for({**of_teacher, **chosen}).keys() - _NOT_TAKEN
    if of_teacher["method"] != _METHOD:
        own -= {"init_from"}  # It says where chains started.
    if "num_epochs" not in of_teacher:  # A sampler says nothing of training.
        about = work.read_report().get("dataset", {})
        usual = bundled(about.get("input_shape", ()), "table" in about, _METHOD)
        if chosen.keys() & {"optimizer", "learning_rate"}:  # Which suit each other only.
            usual = {"num_epochs": usual["num_epochs"]}
        of_teacher = {**pytrees.without(usual, "model"), **of_teacher}
    if chosen.get("num_steps"):
        of_teacher = pytrees.without(of_teacher, "num_epochs")
    taken = {key: one for key, one in of_teacher.items() if key in own}
    return train({**taken, **chosen}, data, workdir, show_progress=show_progress)
