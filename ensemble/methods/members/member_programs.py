"""The compiled programs of the engine for one placement of members on the devices.

The fused training step is one program for all members on all devices. It composes `apply_member`
and `update_member`, the same two functions that the public `apply_model` and `update_model` map,
and adds what the loop needs around them: augmentation and normalisation on the device, members of
one device side by side, one member over several devices, the prior, and the metrics of the mean of
softmax.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from clu import metrics as clu_metrics
from flax import serialization

from ensemble import target_rows
from ensemble.batched_prediction import make_predict
from ensemble.errors import UserError
from ensemble.likelihood import HERE, Likelihood, Reduce
from ensemble.method import Status
from ensemble.methods.members.augmenting import augmented, augments
from ensemble.methods.members.batching import Batch, Rows
from ensemble.methods.members.member import (
    Objective,
    Output,
    Stream,
    TrainState,
    apply_member,
    create_member,
    keep_best,
    update_member,
)
from ensemble.methods.members.optimizers import Descent
from ensemble.network import Variables, path_name
from ensemble.notes import note
from ensemble.sharding import processes, transfer
from ensemble.sharding.member_parts import (
    bytes_per_device,
    check_annotations,
    fewest_member_devices,
    mesh_shape,
)
from ensemble.sharding.mesh import DATA, ENSEMBLE, MODEL, spec
from ensemble.sharding.placement import EVERYWHERE, MEMBERS, Placement
from ensemble.storage.checkpoint import check_shapes
from ensemble.storage.memory import device_bytes
from ensemble.task import Aux, Learned

Metrics = dict[str, clu_metrics.Average]
"""Averages over the steps of a chunk, each a (total, count) pair that merges by addition."""

TOTALS = "totals"
"""What a checkpoint calls the sums of metrics that are yet to be reported."""

_STATE_SHARE = 50
"""Percent of a device that parameters, gradients and optimiser may take; activations the rest."""


class Programs(NamedTuple):
    """The compiled functions for one placement."""

    placement: Placement
    create: Callable[..., TrainState]
    train_steps: Callable[..., tuple[Any, ...]]
    keep_best: Callable[..., TrainState]
    predict: Callable[..., dict[str, np.ndarray]]


def _say_what_is_idle(placement: Placement, num_devices: int) -> None:
    """Names what would use accelerators that do nothing for members; cores are shared anyway."""
    num_members = placement.num_members
    if num_members >= num_devices or placement.platform == "cpu":
        return
    now, used = placement.member_devices, placement.mesh.size
    idle = {now: num_devices - used * num_members // placement.num_places}
    for k in range(2, num_devices + 1):
        if num_devices % k == 0 and k != now:
            groups = mesh_shape(num_members, num_devices, k)[ENSEMBLE]
            num_places = groups * -(-num_members // groups)
            idle[k] = num_devices - num_devices * num_members // num_places
    best = min(idle, key=lambda k: (idle[k], k != now, k))
    wider = f"; or config.member_devices={best}, where the method has it" if best != now else ""
    if idle[now]:
        note(
            f"{idle[now]} of {num_devices} devices compute padding, nothing of the {num_members} "
            f"members: use config.ensemble_size={num_devices}{wider}."
        )


def build_programs(
    config: ml_collections.FrozenConfigDict,
    task: Learned,
    descent: Descent,
    num_members: int,
    devices: Sequence[jax.Device],
) -> Programs:
    """Places members on the devices and makes the programs that move them there.

    Args:
        config: of the run.
        task: what the members learn.
        descent: one for all placements: the state's tree structure depends on its optimiser.
        num_members: M.
        devices: D, all of which are used.
    """
    check_accumulation(config, task)
    annotations = task.traits.annotations

    def create(number: jax.Array, rng_key: jax.Array, given: dict[str, Any]) -> TrainState:
        member_key = jax.random.fold_in(rng_key, number)
        variables = task.init_variables(member_key)
        member = create_member(
            member_key,
            with_given(variables, given) if given else variables,
            task.predict,
            descent.optimizer,
            keep_best=config.early_stopping_epochs > 0,
        )
        if descent.seed is None:
            return member
        return member.replace(opt_state=descent.seed(member.opt_state, member_key))

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
    _say_what_is_idle(placement, len(devices))
    if placement.splits_members:
        sizes = {axis: placement.mesh.shape[axis] for axis in (DATA, MODEL)}
        check_annotations(placement.annotations, task.params_shapes(), sizes)

    return Programs(
        placement=placement,
        create=placement.map_devices(
            jax.vmap(create, in_axes=(0, None, 0)),
            (MEMBERS, EVERYWHERE, MEMBERS),
            MEMBERS,
            donate=(2,),
            runs_once=True,
        ),
        train_steps=make_train_steps(config, task, placement, descent.own),
        keep_best=placement.map_devices(
            jax.vmap(functools.partial(keep_best, patience=config.early_stopping_epochs)),
            (MEMBERS, MEMBERS),
            MEMBERS,
            donate=(0,),
        ),
        predict=make_predict(task.predict, placement, task.num_estimators),
    )


def with_given(variables: Variables, given: Variables) -> Variables:
    """Puts what is given to a member in the place of what it would have started with."""
    arrays = {path_name(path): leaf for path, leaf in jax.tree.leaves_with_path(given)}
    return jax.tree.map_with_path(lambda path, leaf: arrays.get(path_name(path), leaf), variables)


def make_train_steps(
    config: ml_collections.FrozenConfigDict,
    task: Learned,
    placement: Placement,
    own: Callable[[jax.Array], dict[str, jax.Array]] | None = None,
) -> Callable[..., tuple[TrainState, Metrics, Metrics]]:
    """Returns `(states, member_metrics, ensemble_metrics, rows, batches, step, count) -> ...`.

    States and member metrics are [num_places, ...], ensemble metrics [], `rows` is a `Rows` or
    None, the batches are of `place_shared_steps` or `place_separate_steps`, `step` is the members'
    common step before the first of them, and `count` how many of the K are taken; both are host
    integers. States and metrics that go in are donated; the metrics that come out have the steps
    added. `own` is of `Descent`.
    """
    shared = config.batching == "shared"
    # Of members, in the inputs that networks see, and in the other arrays of a batch.
    is_alike = own is None or not augments(config)
    input_axis, axis = None if shared and is_alike else 0, None if shared else 0
    objective, likelihood = make_objective(config, task), task.likelihood
    options: Mapping[str, str] = {}
    if config.rematerialise:
        # Few runs trade time for memory.
        from ensemble.methods.members.rematerialise import COMPILER_OPTIONS, rematerialised

        objective = rematerialised(objective)
        options = COMPILER_OPTIONS.get(placement.platform, {})
    over = Reduce(placement.sum_over_groups, placement.max_over_groups)
    # Member k's key is the seed's folded with k; no member has this number.
    key_augment = jax.random.fold_in(jax.random.key(config.seed), 2**32 - 1)

    prepare = functools.partial(_prepare, config, task)

    def differentiate(
        state: TrainState, inputs: jax.Array, batch: Batch, rng_key: jax.Array
    ) -> Output:
        def of_member(*args: Any) -> tuple[jax.Array, Aux]:
            return objective(*args, own(state.rng_key)) if own else objective(*args)

        if config.gradient_accumulation > 1:
            batch = batch.replace(inputs=inputs)
            return accumulate(state, of_member, batch, rng_key, config.gradient_accumulation)
        return apply_member(state, of_member, inputs, batch.targets, batch.weights, rng_key)

    update = functools.partial(_update, task, placement)

    def step_fn(
        states: TrainState,
        member_metrics: Metrics,
        ensemble_metrics: Metrics,
        batch: Batch,
        step: jax.Array,
    ) -> tuple[TrainState, Metrics, Metrics]:
        if input_axis is None:
            key = jax.random.fold_in(key_augment, step)
            inputs = prepare(batch.inputs, key, batch.positions)
        else:
            keys = jax.vmap(lambda state: state.step_key(Stream.AUGMENT, step))(states)
            each = jax.vmap(prepare, in_axes=(axis, 0, axis))
            inputs = each(batch.inputs, keys, batch.positions)
        batch = batch.replace(inputs=None)
        keys = jax.vmap(lambda state: state.step_key(Stream.DROPOUT, state.step))(states)
        # Networks alone are mapped slot by slot: every copy of a program takes time to compile.
        axes = (0, input_axis, axis, 0)
        mapped = placement.map_slots(differentiate, axes, one_by_one=config.rematerialise)
        output = mapped(states, inputs, batch, keys)
        states, metrics = jax.vmap(update, in_axes=(0, 0, axis))(states, output, batch)
        member_metrics = _add(member_metrics, placement.sum_over_slices(metrics))
        if shared:
            # Of the status after the step: one that has just failed must not poison the mean.
            live = (states.status == Status.ACTIVE) | (states.status == Status.STOPPED_EARLY)
            predicted, live = _estimators(output.predicted, task.num_estimators, live)
            scores = likelihood.mixture_scores(predicted, batch.targets, live, over)
            metrics = {name: _mean(name, score, batch) for name, score in scores.items()}
            ensemble_metrics = _add(ensemble_metrics, placement.sum_over_slices(metrics))
        return states, member_metrics, ensemble_metrics

    results = (MEMBERS, MEMBERS, EVERYWHERE)
    of_batches = spec(None, "example") if shared else spec("member", None, "example")
    return placement.map_devices(
        _in_line(step_fn, axis=0 if shared else 1),
        (*results, EVERYWHERE, of_batches, EVERYWHERE, EVERYWHERE),
        results,
        donate=(0, 1, 2),
        options=options,
    )


def _prepare(
    config: ml_collections.FrozenConfigDict,
    task: Learned,
    inputs: jax.Array,
    rng_key: jax.Array,
    positions: jax.Array,
) -> jax.Array:
    """Augments and normalises inputs [B, ...] at positions [B] of the whole batch."""
    if augments(config):
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(rng_key, positions)
        inputs = augmented(config, keys, inputs)
    return task.prepare(inputs)


def _update(
    task: Learned, placement: Placement, state: TrainState, output: Output, batch: Batch
) -> tuple[TrainState, Metrics]:
    """Takes a member's step, by the gradients of all its slices and of the prior."""
    gradients, loss, weight = placement.sum_over_slices(
        (output.gradients, output.loss, jnp.sum(batch.weights))
    )
    log_prior, prior_gradients = jax.value_and_grad(task.log_prior)(state.params)
    gradients = jax.tree.map(
        lambda g, p: g / weight - p / task.num_train_examples, gradients, prior_gradients
    )
    loss = loss / weight - log_prior / task.num_train_examples
    progress = task.likelihood.progress
    if task.num_estimators == 1:
        scores = task.likelihood.example_scores(output.predicted, batch.targets)
    else:
        predicted = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), output.predicted)
        each = jnp.ones(task.num_estimators, bool)
        scores = task.likelihood.mixture_scores(predicted, batch.targets, each, HERE)
    metrics = {
        "loss": clu_metrics.Average.from_model_output(loss),
        progress: _mean(progress, scores[progress], batch),
    }
    return update_member(state, gradients, loss, output.model_state), metrics


