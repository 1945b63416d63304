"""Common parts of all methods whose members descend by batches."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, random
from numpy.typing import NDArray

from ensemble import pytrees
from ensemble.config import Config, with_defaults
from ensemble.config.builtin import AUGMENTATIONS, DeepEnsemble
from ensemble.data.batches import augment, epoch_batches
from ensemble.data.labels import class_weights
from ensemble.data.source import Source
from ensemble.errors import InputError
from ensemble.fitted import apart
from ensemble.methods.optimizers import Descent, check_descent
from ensemble.network import Variables
from ensemble.notes import note
from ensemble.runtime.algorithm import Algorithm, Between, Info, Status, Stream
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Batch, Batches, Fixed, Order
from ensemble.runtime.loop import Period
from ensemble.runtime.method import Method, Report, Scalars
from ensemble.sharding import processes
from ensemble.storage.memory import device_bytes, memory_bytes
from ensemble.task import Aux
from ensemble.tasks.supervised import Supervised

Objective = Callable[..., tuple[Array, Aux]]
"""`(variables, inputs, targets, key) -> (log likelihood [B] in nats, what else there is)`."""
_BLOCK = 256
"""Validation examples that a member predicts at a time."""
_OWN = 2
"""Number that the key of an example is folded with; `augment` splits it: that takes 0 and 1."""


class DescentReport(Report):
    """Report of members that descend.

    Args:
        config: Configuration of the run.
        task: Task of the run.
        descent: Descent of the members.

    Attributes:
        share: Share of the scheduled learning rate that the members have.
    """

    share = 1.0

    def __init__(self, config, task: Supervised, descent: Descent):
        super().__init__(config, task, f"lower config.learning_rate={config.learning_rate}")
        self.schedule = jax.jit(descent.learning_rate)  # Not a program for each operation.

    def scalars(self, run, period: Period) -> Scalars:
        """Means over steps, and the learning rate of the last one."""
        rate = self.share * float(self.schedule(period.end - 1))
        return {"train/learning_rate": rate, **super().scalars(run, period)}

    def resumed(self, run, step: int, goal: int) -> None:
        """Notes that a schedule is stretched."""
        name = self.config.get("lr_schedule", "constant")
        if run.goal > goal and name != "constant":
            note(
                f"The schedule {name!r} is stretched from {goal} to {run.goal} steps: the learning "
                f"rate jumps at step {step}."
            )


def with_own_keys(config: Config) -> Config:
    """Returns a configuration in which keys of deep ensembles that it lacks have their defaults."""
    return with_defaults(config, DeepEnsemble)


class Epochs(NamedTuple):
    """Passes over the examples, in batches.

    Attributes:
        num_examples: Examples that a member learns from.
        batch_size: Examples of a batch; a larger one would be filled up with what counts nothing.
    """

    num_examples: int
    batch_size: int

    @classmethod
    def of(cls, config: Config, num_examples: int) -> "Epochs":
        """Returns the epochs of a configuration."""
        return cls(num_examples, int(min(config.batch_size, num_examples)))

    @property
    def steps(self) -> int:
        """Steps in which a member sees all examples."""
        return -(-self.num_examples // self.batch_size)

    def examples_before(self, step: int) -> int:
        """Examples that a member has seen before a step."""
        return step * self.num_examples // self.steps


def num_steps(config: Config, num_examples: int) -> int:
    """Returns the steps that the configuration asks for."""
    return int(config.num_steps or config.num_epochs * Epochs.of(config, num_examples).steps)


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


def create(
    config: Config,
    task: Supervised,
    descent_of: Callable[[Config, int], Descent],
    *,
    learned: Supervised | None = None,
    wrap: Callable[[Algorithm, Devices, Sequence[int]], Algorithm] | None = None,
    report: Callable[..., Report] = DescentReport,
    **more,
) -> Method:
    """Makes a method whose members descend.

    Args:
        config: Configuration of the run.
        task: Task of the run.
        descent_of: Makes of configuration and steps the descent of the members.
        learned: Task of its members, if that is another.
        wrap: Makes another algorithm of their descent, before they may stop early.
        report: Makes of configuration, task and descent the report of the run.
        **more: Further fields of the method.
    """
    own, learned, number = with_own_keys(config), learned or task, task.num_train_examples
    epochs, steps = Epochs.of(own, number), num_steps(own, number)
    how = descent_of(own, steps)
    check_descent(own, how, learned.params_shapes)
    start = None
    if own.init_from:
        from ensemble.methods import given_weights  # Most members start by themselves.

        start = partial(given_weights.start, own, learned)

    def algorithm(devices, numbers):
        found = descending(own, learned, devices, numbers, steps, how)._replace(start=start)
        if wrap is not None:
            found = wrap(found, devices, numbers)
        if patience := own.early_stopping_epochs:
            data = validation(learned, devices, f"config.early_stopping_epochs={patience}")
            found = stopping_early(found, learned, devices, patience, data, epochs.steps)
        return found

    return of_members(
        config,
        task,
        epochs,
        members_learn=learned,
        place=partial(place, own, learned),
        algorithm=algorithm,
        report=report(own, task, how),
        **more,
    )


def descending(
    config: Config,
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
        task: Task of the members.
        devices: Placement of the members.
        numbers: Their numbers.
        steps: Steps of the run.
        how: Their descent.
        order: As of `batches`.
    """
    feed = batches(config, task, devices, numbers, steps, order)
    return Algorithm(
        *descent(task, devices, make_objective(config, task), how),
        parameters=None,
        num_steps=steps,
        feed=feed,
        steps_per_program=feed.steps_per_program,
        together=None if feed.per_member else ensemble_scores(task),
    )


