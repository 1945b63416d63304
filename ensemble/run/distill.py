"""One network in place of an ensemble: a run that learns from another one's workdir."""

import os
from collections.abc import Collection, Mapping
from typing import Any

from ensemble.config import RUN, flatten, likelihood_block, method_block, model_block, task_block
from ensemble.errors import UserError
from ensemble.predictor import check_is_workdir
from ensemble.run.loop import Result, train
from ensemble.sources.data_forms import bundled
from ensemble.sources.tfds_records import data_dir_of_run
from ensemble.storage.selection import is_selection
from ensemble.storage.workdir import Workdir

_METHOD, _TASK = "sgd", "distillation"
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
) -> Result:
    """Trains one network to predict what an ensemble predicts, and lays it beside that.

    Args:
        teacher: workdir of the ensemble, which is not changed.
        workdir: of the run, as of `train`.
        config: keys that are to differ from the teacher's, such as `model`, `num_epochs` or
            `likelihood`: with 'dirichlet' the network also tells apart, as the ensemble does, what
            is uncertain because members disagree. `ensemble_size` is 1 otherwise.
        data: the arrays that the teacher has learned, if it was given arrays.
        started: as of `train`.
        show_progress: as of `train`.

    Returns:
        As of `train`. The report's entry `distillation` has the scores, sizes and speeds of both.

    Raises:
        UserError: as of `train`, or the teacher is no workdir with an ensemble.
        RunFailed: as of `train`.
        Interrupted: as of `train`.
    """
    check_apart(teacher, workdir)
    values = student_config(teacher, config or {})
    return train(values, data, workdir, started=started, show_progress=show_progress)


def check_apart(teacher: str | os.PathLike[str], workdir: str | None) -> None:
    """Refuses to learn from an ensemble in its own workdir.

    Raises:
        UserError: as said.
    """
    if is_selection(Workdir(teacher)):
        raise UserError(
            f"{teacher} selects members of several runs, which cannot be distilled; name one of "
            "these runs"
        )
    if workdir is not None and Workdir(workdir).path == Workdir(teacher).path:
        raise UserError(f"{workdir} holds the ensemble to learn from; choose another folder")


def student_config(teacher: str | os.PathLike[str], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run that learns from an ensemble: as the ensemble's, of one network.

    Args:
        teacher: workdir of the ensemble.
        overrides: keys that are to differ, nested or flat.

    Returns:
        Flat keys. Of a teacher that SGD has not trained, how to train is by `data_forms.bundled`.

    Raises:
        UserError: it is no workdir.
    """
    work = Workdir(teacher)
    check_is_workdir(work)
    of_teacher = flatten(work.read_config() or {})
    values = flatten(overrides)
    of_model = model_block(values.get("model", of_teacher.get("model"))).keys
    of_likelihood = likelihood_block(values.get("likelihood", of_teacher.get("likelihood"))).keys
    own = {*RUN.keys, *task_block(_TASK).keys, *method_block(_METHOD).keys}
    own |= {*of_model, *of_likelihood}
    taken = {key: one for key, one in of_teacher.items() if key in own and key not in _NOT_TAKEN}
    if of_teacher.get("method") != _METHOD:
        taken.pop("init_from", None)  # It says where chains started.
    if taken.get("data_dir") and "data_dir" not in values:
        name = str(values.get("dataset", taken["dataset"]))
        taken["data_dir"] = data_dir_of_run(name, taken["data_dir"]) or ""
    chosen = {"method": _METHOD, "ensemble_size": 1, "teacher": os.fspath(work.path)}
    if "num_epochs" not in taken:
        taken = _ways_to_train(work, own, values) | taken
    return taken | chosen | values


def _ways_to_train(
    work: Workdir, own: Collection[str], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Keys of SGD for a student whose teacher has none, as for data that nobody has seen."""
    data = work.read_report().get("dataset", {})
    chosen = bundled(data.get("input_shape", ()), "table" in data, "sgd")
    found = {key: one for key, one in chosen.items() if key in own and key != "model"}
    if values.keys() & {"optimizer", "learning_rate"}:  # Which suit each other only.
        found = {key: one for key, one in found.items() if key == "num_epochs"}
    if values.get("num_steps"):
        found.pop("num_epochs", None)
    return found
