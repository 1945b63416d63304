"""An ensemble as a function, for other programs."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ensemble import metrics
from ensemble.classification import Classification, described_dataset
from ensemble.errors import UserError
from ensemble.placement import Placement
from ensemble.prediction import make_predict


class Prediction(NamedTuple):
    """What an ensemble says of N inputs.

    Attributes:
        probs: [N, C], the mean of softmax over members.
        label: [N], the most probable class.
        total: [N], entropy of `probs`, nats.
        aleatoric: [N], mean entropy of the members, nats.
        epistemic: [N], mutual information, nats: what the members disagree on.
        member_log_probs: [M, N, C].
    """

    probs: np.ndarray
    label: np.ndarray
    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    member_log_probs: np.ndarray


class Predictor:
    """Predicts with all members; compiled once for each batch shape.

    Args:
        task: what the members have learned.
        variables: host tree [M, ...] of the live members' variables.
        members: their numbers.
        num_devices: to use; None for all.
    """

    def __init__(
        self,
        task: Classification,
        variables: Any,
        members: Sequence[int],
        num_devices: int | None = None,
    ):
        self.task = task
        self.members = tuple(members)
        placement = Placement.create(len(self.members), num_devices)
        self._predict = make_predict(task, placement)
        self._variables = placement.place_members(variables)

    def __call__(self, inputs: np.ndarray) -> Prediction:
        """Predicts inputs [N, ...] of any N > 0, as raw as the training data were.

        Raises:
            UserError: an example has another shape than the training data's, or there is none.
        """
        inputs = np.asarray(inputs)
        shape = self.task.dataset.input_shape
        if shape[-1] == 1 and inputs.shape[1:] == shape[:-1]:
            inputs = inputs[..., None]  # As the data are read: [N, H, W] are grey images.
        if inputs.shape[1:] != shape or not len(inputs):
            raise UserError(
                f"inputs of shape {inputs.shape}: the ensemble takes [N, "
                f"{', '.join(map(str, shape))}] with N > 0"
            )
        log_probs = self._predict(self._variables, inputs)
        probs = np.exp(metrics.ensemble_log_probs(log_probs))
        return Prediction(
            probs=probs,
            label=probs.argmax(axis=-1),
            member_log_probs=log_probs,
            **metrics.uncertainty(log_probs),
        )


def load(workdir: str | os.PathLike[str], num_devices: int | None = None) -> Predictor:
    """Loads the ensemble of a workdir's newest checkpoint; the workdir is not changed.

    Args:
        workdir: of a run, finished or not.
        num_devices: to predict on; None for all.

    Raises:
        UserError: it is no workdir, or has no checkpoint, or no live member.
    """
    import models
    from ensemble import startup
    from ensemble.checkpoint import Checkpointer
    from ensemble.members import Status
    from ensemble.workdir import Workdir

    startup.configure(num_devices)
    work = Workdir(workdir)
    if work.read_config() is None:
        raise UserError(f"{work.path} is not a workdir: it has no config.json")
    checkpointer = Checkpointer(work.checkpoints)
    saved = checkpointer.restore_latest(read_only=True)
    checkpointer.close()
    if saved is None:
        raise UserError(f"{work.path} has no checkpoint yet; wait for the first")
    arrays, meta = saved
    counters = meta["counters"]
    joined = counters["num_members"]
    if counters["step"] < counters["waiting_step"]:
        joined = counters["num_waiting"]  # The newcomers have not caught up yet.
    failed = work.read_report().get("failed_members", {})
    live = [
        k
        for k, status in enumerate(arrays["status"][:joined])
        if status != Status.NON_FINITE and str(k) not in failed
    ]
    if not live:
        raise UserError(f"{work.path} has no live member; train again with another configuration")
    dataset = described_dataset(meta["dataset"])
    model = models.create(meta["config"]["model"], dataset.num_classes)
    variables = chosen_variables(jax.tree.map(lambda leaf: leaf[np.array(live)], arrays))
    return Predictor(Classification(dataset, model), variables, live, num_devices)


def chosen_variables(arrays: dict[str, Any]) -> dict[str, Any]:
    """The variables to predict with, of a checkpoint's arrays."""
    if arrays["best"] is not None:
        return arrays["best"]["variables"]
    return {"params": arrays["params"], **arrays["model_state"]}