def of_members(config: Config, task: Supervised, epochs: Epochs, **more) -> Method:
    """Makes a method of members that see the training data in epochs.

    Args:
        config: Configuration of the run.
        task: Task of the run.
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


def spread(config: Config, task: Supervised, number: int) -> Devices:
    """Places members on the devices, each whole."""
    devices = processes.devices(config.num_devices)
    return Devices(number, devices, task.traits.examples_are_independent)


def place(config: Config, task: Supervised, number: int) -> Devices:
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
    for parts in range(least, size + 1):
        if size % parts or -(-number // (size // parts)) * member // parts > room:
            continue
        if parts == 1:
            return spread(config, task, number)
        note(f"Each member, of {member / 2**30:.3g} GiB, lies on {parts} of {size} devices.")
        return Devices(number, devices, splits_members=True, groups=size // parts)
    raise InputError(
        f"config.ensemble_size={number} members of {member / 2**30:.3g} GiB are too much for "
        f"{size} devices; use more devices, fewer members or a smaller network"
    )


# Descent.


class Descending(NamedTuple):
    """A member that descends.

    Attributes:
        variables: `params`, and the network's other collections.
        optimizer: State of the optimiser.
    """

    variables: Variables
    optimizer: Any


class Output(NamedTuple):
    """Result of a batch of a member; the sums leave out examples of weight zero.

    Attributes:
        gradients: Of `loss`, as the parameters.
        loss: Weighted sum over examples of the negative objective, [] nats.
        predicted: [B, ...] by name.
        state: The collections beside `params` after the pass.
    """

    gradients: Any
    loss: Array
    predicted: dict[str, Array]
    state: Variables


def apply_member(
    variables: Variables,
    objective: Objective,
    inputs: Array,
    targets,
    weights: Array,
    key: Array,
) -> Output:
    """Runs one member on a batch and differentiates its loss; no collective is crossed.

    Args:
        variables: Variables of the member.
        objective: Function that is maximised.
        inputs: [B, ...] float32, as the network sees them.
        targets: [B].
        weights: [B] float32 of the examples in the loss, zero for padding.
        key: Key of the network's noise in this step.
    """
    collections = pytrees.without(variables, "params")

    def loss_fn(params):
        found, aux = objective({"params": params, **collections}, inputs, targets, key)
        return jnp.sum(weights * -found), aux

    (loss, aux), gradients = jax.value_and_grad(loss_fn, has_aux=True)(variables["params"])
    return Output(gradients, loss, aux.predicted, aux.state)


def update_member(
    optimizer: optax.GradientTransformation, params, state, gradients, loss: Array
) -> tuple[Any, Any, Array]:
    """Takes one optimiser step.

    Args:
        optimizer: Of the members.
        params: Of one member.
        state: Of its optimiser.
        gradients: Of the mean loss, as the parameters.
        loss: [] the mean loss, nats.

    Returns:
        Parameters, the optimiser's state, and whether loss and parameters are finite: else the step
        is not to be taken.
    """
    updates, state = optimizer.update(gradients, state, params)
    params = optax.apply_updates(params, updates)
    # A sum is finite only if all its terms are, and is one pass over them.
    sums = [jnp.sum(leaf) for leaf in (loss, *jax.tree.leaves(params))]
    return params, state, jnp.isfinite(sum(sums))


def descent(
    task: Supervised, devices: Devices, objective: Objective, how: Descent
) -> tuple[Callable[..., Descending], Callable[..., tuple[Descending, Info]]]:
    """Returns `init` and `step` of members that descend.

    Args:
        task: Task of the members.
        devices: Placement of the members.
        objective: Function that is maximised.
        how: Their descent.
    """
    likelihood, number = task.likelihood, task.num_train_examples

    def of_slice(member, batch):
        variables, key = member
        found = apply_member(variables, objective, batch.inputs, batch.targets, batch.weights, key)
        # Where examples meet in a network, and move its state, they lie in one slice.
        moved = {} if devices.slices_batches else found.state
        return (found.gradients, found.loss, jnp.sum(batch.weights), moved), found.predicted

    spread = devices.over_examples(of_slice, unrolls=task.traits.unrolls)

    def init(now, batch):
        variables = dict(task.init_variables(now.key))
        if now.given is not None:
            from ensemble.methods.given_weights import with_given  # Most start by themselves.

            variables = with_given(variables, now.given)
        state = how.optimizer.init(variables["params"])
        return Descending(variables, how.seed(state, now.key) if how.seed else state)

    def step(now, state, batch):
        variables, params = state.variables, state.variables["params"]
        key = random.fold_in(random.fold_in(now.key, Stream.DROPOUT), now.step)
        (grads, loss, weight, moved), predicted = spread((variables, key), batch)
        prior, of_prior = jax.value_and_grad(task.log_prior)(params)
        grads = jax.tree.map(lambda g, p: g / weight - p / number, grads, of_prior)
        loss = loss / weight - prior / number
        params, own, ok = update_member(how.optimizer, params, state.optimizer, grads, loss)
        scores = likelihood.scores(apart(predicted, task.num_estimators), batch.targets)
        shown = jnp.average(scores[likelihood.progress], weights=batch.mask)
        info = Info({"loss": loss, likelihood.progress: shown}, ok, predicted)
        return Descending({**variables, **moved, "params": params}, own), info

    return init, step


def ensemble_scores(task: Supervised) -> Callable[..., dict[str, Array]]:
    """Returns an `Algorithm.together`: scores of the mean of all members that live."""
    likelihood, num_each = task.likelihood, task.num_estimators

    def together(rows, live, batch):
        flat = pytrees.merged(jax.vmap(lambda one: apart(one, num_each))(rows))
        scores = likelihood.scores(flat, batch.targets, live, num_each)
        names = likelihood.loss, likelihood.progress
        return {name: jnp.average(scores[name], weights=batch.mask) for name in names}

    return together


def make_objective(config: Config, task: Supervised) -> Objective:
    """Objective of a member: the log likelihood, as far as nothing else is configured.

    Samplers divide it by a temperature. Labels may be smoothed.

    Raises:
        InputError: The likelihood has no labels to be smoothed.
    """
    likelihood: Any = task.likelihood
    smoothing = config.label_smoothing
    if smoothing and not hasattr(likelihood, "smoothed_log_prob"):
        raise InputError(
            f"config.label_smoothing={smoothing} is for classes, and this is "
            f"config.likelihood={likelihood.name!r}: set it to 0"
        )

    def objective(variables, inputs, targets, rng_key):
        log_prob, aux = task.log_likelihood(variables, inputs, targets, True, rng_key)
        if smoothing:
            log_prob = likelihood.smoothed_log_prob(aux.outputs, targets, smoothing)
        return log_prob / config.get("posterior_temperature", 1), aux

    return objective


# Batches.


def fits_on_devices(task: Supervised, devices: Devices) -> bool:
    """Returns whether accelerators have room for all training examples: a quarter of each."""
    source, own = task.dataset, list(devices.mesh.devices.flat)
    if devices.platform == "cpu" or source.reads_ahead:
        return False
    row = math.prod(source.input_shape) * source.input_dtype.itemsize + 4
    needed = source.sizes["train"] * row + source.targets("train").nbytes
    return needed <= processes.from_main(lambda: min(device_bytes(own) // 4, memory_bytes()))


def in_loop(task: Supervised, devices: Devices, steps: int) -> int:
    """Returns the steps of a program: XLA:CPU convolves slowly within a loop."""
    return 1 if task.traits.has_convolutions and devices.platform == "cpu" else steps


def batches(
    config: Config,
    task: Supervised,
    devices: Devices,
    numbers: Sequence[int],
    steps: int,
    order: Order | None = None,
) -> Batches:
    """Makes the batches of a configuration.

    Args:
        config: Configuration of the run.
        task: Task of the members.
        devices: Placement of the members.
        numbers: Their numbers.
        steps: Steps of the run.
        order: Order of the examples, of each member its own; None: all, anew in each epoch.

    Raises:
        InputError: The class weights or augmentations do not suit the data.
    """
    source, seed = task.dataset, config.seed
    augment, weights = augmentation(config, source), weights_of(config, source)
    epochs = Epochs.of(config, source.sizes["train"])
    found = Batches(
        devices,
        numbers,
        source,
        order or partial(epoch_batches, *epochs, seed),
        weights=None if weights is None else weights.astype(np.float32),
        prepare=task.prepare,
        augment=augment,
        seed=seed,
        num_steps=steps,
        per_member=order is not None or config.shuffle == "independent",
        on_devices=fits_on_devices(task, devices),
    )
    found.steps_per_program = in_loop(task, devices, found.steps_per_program)
    return found


def weights_of(config: Config, source, with_classes: bool = True) -> NDArray | None:
    """Returns how much examples of training count, [N]; None: all the same.

    Raises:
        InputError: There are class weights, and no classes.
    """
    weights, spec = source.train_weights, config.class_weights
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


def augmentation(config: Config, source: Source) -> Callable[[Array, Array], Array] | None:
    """Returns the augmentation of raw inputs: images are moved, then a user's function changes all.

    Args:
        config: Configuration of the run.
        source: Data.

    Returns:
        `(keys [B], inputs [B, ...]) -> inputs`, of the same type or float32; None: members see
        examples as they are.

    Raises:
        InputError: Inputs to be moved are no images, or move out of sight; or a user's augmentation
            fails, or returns something else.
    """
    shape, dtype = source.input_shape, source.input_dtype
    shift, flip, name = (config.augment[key] for key in ("shift", "horizontal_flip", "function"))
    if not (shift or flip or name):
        return None
    if (shift or flip) and not (source.has_pictures and shift < min(shape[:2])):
        raise InputError(
            f"config.augment.shift={shift} and horizontal_flip={flip} are for images [H, W, C] of "
            f"more pixels; {source.name} has inputs of shape {shape}: set them to 0 and False"
        )

    def own(rng_key, example):
        rng_key = random.fold_in(rng_key, _OWN)
        return AUGMENTATIONS.call(name, rng_key, example[None], has=("shape", "dtype"))

    def augmented(rng_keys, inputs):
        if shift or flip:
            inputs = augment(rng_keys, inputs, shift, flip)
        return jax.vmap(own)(rng_keys, inputs)[:, 0] if name else inputs

    if name:
        example = jax.ShapeDtypeStruct(shape, dtype)
        made = jax.eval_shape(own, random.key(config.seed), example)
        if made.dtype not in (dtype, jnp.float32) or made.shape != (1, *shape):
            raise InputError(
                f"the augmentation {name} made {made.dtype}{made.shape} of {dtype}{(1, *shape)}; "
                "it must return an array of this shape, and of this type or float32"
            )
    return augmented


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
    lowest: Array
    waited: Array


def stopping_early(
    algorithm: Algorithm,
    task: Supervised,
    devices: Devices,
    patience: int,
    data: Batch,
    epoch: int,
    first: int = 1,
    criteria: Callable[[Array], Array] = lambda losses: losses,
) -> Algorithm:
    """Makes members that stop without progress, and predict with their best variables.

    The criterion is the mean loss of a member's predictions. One that is NaN has failed.

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

    def step(now, state, batch):
        moving, info = algorithm.step(now, state.moving, batch)
        return state._replace(moving=moving), info

    def due(taken):
        return taken >= first and (taken % epoch == 0 or taken == algorithm.num_steps)

    def losses_of(variables, batch):
        predicted = apart(task.predict(variables, batch.inputs), task.num_estimators)
        return task.likelihood.scores(predicted, batch.targets)[task.likelihood.loss]

    axes = 0, 1 if data.weights.ndim > 2 else None
    loss = devices.map_members(mean_loss(task, devices, losses_of), axes)

    def judge(now, states, status, data):
        moving, lowest = states.moving.variables, states.lowest
        losses = criteria(loss(moving, data))
        active = status == Status.ACTIVE
        better = active & (losses < lowest)
        waited = jnp.where(better, 0, states.waited + active)
        judged = states._replace(
            variables=devices.map_members(pytrees.where)(better, moving, states.variables),
            lowest=jnp.where(active, jnp.minimum(losses, lowest), lowest),
            waited=waited,
        )
        stops = (waited >= patience) & (now.step > 0)  # Before the first step settings are tried.
        ends = [active & jnp.isnan(losses), active & stops]
        return judged, jnp.select(ends, [Status.NON_FINITE, Status.STOPPED_EARLY], status)

    return algorithm._replace(
        init=lambda now, batch: judged_from(algorithm.init(now, batch)),
        step=step,
        between=(*algorithm.between, Between(due, judge, Fixed(data), of_all=True)),
    )


