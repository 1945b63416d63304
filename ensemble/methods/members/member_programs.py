"""The compiled programs of SGD for one placement of members on the devices."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
from clu import metrics as clu_metrics
from flax import serialization

from ensemble.batched_prediction import make_predict
from ensemble.likelihood import Likelihood
from ensemble.method import Status
from ensemble.methods.members import pretrained
from ensemble.methods.members.member import TrainState, create_member, keep_best
from ensemble.methods.members.train_step import (
    Metrics,
    check_accumulation,
    make_train_steps,
)
from ensemble.notes import note
from ensemble.sharding import processes, transfer
from ensemble.sharding.member_parts import (
    bytes_per_device,
    check_annotations,
    fewest_member_devices,
)
from ensemble.sharding.mesh import DATA, MODEL
from ensemble.sharding.placement import EVERYWHERE, MEMBERS, Placement
from ensemble.storage.checkpoint import check_shapes
from ensemble.storage.memory import device_bytes
from ensemble.task import Learned

TOTALS = "totals"
"""What a checkpoint calls the sums of metrics that are yet to be reported."""


_STATE_SHARE = 50
"""Percent of a device that parameters, gradients and optimiser may take; activations the rest."""


class Programs(NamedTuple):
    """The compiled functions for one placement."""

    placement: Placement
    wanted: pretrained.Wanted
    create: Callable[..., TrainState]
    train_steps: Callable[..., tuple[Any, ...]]
    keep_best: Callable[..., TrainState]
    predict: Callable[..., dict[str, np.ndarray]]


def build_programs(
    config: ml_collections.FrozenConfigDict,
    task: Learned,
    optimizer: optax.GradientTransformation,
    num_members: int,
) -> Programs:
    """Places members on the devices and makes the programs that move them there.

    Args:
        config: of the run.
        task: what the members learn.
        optimizer: one for all placements: the state's tree structure depends on its identity.
        num_members: M.
    """
    check_accumulation(config, task)
    devices = processes.devices(config.num_devices)
    annotations = task.traits.annotations

    def create(number: jax.Array, rng_key: jax.Array, given: dict[str, Any]) -> TrainState:
        member_key = jax.random.fold_in(rng_key, number)
        return create_member(
            member_key,
            pretrained.start(task.init_variables(member_key), given),
            task.predict,
            optimizer,
            keep_best=config.early_stopping_epochs > 0,
        )

    member_devices = config.member_devices
    if not member_devices:
        state = jax.eval_shape(create, np.uint32(0), jax.random.key(0), {})
        shapes = (state, state.params)  # The latter for gradients.
        memory = processes.from_main(lambda: _STATE_SHARE * device_bytes(devices) // 100)
        member_devices = fewest_member_devices(
            shapes, num_members, len(devices), memory, annotations
        )
        note(
            f"config.member_devices=0: {member_devices} of {len(devices)} devices hold each "
            f"member, whose state and gradients take {bytes_per_device(shapes, {}) / 2**30:.3g} "
            f"GiB; a device has {memory / 2**30:.3g} GiB for these."
        )
    placement = Placement.create(
        num_members,
        devices,
        task.traits.examples_are_independent,
        member_devices,
        annotations,
    )
    if placement.splits_members:
        sizes = {axis: placement.mesh.shape[axis] for axis in (DATA, MODEL)}
        check_annotations(placement.annotations, task.params_shapes(), sizes)

    return Programs(
        placement=placement,
        wanted=pretrained.Wanted(
            task.init_variables,
            task.dataset.input_shape,
            task.likelihood.num_outputs,
            task.traits.is_random,
        ),
        create=placement.map_devices(
            jax.vmap(create, in_axes=(0, None, 0)),
            (MEMBERS, EVERYWHERE, MEMBERS),
            MEMBERS,
            donate=(2,),
            runs_once=True,
        ),
        train_steps=make_train_steps(config, task, placement),
        keep_best=placement.map_devices(
            jax.vmap(functools.partial(keep_best, patience=config.early_stopping_epochs)),
            (MEMBERS, MEMBERS),
            MEMBERS,
            donate=(0,),
        ),
        predict=make_predict(task.predict, placement),
    )


def zero_metrics(placement: Placement, likelihood: Likelihood) -> tuple[Metrics, Metrics]:
    """Sums over no examples: of every member, and of the ensemble.

    Args:
        placement: of the members.
        likelihood: of the task.
    """

    def zeros(names: tuple[str, ...], *shape: int) -> Metrics:
        average = clu_metrics.Average(
            total=np.zeros(shape, np.float32), count=np.zeros(shape, np.int32)
        )
        return dict.fromkeys(names, average)

    of_members = zeros(("loss", likelihood.progress), placement.num_members)
    of_ensemble = zeros((likelihood.loss, likelihood.progress))
    return placement.place_members(of_members), placement.place_everywhere(of_ensemble)


def totals_to_host(placement: Placement, totals: tuple[Metrics, Metrics]) -> dict[str, Any]:
    """Fetches sums of metrics: of every member [M], of the ensemble [1]."""
    of_members, of_ensemble = totals
    ensemble = jax.tree.map(lambda leaf: leaf[None], transfer.fetch(of_ensemble))
    return {
        "members": serialization.to_state_dict(placement.gather_members(of_members)),
        "ensemble": serialization.to_state_dict(ensemble),
    }


def totals_from_host(
    placement: Placement, arrays: dict[str, Any], likelihood: Likelihood
) -> tuple[Metrics, Metrics]:
    """The inverse of `totals_to_host`, on any devices.

    Args:
        placement: of the members.
        arrays: as `totals_to_host` has returned them.
        likelihood: of the task.

    Raises:
        ValueError: the arrays are of other shapes.
    """
    templates = zero_metrics(placement, likelihood)
    restored = [
        serialization.from_state_dict(template, arrays[name])
        for template, name in zip(templates, ("members", "ensemble"), strict=True)
    ]
    of_ensemble = jax.tree.map(lambda leaf: leaf[0], restored[1])
    check_shapes(restored[0], templates[0], of_members=True)
    check_shapes(of_ensemble, templates[1])
    return placement.place_members(restored[0]), placement.place_everywhere(of_ensemble)


def mark_padding(placement: Placement, status: jax.Array) -> jax.Array:
    """The statuses of all places, those that pad marked as such."""
    return jnp.where(placement.padding, jnp.int8(Status.PADDING), status)
