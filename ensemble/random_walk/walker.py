"""Random-walk Metropolis of very many chains: nothing is stored, convergence is watched.

Thousands of chains move together, and only sums over their draws are kept. Any number of devices,
blocks or chunks gives the same draws, bit for bit: see `block_kernel.py` for the steps and the
sums, and `method.py` for what they say.
"""

import math
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.serialization import from_state_dict, to_state_dict
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array, random
from numpy.typing import NDArray

from ensemble.errors import InputError
from ensemble.pytrees import ByName
from ensemble.random_walk.block_kernel import (
    NUM_SEGMENTS,
    Chains,
    Span,
    Sums,
    compiler_options,
    mark,
    move_blocks,
    segment_length,
    streams,
)
from ensemble.random_walk.densities import Density
from ensemble.runtime.algorithm import Start
from ensemble.runtime.devices import Devices
from ensemble.runtime.programs import Members, Told
from ensemble.sharding import transfer
from ensemble.sharding.mesh import ENSEMBLE
from ensemble.storage.memory import check_memory

CPU_LANES = 8192
"""Numbers of one dimension that a CPU moves at a time: they stay in its cache."""
ACCELERATOR_LANES = 131_072
"""The same of an accelerator: an H100 is 4.3 times as fast with them."""
_MULTIPLE = 16  # Floats of a vector: no chain is left to scalar code.
_NUM_WINDOWS = 24  # Of the warm-up.
_GAIN = 2.5  # Of the log scale by acceptance: near the targets its slope is -.3 to -.5.
_MIN_SUPERCHAINS = 16
_MAX_SUPERCHAINS = 64
_MAX_POOLED = 4096  # Chains that say how far the target spreads.


class Walk(NamedTuple):
    """Everything that the next step needs; its size does not depend on the number of samples.

    On the devices chains lie in B blocks of L lanes, the last axis, and the last ones pad. On the
    host and in a checkpoint they lie along the first axis, whatever the devices.

    Attributes:
        chains: Positions and counts of proposals.
        sums: Sums over the draws since the warm-up.
        marks: Three arrays [B, S, D, L], as of `mark`.
        factor: Factor of the moves: [], [D], or a lower triangle [D, D].
        origin: Point [D] near the mean, about which the sums are.
    """

    chains: Chains
    sums: Sums
    marks: Any
    factor: Any
    origin: Any


_PAIR: Any = (0, 0)
_TEMPLATE = Walk(Chains(0, 0, 0, 0), Sums(_PAIR, _PAIR, _PAIR), (0, 0, 0), 0, 0)


