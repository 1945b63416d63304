"""Chains that sample a posterior by all its data: HMC, NUTS, MCLMC and parallel tempering.

A step is one draw of every chain, those of the warm-up first. Of the draws after it every
`config.sampler.thinning`-th is kept on disk, and the chains predict with these.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ensemble import pytrees
from ensemble.config import Config, trait
from ensemble.data.source import in_memory
from ensemble.draws.store import VALUE
from ensemble.errors import InputError
from ensemble.methods import low_rank_mass
from ensemble.methods.chain_report import ChainReport
from ensemble.methods.kernels import DrawInfo, Sampler, Settings, make_sampler
from ensemble.methods.leafwise_metric import leafwise_metric
from ensemble.methods.log_density import make_log_density
from ensemble.methods.start import starting_points, to_params
from ensemble.methods.warmup import window_ends
from ensemble.networks.layers import mapped_over_networks
from ensemble.runtime.algorithm import Algorithm, Between, Info, Now, Status, every
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Fixed
from ensemble.runtime.method import Method
from ensemble.runtime.predict import draw_scalars
from ensemble.sharding import processes
from ensemble.sharding.transfer import place_split
from ensemble.task import LogDensity, Modelled
from ensemble.tasks.supervised import Supervised

_OF_SAMPLER = ("step_size", "num_leapfrog_steps", "jitter", "num_warmup", "target_accept")
"""Settings of kernels that are keys of `config.sampler`."""
_REFERENCE_SD = 10.0
"""Standard deviation of the normal density that replicas come from where there is no prior."""
_NOTHING = DrawInfo._make(np.zeros((), kind) for kind in "ff?ffi")
"""Diagnostics of no draw, with the types of those of one."""


def create(config: Config, task: Supervised | Modelled) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The task has no posterior, or does not fit the memory.
    """
    sampler = config.sampler
    settings = Settings(
        method=config.method,
        mass="identity" if sampler.mass_matrix == "kronecker" else sampler.mass_matrix,
        **config.get("parallel_tempering", {}),
        **{name: sampler[name] for name in _OF_SAMPLER},
    )
    if "mclmc" in config.method and pytrees.size(task.params_shapes()) < 2:
        # At a constant speed there is nothing to choose but the sign.
        raise InputError(f"config.method={config.method!r} needs at least 2 parameters. Use 'nuts'")
    report = ChainReport(config, task)
    devices = processes.devices(config.num_devices)
    return Method(
        config=config,
        task=task,
        num_members=config.num_chains,
        place=lambda number: Devices(number, devices, groups=math.gcd(number, len(devices))),
        algorithm=lambda devices, _: _algorithm(report, devices, settings),
        report=report,
        steps_per_epoch=config.log_every_steps,
        tracked_split=report.split,
    )


@contextmanager
def _traced() -> Iterator[None]:
    """Traces what is mapped over chains.

    Products are of float32: TPUs and TF32 would round them to some 3 digits, which are nats.
    """
    with mapped_over_networks(), jax.default_matmul_precision("highest"):
        yield


def _key(member_key: Array) -> Array:
    """Returns the key of a chain's draws; the other half is that of its start."""
    return jax.random.split(member_key)[1]