def judged_from(moving) -> StoppingEarly:
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
    return blocks(devices, task.dataset, "validation", [np.arange(number)], min(_BLOCK, number))


def blocks(
    devices: Devices,
    source: Source,
    split: str,
    rows: Sequence[NDArray],
    size: int,
    weights: NDArray | None = None,
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
    number, per_member = -(-max(map(len, rows)) // size) * size, weights is not None
    filled = np.stack([np.resize(one, number) for one in rows])
    counted = np.stack([np.arange(number) < len(one) for one in rows])
    counts = counted * (1 if weights is None else weights[filled])

    def cut(leaf):
        parts = leaf.reshape(len(rows), -1, size, *leaf.shape[2:])
        return np.swapaxes(parts, 0, 1) if per_member else parts[0]

    arrays = jax.tree.map(cut, (*source.read(split, filled), counts.astype(np.float32)))
    inputs, targets, counts = devices.put_examples(arrays, 1 + per_member, per_member)
    return Batch(inputs, targets, counts, counts)


def mean_loss(
    task: Supervised, devices: Devices, losses_of: Callable[[Any, Batch], Array]
) -> Callable[[Any, Batch], Array]:
    """Returns `(variables, blocks) -> [...]`, the mean of losses of one member.

    Args:
        task: Task of the members.
        devices: Their placement.
        losses_of: `(variables, batch) -> losses [..., B]`; that of weight 0 may be anything.
    """

    def of_slice(variables, batch):
        lost = jnp.where(batch.weights > 0, losses_of(variables, batch), 0) * batch.weights
        return (jnp.sum(lost, axis=-1), jnp.sum(batch.weights)), ()

    spread = devices.over_examples(of_slice, unrolls=task.traits.unrolls)

    def loss(variables, blocks):
        def one(_, block):
            return None, spread(variables, block)[0]

        # XLA:CPU convolves slowly within a loop.
        unroll = task.traits.has_convolutions
        _, (lost, weight) = jax.lax.scan(one, None, blocks, unroll=unroll)
        return jnp.sum(lost, axis=0) / jnp.sum(weight)

    return loss