def _estimators(
    predicted: dict[str, jax.Array], num_estimators: int, live: jax.Array
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Predictions [slots, B, K, ...] as those of K times as many, and which of these live."""
    if num_estimators == 1:
        return predicted, live

    def apart(leaf: jax.Array) -> jax.Array:
        leaf = jnp.moveaxis(leaf, 2, 1)
        return leaf.reshape(-1, *leaf.shape[2:])

    return jax.tree.map(apart, predicted), jnp.repeat(live, num_estimators)


def _in_line(step_fn: Callable[..., Any], axis: int) -> Callable[..., Any]:
    """Takes `count` steps, one after the other.

    Args:
        step_fn: `(states, member_metrics, ensemble_metrics, batch, step) -> the first three`.
        axis: of steps, in the arrays of `batches`.
    """

    def steps_fn(
        states: TrainState,
        member_metrics: Metrics,
        ensemble_metrics: Metrics,
        rows: Rows | None,
        batches: Batch,
        step: jax.Array,
        count: jax.Array,
    ) -> tuple[TrainState, Metrics, Metrics]:
        def one(i: Any, carry: tuple[TrainState, Metrics, Metrics]) -> Any:
            batch = jax.tree.map(
                lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, axis, keepdims=False), batches
            )
            batch = batch if rows is None else rows.batch(batch)
            return step_fn(*carry, batch, step + i)

        carry = (states, member_metrics, ensemble_metrics)
        if batches.mask.shape[axis] == 1:  # Without a loop, in which XLA:CPU convolves slowly.
            return one(0, carry)
        return jax.lax.fori_loop(0, count, one, carry)

    return steps_fn


def accumulate(
    state: TrainState, objective: Objective, batch: Batch, rng_key: jax.Array, num_parts: int
) -> Output:
    """Does what `apply_member` does, in parts one after another, of which one is in memory at a
    time.

    Args:
        state: one member's, of a network without state of its own.
        objective: that is maximised.
        batch: of the member, prepared.
        rng_key: of the network's noise in this step; each part has its own.
        num_parts: P; example i is in part i % P, so that every device has some of each part.
    """
    size = batch.weights.shape[0]
    rows = -(-size // num_parts)

    def parts(leaf: jax.Array, fill: float | None = None) -> jax.Array:
        padded = transfer.pad(leaf, rows * num_parts, fill=fill)
        return jnp.swapaxes(padded.reshape(rows, num_parts, *leaf.shape[1:]), 0, 1)

    def one(sums: Any, part: Any) -> Any:
        number, inputs, targets, weights = part
        key = jax.random.fold_in(rng_key, number)
        output = apply_member(state, objective, inputs, targets, weights, key)
        sums = jax.tree.map(jnp.add, sums, (output.gradients, output.loss))
        return sums, output.predicted

    nothing = jax.tree.map(jnp.zeros_like, state.params), jnp.zeros((), jnp.float32)
    columns = (
        np.arange(num_parts),
        *jax.tree.map(parts, (batch.inputs, batch.targets)),
        parts(batch.weights, 0),
    )
    (gradients, loss), predicted = jax.lax.scan(one, nothing, columns)
    predicted = jax.tree.map(
        lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:])[:size], predicted
    )
    return Output(gradients, loss, predicted, state.model_state)


def check_accumulation(config: ml_collections.FrozenConfigDict, task: Learned) -> None:
    """Refuses batches in parts to networks whose statistics are of a batch.

    Raises:
        UserError: as said.
    """
    if config.gradient_accumulation > 1 and task.traits.has_state:
        raise UserError(
            f"config.gradient_accumulation={config.gradient_accumulation} would give the network "
            f"config.model={config.model!r} the statistics of a part for those of a batch; set it "
            "to 1, or choose a network without batch statistics"
        )


def make_objective(config: ml_collections.FrozenConfigDict, task: Learned) -> Objective:
    """What a member maximises: the log likelihood, as far as nothing else is configured.

    It is an `Objective` that may be given a last argument, what the member has of its own: a
    `label_smoothing` in place of the configuration's, and `dropout`, a rate of the network's.

    Labels may be smoothed. The gradients of examples may be weighted by a power of their predicted
    variance (beta-NLL, Seitzer et al. 2022, arXiv:2203.09168); values are then the log likelihood
    still.

    Raises:
        UserError: the likelihood has no labels to be smoothed, or no scale to weight by.
    """
    if config.label_smoothing and not hasattr(task.likelihood, "smoothed_log_prob"):
        raise UserError(
            f"config.label_smoothing={config.label_smoothing} is for classes, and "
            f"config.likelihood={task.likelihood.name!r} is for numbers; set it to 0"
        )
    if config.beta_nll and not hasattr(task.likelihood, "relative_variance"):
        raise UserError(
            f"config.beta_nll={config.beta_nll} is for likelihoods of a location and a scale, such "
            f"as 'gaussian', of one target; this is {task.likelihood.name!r} of "
            f"{task.likelihood.num_targets}: set it to 0"
        )

    def objective(
        variables: Variables,
        inputs: jax.Array,
        targets: jax.Array,
        rng_key: jax.Array,
        own: Mapping[str, jax.Array] = MappingProxyType({}),
    ) -> tuple[jax.Array, Aux]:
        learned: Any = task  # Whose network has been checked to have a rate.
        if "dropout" in own:
            learned = learned.with_dropout(own["dropout"])
        log_prob, aux = learned.log_likelihood(variables, inputs, targets, True, rng_key)
        if config.label_smoothing or "label_smoothing" in own:
            smoothed: Any = task.likelihood  # Which `label_smoothing` has been checked to suit.
            smoothing = own.get("label_smoothing", config.label_smoothing)
            log_prob = smoothed.smoothed_log_prob(aux.outputs, targets, smoothing)
        if config.beta_nll:
            scaled: Any = task.likelihood  # Likewise, by `beta_nll`.
            weight = scaled.relative_variance(aux.predicted) ** config.beta_nll
            weighted = jax.lax.stop_gradient(weight) * log_prob
            log_prob = weighted + jax.lax.stop_gradient(log_prob - weighted)
        return log_prob, aux

    return objective


def _mean(name: str, scores: jax.Array, batch: Batch) -> clu_metrics.Average:
    mask = target_rows.scored(name, batch.targets, batch.mask)
    return clu_metrics.Average.from_model_output(scores, mask=mask)


def _add(totals: Metrics, metrics: Metrics) -> Metrics:
    return jax.tree.map(jnp.add, totals, metrics)


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
    return jnp.where(placement.padding, np.int8(Status.PADDING), status)