def _algorithm(report: ChainReport, devices: Devices, settings: Settings) -> Algorithm:
    """Makes the algorithm of the chains, and gives the report their log density."""
    config = report.config
    task = report.task
    report.density = density = _density(config, task, devices)
    layout = density.layout
    devices.is_split = layout.is_split
    shapes = jax.eval_shape(layout.pad, task.params_shapes())
    keep = every(config.sampler.thinning, report.first + config.sampler.thinning)
    feed = Fixed({"data": density.data, "tracked": _tracked(report, devices)})
    is_free = density.run_free and trait("method", config.method, "may_be_free")
    sampler_of = partial(_sampler, settings, density, shapes)

    @_traced()
    def init(now, batch):
        position = now.given
        if position is None:  # Only the shapes are asked for.
            position = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return sampler_of(now, batch).init(_key(now.key), position)

    @_traced()
    def step(now, chain, batch):
        info = _NOTHING
        if not is_free:  # Else `run` takes the draws, and this tells the shapes of their scalars.
            t = now.step + report.tuning
            chain, info = sampler_of(now, batch).step(_key(now.key), chain, t)
        params = to_params(now.shared, chain.state.position)
        return chain, Info(_observed(report, info, params, batch["tracked"]))

    @_traced()
    def tune(now, chain, batch):
        return sampler_of(now, batch).tune(_key(now.key), chain), jnp.int8(Status.ACTIVE)

    def parameters(now, chain):
        params = to_params(now.shared, chain.state.position)
        return pytrees.at(params if isinstance(task, Modelled) else {"params": params}, None)

    def observe(info, params):
        return _observed(report, info, params, None), pytrees.at(params, None)

    @_traced()
    def run(numbers, keys, chains, shared, fixed, scalars, kept, *span):
        how = devices.mesh, settings, density.bind, observe, keep.before
        given = fixed["data"], jax.vmap(_key)(keys), chains, (scalars, kept)
        chains, record = density.run_free(*how, *given, *span)
        return chains, *record

    between = []
    if report.tuning:
        between.append(Between(lambda step: step == 0, tune, feed))
    if ends := window_ends(settings):
        estimate = partial(low_rank_mass.estimate, ends)
        between.append(Between(ends.__contains__, estimate, on_host=True))
    return Algorithm(
        init=init,
        step=step,
        parameters=parameters,
        num_steps=report.first + config.sampler.num_samples,
        feed=feed,
        keep=keep,
        between=tuple(between),
        start=_traced()(partial(starting_points, config, task, density)),
        steps_per_program=min(1024, config.log_every_steps) if is_free else 64,
        run=run if is_free else None,
    )


def _sampler(settings: Settings, density: LogDensity, shapes, now: Now, batch) -> Sampler:
    """Makes the sampler, in the coordinates in which the chains move."""
    layout = density.layout

    def metric_of(mass):
        return leafwise_metric(layout.mask(shapes), None if settings.mass == "identity" else mass)

    def in_z(of_params):
        return lambda position: of_params(to_params(now.shared, position))

    reference = None
    if settings.num_replicas > 1:
        reference = in_z(density.bind_reference(batch["data"], _REFERENCE_SD))
    # BlackJAX's own draws momenta for all parameters in one piece.
    make_metric = metric_of if layout.names else None
    return make_sampler(settings, in_z(density.bind(batch["data"])), make_metric, reference)


def _density(config, task, devices: Devices) -> LogDensity:
    """Returns the `LogDensity` with its data."""
    if isinstance(task, Modelled):
        # Another mass joins all parameters to one vector.
        may_split = config.sampler.mass_matrix in ("identity", "diagonal")
        may_split &= trait("method", config.method, "may_split")
        return task.own_log_density(devices.mesh, may_split)
    train = in_memory(task.dataset, "train")
    return make_log_density(task, train, devices.mesh, config.posterior_temperature)


def _tracked(report: ChainReport, devices: Devices):
    """Places the split that every draw predicts; None: no split."""
    if report.split is None:
        return None
    split = in_memory(report.task.dataset, report.split)
    # Where parameters lie on their shards, each of them predicts a part of every example.
    whole = bool(report.density.layout.names)
    return place_split(*split, devices.mesh, whole_inputs=whole)


def _observed(report: ChainReport, info, params, tracked) -> dict[str, Array]:
    """Returns scalars of a draw: diagnostics, and those of a model or of a split's predictions."""
    scalars = info._asdict()
    task = report.task
    density = report.density
    if isinstance(task, Modelled):
        values = task.track(density.layout.strip(params))
        scalars |= {VALUE + name: values[i] for i, name in enumerate(task.tracked)}
    elif tracked is not None:
        inputs, targets, mask = tracked
        predicted = pytrees.at(density.predict(params, inputs), None)
        found = draw_scalars(task.likelihood, report.tracked_rows, predicted, targets, mask)
        scalars |= pytrees.at(found, 0)
    return scalars
