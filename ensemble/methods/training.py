"""Common parts of all methods whose members descend by batches."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble import pytrees
from ensemble.config import with_defaults
from ensemble.config.builtin import DeepEnsemble
from ensemble.data.batches import epoch_batches
from ensemble.data.labels import class_weights
from ensemble.data.source import Source
from ensemble.errors import InputError
from ensemble.methods.augmenting import augmentation
from ensemble.methods.descent import apart, descent, ensemble_scores, make_objective
from ensemble.methods.optimizers import Descent, check_descent
from ensemble.notes import note
from ensemble.runtime.algorithm import Algorithm, Between, Now, Status
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Batch, Batches, Fixed, Order
from ensemble.runtime.loop import Period
from ensemble.runtime.method import Method, Report
from ensemble.sharding import processes
from ensemble.storage.memory import device_bytes, memory_bytes
from ensemble.tasks.supervised import Supervised

_BLOCK = 256
"""Validation examples that a member predicts at a time."""


class DescentReport(Report):
    """Report of members that descend.

    Args:
        config: Configuration of the run.
        task: Task of the run.
        descent: How members move.
    """

    def __init__(self, config: Any, task: Supervised, descent: Descent):
        super().__init__(config, task, f"lower config.learning_rate={config.learning_rate}")
        self.schedule = jax.jit(descent.learning_rate)  # Not a program for each operation.

    def scalars(self, run: Any, period: Period) -> dict[str, float]:
        """Means over steps, and the learning rate of the last one."""
        rate = self.schedule(period.end - 1)
        return {"train/learning_rate": float(rate), **super().scalars(run, period)}

    def resumed(self, run: Any, step: int, goal: int) -> None:
        """Notes that a schedule is stretched."""
        name = self.config.get("lr_schedule", "constant")
        if run.goal > goal and name != "constant":
            note(
                f"The schedule {name!r} is stretched from {goal} to {run.goal} steps: the learning "
                f"rate jumps at step {step}."
            )


def with_own_keys(config: ml_collections.FrozenConfigDict) -> ml_collections.FrozenConfigDict:
    """Returns a configuration in which keys of deep ensembles that it lacks have their defaults."""
    return with_defaults(config, DeepEnsemble)


def num_steps(config: ml_collections.FrozenConfigDict, task: Supervised) -> int:
    """Returns the steps that the configuration asks for."""
    epoch = Epochs.of(config, task.num_train_examples).steps
    return int(config.num_steps or config.num_epochs * epoch)


def divided(steps: int, key: str, number: int) -> list[int]:
    """Returns the ends of equal parts of some steps, as evenly as whole steps can be.

    Args:
        steps: Steps of all parts.
        key: Key of their number.
        number: Their number.

    Raises:
        InputError: There are fewer steps.
    """
    if steps < number:
        raise InputError(
            f"config.{key}={number} is more than the {steps} steps for it; raise config.num_epochs"
        )
    return [math.ceil((i + 1) * steps / number) for i in range(number)]


class Epochs(NamedTuple):
    """Passes over the examples, in batches.

    Attributes:
        num_examples: Examples that a member learns from.
        batch_size: Examples of a batch; a larger one would be filled up with what counts nothing.
    """

    num_examples: int
    batch_size: int

    @classmethod
    def of(cls, config: ml_collections.FrozenConfigDict, num_examples: int) -> "Epochs":
        """Returns the epochs of a configuration."""
        return cls(num_examples, int(min(config.batch_size, num_examples)))

    @property
    def steps(self) -> int:
        """Steps in which a member sees all examples."""
        return -(-self.num_examples // self.batch_size)

    def examples_before(self, step: int) -> int:
        """Examples that a member has seen before a step."""
        return step * self.num_examples // self.steps


def create(
    config: ml_collections.FrozenConfigDict,
    task: Supervised,
    descent_of: Callable[[ml_collections.FrozenConfigDict, int], Descent],
    *,
    learned: Supervised | None = None,
    wrap: Callable[[Algorithm, Devices, Sequence[int]], Algorithm] | None = None,
    report: Callable[..., Report] = DescentReport,
    **more: Any,
) -> Method:
    """Makes a method whose members descend.

    Args:
        config: Configuration of the run.
        task: What the run learns.
        descent_of: Makes of configuration and steps how members move.
        learned: What its members learn, if that is another task.
        wrap: Makes another algorithm of their descent, before they may stop early.
        report: Makes of configuration, task and descent what the run says.
        **more: Further fields of the method.
    """
    given_config = config
    config = with_own_keys(config)
    learned = learned or task
    steps = num_steps(config, task)
    how = descent_of(config, steps)
    check_descent(config, how, learned.params_shapes)
    epochs = Epochs.of(config, task.num_train_examples)
    patience = config.early_stopping_epochs
    start = None
    if config.init_from:
        from ensemble.methods import given_weights  # Most members start by themselves.

        start = functools.partial(given_weights.start, config, learned)

    def algorithm(devices: Devices, numbers: Sequence[int]) -> Algorithm:
        found = descending(config, learned, devices, numbers, steps, how)._replace(start=start)
        if wrap is not None:
            found = wrap(found, devices, numbers)
        if not patience:
            return found
        data = validation(learned, devices, f"config.early_stopping_epochs={patience}")
        return stopping_early(found, learned, devices, patience, data, epochs.steps)

    return of_members(
        given_config,
        task,
        epochs,
        members_learn=learned,
        place=functools.partial(place, config, learned),
        algorithm=algorithm,
        report=report(config, task, how),
        **more,
    )


def descending(
    config: ml_collections.FrozenConfigDict,
    task: Supervised,
    devices: Devices,
    numbers: Sequence[int],
    steps: int,
    how: Descent,
    order: Order | None = None,
) -> Algorithm:
    """Makes the algorithm of members that descend to their last step.

    Args:
        config: Configuration of the run.
        task: What the members learn.
        devices: Placement of the members.
        numbers: Their numbers.
        steps: Steps of the run.
        how: How they move.
        order: As of `batches`.
    """
    feed = batches(config, task, devices, numbers, steps, order)
    init, step = descent(task, devices, make_objective(config, task), how)
    return Algorithm(
        init,
        step,
        None,
        steps,
        feed,
        steps_per_program=feed.steps_per_program,
        together=None if feed.per_member else ensemble_scores(task),
    )


def of_members(
    config: ml_collections.FrozenConfigDict, task: Any, epochs: Epochs, **more: Any
) -> Method:
    """Makes a method of members that see the training data in epochs.

    Args:
        config: Configuration of the run.
        task: What the run learns.
        epochs: Passes of a member over its examples.
        **more: Further fields of the method.
    """
    return Method(
        config=config,
        task=task,
        num_members=config.ensemble_size,
        steps_per_epoch=epochs.steps,
        examples_before=epochs.examples_before,
        tracked_split="validation" if "validation" in task.sizes else None,
        **more,
    )


def spread(config: ml_collections.FrozenConfigDict, task: Supervised, number: int) -> Devices:
    """Places members on the devices, each whole."""
    devices = processes.devices(config.num_devices)
    return Devices(number, devices, task.traits.examples_are_independent)


def place(config: ml_collections.FrozenConfigDict, task: Supervised, number: int) -> Devices:
    """Places members on the devices: each on one, unless it takes more than half of it.

    Raises:
        InputError: They do not fit, however they are split.
    """
    devices = processes.devices(config.num_devices)
    size, least = len(devices), 1 + bool(config.split_members)
    if devices[0].platform == "cpu" and least == 1:
        return spread(config, task, number)
    # Parameters, gradients and two moments.
    member = 4 * 4 * pytrees.size(task.params_shapes())
    room = processes.from_main(lambda: device_bytes(devices) // 2)
    for parts in (one for one in range(least, size + 1) if size % one == 0):
        if -(-number // (size // parts)) * member // parts > room:
            continue
        if parts == 1:
            return spread(config, task, number)
        note(f"Each member, of {member / 2**30:.3g} GiB, lies on {parts} of {size} devices.")
        return Devices(number, devices, splits_members=True, groups=size // parts)
    raise InputError(
        f"config.ensemble_size={number} members of {member / 2**30:.3g} GiB are too much for "
        f"{size} devices; use more devices, fewer members or a smaller network"
    )


def fits_on_devices(task: Supervised, devices: Devices) -> bool:
    """Returns whether accelerators have room for all training examples: a quarter of each."""
    source = task.dataset
    own = list(devices.mesh.devices.flat)
    if devices.platform == "cpu" or source.reads_ahead:
        return False
    row = math.prod(source.input_shape) * source.input_dtype.itemsize + 4
    needed = source.sizes["train"] * row + source.targets("train").nbytes
    room = processes.from_main(lambda: min(device_bytes(own) // 4, memory_bytes()))
    return bool(needed <= room)


def in_loop(task: Supervised, devices: Devices, steps: int) -> int:
    """Returns the steps of a program: XLA:CPU convolves slowly within a loop."""
    return 1 if task.traits.has_convolutions and devices.platform == "cpu" else steps


def batches(
    config: ml_collections.FrozenConfigDict,
    task: Supervised,
    devices: Devices,
    numbers: Sequence[int],
    steps: int,
    order: Order | None = None,
) -> Batches:
    """Makes the batches of a configuration.

    Args:
        config: Configuration of the run.
        task: What the members learn.
        devices: Placement of the members.
        numbers: Their numbers.
        steps: Steps of the run.
        order: Order of the examples, of each member its own; None: all, anew in each epoch.

    Raises:
        InputError: The class weights or augmentations do not suit the data.
    """
    source = task.dataset
    augment, weights = augmentation(config, source), weights_of(config, source)
    found = Batches(
        devices,
        numbers,
        source,
        order
        or functools.partial(epoch_batches, *Epochs.of(config, source.sizes["train"]), config.seed),
        weights=None if weights is None else weights.astype(np.float32),
        prepare=task.prepare,
        augment=augment,
        seed=config.seed,
        num_steps=steps,
        per_member=order is not None or config.shuffle == "independent",
        on_devices=fits_on_devices(task, devices),
    )
    found.steps_per_program = in_loop(task, devices, found.steps_per_program)
    return found


def weights_of(
    config: ml_collections.FrozenConfigDict, source: Any, with_classes: bool = True
) -> np.ndarray | None:
    """Returns how much examples of training count, [N]; None: all the same.

    Raises:
        InputError: There are class weights, and no classes.
    """
    weights: np.ndarray | None = source.train_weights
    spec = config.class_weights
    if not with_classes or spec == "none":
        return weights
    if not source.class_names:
        raise InputError(
            f"config.class_weights={spec!r} is for classes, and the targets are numbers; set it to "
            "'none'"
        )
    labels = source.targets("train")
    of_class = class_weights(spec, labels, len(source.class_names))[labels]
    return of_class if weights is None else weights * of_class


# Early stopping.


class StoppingEarly(NamedTuple):
    """A member that descends, and its best variables.

    Attributes:
        variables: Those with the lowest criterion so far.
        moving: The descent.
        lowest: That criterion, []; NaN after one that was NaN.
        waited: Evaluations since then, [] int32.
    """

    variables: Any
    moving: Any
    lowest: jax.Array
    waited: jax.Array


def stopping_early(
    algorithm: Algorithm,
    task: Supervised,
    devices: Devices,
    patience: int,
    data: Batch,
    epoch: int,
    first: int = 1,
    criteria: Callable[[jax.Array], jax.Array] = lambda losses: losses,
) -> Algorithm:
    """Makes members that stop without progress, and predict with their best variables.

    One whose criterion is NaN has failed.

    Args:
        algorithm: Algorithm of members whose state has `variables`.
        task: Task of the members.
        devices: Their placement.
        patience: Evaluations without a better criterion after which a member stops.
        data: Blocks, with an axis of members after the first if they hold out rows of their own.
        epoch: Steps between two evaluations.
        first: First step after which there may be one.
        criteria: Makes criteria of the losses [num_places].
    """

    def init(now: Now, batch: Any) -> StoppingEarly:
        return judged_from(algorithm.init(now, batch))

    def step(now: Now, state: StoppingEarly, batch: Any) -> Any:
        moving, info = algorithm.step(now, state.moving, batch)
        return state._replace(moving=moving), info

    def due(taken: int) -> bool:
        return taken >= first and (taken % epoch == 0 or taken == algorithm.num_steps)

    loss, axis = held_loss(task, devices), 1 if data.weights.ndim > 2 else None

    def judge(now: Now, states: StoppingEarly, status: jax.Array, data: Batch) -> Any:
        moving = states.moving.variables
        losses = criteria(devices.map_members(loss, (0, axis))(moving, data))
        active = status == Status.ACTIVE
        better = active & (losses < states.lowest)
        waited = jnp.where(better, 0, states.waited + active)
        judged = states._replace(
            variables=devices.map_members(pytrees.where)(better, moving, states.variables),
            lowest=jnp.where(active, jnp.minimum(losses, states.lowest), states.lowest),
            waited=waited,
        )
        stops = (waited >= patience) & (now.step > 0)  # Before the first step settings are tried.
        found = jnp.where(stops, Status.STOPPED_EARLY, status)
        found = jnp.where(jnp.isnan(losses), Status.NON_FINITE, found)
        return judged, jnp.where(active, found, status)

    evaluation = Between(due, judge, Fixed(data), of_all=True)
    return algorithm._replace(init=init, step=step, between=(*algorithm.between, evaluation))


def judged_from(moving: Any) -> StoppingEarly:
    """Starts with a member that has not been evaluated yet."""
    return StoppingEarly(moving.variables, moving, jnp.float32(jnp.inf), jnp.int32(0))


def validation(task: Supervised, devices: Devices, what: str) -> Batch:
    """The validation split in `blocks` of at most 256 examples.

    Args:
        task: Task of the members.
        devices: Their placement.
        what: Key and value that need the split, for the message.

    Raises:
        InputError: There is none.
    """
    number = task.dataset.sizes.get("validation")
    if not number:
        raise InputError(
            f"{what} needs a validation split; set config.train_on_all=False, or give the split"
        )
    rows = [np.arange(number)]
    return blocks(devices, task.dataset, "validation", rows, min(_BLOCK, number))


def blocks(
    devices: Devices,
    source: Source,
    split: str,
    rows: Sequence[np.ndarray],
    size: int,
    weights: np.ndarray | None = None,
) -> Batch:
    """Raw examples that members are judged by, in blocks [n, B, ...]; padding has weight zero.

    Args:
        devices: Placement of the members.
        source: Data.
        split: Split of the examples.
        rows: Numbers of the examples of each member, whose blocks are [n, M, B, ...]; or of one,
            which all members share.
        size: B.
        weights: [N] of the split, of examples of each member; None: they are shared, and count
            alike.
    """
    number = -(-max(map(len, rows)) // size) * size
    filled = np.stack([np.resize(one, number) for one in rows])
    counted = np.stack([np.arange(number) < len(one) for one in rows]).astype(np.float32)
    per_member = weights is not None
    if weights is not None:
        counted = (counted * weights[filled]).astype(np.float32)

    def cut(leaf: np.ndarray) -> np.ndarray:
        parts = leaf.reshape(len(rows), -1, size, *leaf.shape[2:])
        return np.swapaxes(parts, 0, 1) if per_member else parts[0]

    arrays = jax.tree.map(cut, (*source.read(split, filled), counted))
    inputs, targets, counted = devices.put_examples(arrays, 1 + per_member, per_member)
    return Batch(inputs, targets, counted, counted)


def held_loss(task: Supervised, devices: Devices) -> Callable[[Any, Batch], jax.Array]:
    """Returns `(variables, blocks) -> []`, the mean loss of one member's predictions, nats."""

    def losses(variables: Any, batch: Batch) -> jax.Array:
        predicted = apart(task.predict(variables, batch.inputs), task.num_estimators)
        return task.likelihood.scores(predicted, batch.targets)[task.likelihood.loss]

    return mean_loss(task, devices, losses)


def mean_loss(
    task: Supervised, devices: Devices, losses_of: Callable[[Any, Batch], jax.Array]
) -> Callable[[Any, Batch], jax.Array]:
    """Returns `(variables, blocks) -> [...]`, the mean of losses of one member.

    Args:
        task: Task of the members.
        devices: Their placement.
        losses_of: `(variables, batch) -> losses [..., B]`; that of weight 0 may be anything.
    """

    def of_slice(variables: Any, batch: Batch) -> Any:
        lost = jnp.where(batch.weights > 0, losses_of(variables, batch), 0) * batch.weights
        return (jnp.sum(lost, axis=-1), jnp.sum(batch.weights)), ()

    spread = devices.over_examples(of_slice, unrolls=True)

    def loss(variables: Any, blocks: Batch) -> jax.Array:
        def one(_: Any, block: Batch) -> Any:
            return None, spread(variables, block)[0]

        # XLA:CPU convolves slowly within a loop.
        unroll = task.traits.has_convolutions
        _, (lost, weight) = jax.lax.scan(one, None, blocks, unroll=unroll)
        return jnp.sum(lost, axis=0) / jnp.sum(weight)

    return loss