class Walker:
    """The programs of a run of random walks, in place of those of the runtime.

    To the runtime all chains are one member.

    Args:
        config: Configuration with `seed`, `num_chains` and `sampler`.
        density: Density that is sampled.
        devices: Placement with one group for each device.

    Attributes:
        length: Steps of a program, at most.
        stride: Random numbers are made for pairs of steps.
        num_kept: No parameters are kept.
        num_superchains: Number of groups of neighbouring chains that share a start, for nested
            R-hat: the largest divisor of `num_chains` up to 64, or `num_chains` if that is below
            16, because few starts say nothing about others.
        keys: Result of `streams`.
        take_steps: The program that takes steps: one for all chunks.

    Raises:
        InputError: the log density has the wrong shape, or there are too many chains.
    """

    length = 2**30
    stride = 2
    num_kept = 0

    def __init__(self, config: Any, density: Density, devices: Devices):
        self.config = config
        self.density = density
        self.devices = devices
        num_chains = config.num_chains
        num_dims = density.num_dims
        num_devices = devices.mesh.shape[ENSEMBLE]
        density.check(num_chains)
        max_lanes = CPU_LANES if devices.platform == "cpu" else ACCELERATOR_LANES
        of_device = -(-num_chains // num_devices)
        blocks = -(-of_device // max(max_lanes // num_dims, _MULTIPLE))
        lanes = -(-of_device // (blocks * _MULTIPLE)) * _MULTIPLE
        self._blocks = blocks * num_devices, lanes
        # Marks and sums, positions, and copies of those that are placed or fetched.
        floats = (3 * NUM_SEGMENTS + 16) * num_dims * math.prod(self._blocks)
        check_memory(4 * floats, f"num_chains={num_chains}", "it, or use more samples of each")
        groups = max(k for k in range(1, _MAX_SUPERCHAINS + 1) if num_chains % k == 0)
        self.num_superchains = groups if groups >= _MIN_SUPERCHAINS else num_chains
        spread = devices.sharding(ENSEMBLE)
        whole = devices.sharding()
        seeded = random.key(config.seed, impl="threefry2x32")
        self._key_start, key_steps = random.split(seeded)
        self.keys = transfer.put(streams(key_steps, num_dims), whole)
        # Nothing is differentiated and no device waits for another, so there is nothing for
        # check_vma to check, and densities may hold loops that it would not understand.
        move = jax.shard_map(
            partial(move_blocks, self._logdensity, ENSEMBLE),
            mesh=devices.mesh,
            in_specs=(spread.spec,) * 2 + (whole.spec,) * 4,
            out_specs=spread.spec,
            check_vma=False,
        )
        # One sharding for all calls: one program.
        options = compiler_options(devices.platform)
        self.take_steps = jax.jit(
            move, donate_argnums=(0, 1), out_shardings=spread, compiler_options=options
        )
        self._mark = jax.jit(mark, donate_argnums=0, out_shardings=spread)

    # What the loop calls.

    def start(self, found: Start) -> Members:
        """Starts all chains, overdispersed, and tunes their moves.

        Raises:
            InputError: the log density at a start is NaN or +inf.
        """
        starts = np.asarray(self.density.start(self._key_start, self.num_superchains), np.float32)
        position = np.repeat(starts, self.config.num_chains // self.num_superchains, axis=0)
        log_density = np.asarray(jax.jit(self._logdensity)(position))
        if len(bad := log_density[~(log_density < np.inf)]):
            raise InputError(
                f"the log density is {bad[0]} at the start of {len(bad)} chains; it must be "
                "a number or -inf: fix it, or start elsewhere"
            )
        num_dims = self.density.num_dims
        forms = {"identity": 1.0, "diagonal": np.ones(num_dims), "dense": np.eye(num_dims)}
        sampler = self.config.sampler
        factor = np.asarray(sampler.step_size * forms[sampler.mass_matrix], np.float32)
        walk = self._begun(factor, position, log_density, position)
        return _members(self._tuned(walk, factor) if sampler.num_warmup else walk)

    def advance(
        self, members: Members, shared: Any, first: int, count: int
    ) -> tuple[Members, Told]:
        """Takes steps of all chains; the devices are not waited for."""
        walk = self._moved(members.state, self.config.sampler.num_warmup, first, count)
        # It is known when the steps have been taken: no count is negative.
        status = jnp.any(walk.chains.accepted < 0)[None].astype(jnp.int8)
        return _members(walk), Told({}, {}, None, status)

    @property
    def set_shapes(self) -> Any:
        """The position of one chain."""
        return {"position": jax.ShapeDtypeStruct((self.density.num_dims,), np.float32)}

    def saved(self, members: Members) -> ByName:
        """Fetches what a checkpoint holds."""
        return flatten_dict(to_state_dict(self.to_host(members.state)), sep="/")

    def restored(self, arrays: ByName) -> Members:
        """The inverse of `saved`, on any devices."""
        host = from_state_dict(_TEMPLATE, unflatten_dict(dict(arrays), sep="/"))
        return _members(self._to_devices(jax.tree.map(np.asarray, host)))

    # The walk.

    def _begun(self, factor, position: NDArray, log_density: NDArray, around) -> Walk:
        """A walk without draws, which are expected among points `around`, [N, D]."""
        num_chains, num_dims = position.shape
        return self._to_devices(
            Walk(
                Chains(position, log_density, *np.zeros((2, num_chains), np.int32)),
                Sums(*map(tuple, np.zeros((3, 2, num_chains, num_dims), np.float32))),
                tuple(np.zeros((3, num_chains, NUM_SEGMENTS, num_dims), np.float32)),
                factor,
                around.astype(np.float64).mean(axis=0).astype(np.float32),
            )
        )

    def _tuned(self, walk: Walk, factor: NDArray) -> Walk:
        """Tunes the factor of the moves to an acceptance, and begins the sums anew.

        After each window of steps the log of the scale is moved by how far the share of proposals
        that all chains have accepted is from the target, less and less in the second half: .44 in
        one dimension and .234 in more (Roberts, Gelman & Gilks 1997; Gelman, Roberts & Gilks 1996).
        In the middle, the moves get the shape of the target. All that is read is exact, so that any
        devices find the same.
        """
        sampler = self.config.sampler
        num_dims = self.density.num_dims
        target = 0.44 if num_dims == 1 else 0.234
        pairs = np.linspace(0, sampler.num_warmup // 2, _NUM_WINDOWS + 1).astype(int)
        ends = np.unique(2 * pairs).tolist()
        middle = (len(ends) - 1) // 2
        accepted = 0
        pooled = []
        for k, (first, end) in enumerate(pairwise(ends)):
            walk = self._moved(walk, 0, first, end - first)
            pooled.append(self._chainwise(walk.chains.position)[:_MAX_POOLED])
            before = accepted
            accepted = int(self._chainwise(walk.chains.accepted).sum())
            share = (accepted - before) / (self.config.num_chains * (end - first))
            change = np.exp(_GAIN / max(1, k - middle) * (share - target))
            factor = np.asarray(factor * change, np.float32)
            if k == middle and sampler.mass_matrix != "identity":
                factor = _shape_of(np.concatenate(pooled[k // 2 :]), sampler.mass_matrix)
                factor *= np.float32(2.4 / math.sqrt(num_dims))
            walk = walk._replace(factor=transfer.put(factor, self.devices.sharding()))
        return self._begun(
            factor,
            self._chainwise(walk.chains.position),
            self._chainwise(walk.chains.log_density),
            np.concatenate(pooled[middle:]),
        )

    def _moved(self, walk: Walk, before: int, done: int, count: int) -> Walk:
        """Takes steps.

        Args:
            walk: Walk on the devices; its arrays are donated.
            before: Number of steps before the sums began.
            done: Number of draws in the sums.
            count: Number of steps, even.
        """
        end = done + count
        while done < end:
            length = segment_length(done)
            number = min(end - done, length - done % length)
            span = Span(np.uint32((before + done) // 2), np.int32(done), np.int32(number))
            chains, sums, marks, *fixed = walk
            chains, sums = self.take_steps(chains, sums, self.keys, *fixed, span)
            done += number
            if done % length == 0:
                marks = self._mark(marks, sums, chains.position, np.int32(done // length - 1))
            walk = Walk(chains, sums, marks, *fixed)
        return walk

    # The devices.

    def _logdensity(self, positions: Array) -> Array:
        """The density's, in float32."""
        return jnp.asarray(self.density.logdensity_fn(positions), jnp.float32)

    def to_host(self, walk: Walk) -> Walk:
        """Fetches a walk."""
        return Walk(*jax.tree.map(self._chainwise, walk[:3]), *transfer.fetch(walk[3:]))

    def _to_devices(self, host: Walk) -> Walk:
        """The inverse of `to_host`; the last chain pads."""

        def blockwise(leaf: NDArray) -> NDArray:
            chains = transfer.pad(leaf, math.prod(self._blocks), fill=None)
            return np.moveaxis(chains.reshape(*self._blocks, *leaf.shape[1:]), 1, -1)

        return Walk(
            *transfer.put(jax.tree.map(blockwise, host[:3]), self.devices.sharding(ENSEMBLE)),
            *transfer.put(host[3:], self.devices.sharding()),
        )

    def _chainwise(self, leaf: Array) -> NDArray:
        """Fetches chains [C, ...] from blocks [B, ..., L]."""
        blocks = np.moveaxis(transfer.fetch(leaf), -1, 1)
        return blocks.reshape(-1, *blocks.shape[2:])[: self.config.num_chains]


def _members(walk: Walk) -> Members:
    """All chains as one member, which is well: a proposal without a log density is but rejected."""
    zero: Any = np.zeros(1, np.int8)
    return Members(zero, zero, zero, walk)


def _shape_of(points: NDArray, form: str) -> NDArray:
    """The standard deviations, or the triangle of the covariance, of points [N, D]."""
    points = points.astype(np.float64)
    spread = points.std(axis=0)
    spread = np.where(spread > 0, spread, 1)
    if form == "diagonal":
        return spread.astype(np.float32)
    count, num_dims = points.shape
    correlation = (points - points.mean(axis=0)) / spread
    correlation = correlation.T @ correlation / count
    # A few points say little: towards no correlation, which is positive definite too.
    share = count / (count + num_dims)
    shrunk = share * correlation + (1 - share) * np.eye(num_dims)
    return np.asarray(spread[:, None] * np.linalg.cholesky(shrunk), np.float32)
