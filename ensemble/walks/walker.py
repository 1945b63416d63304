"""Random-walk Metropolis of very many chains: nothing is stored, convergence is watched.

Thousands of chains move together, and only sums over their draws are kept. Any number of devices,
blocks or chunks gives the same draws, bit for bit: see `block_kernel.py` for the steps,
`moves.py` for their moves, and `moments.py` for what the sums say.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ensemble.errors import InputError
from ensemble.sharding import transfer
from ensemble.sharding.mesh import ENSEMBLE, named_sharding, spec
from ensemble.storage.memory import check_memory
from ensemble.walks.block_kernel import (
    Chains,
    Span,
    Streams,
    check_start,
    check_steps,
    compiler_options,
    move_blocks,
)
from ensemble.walks.densities import check_density
from ensemble.walks.lanes import Lanes
from ensemble.walks.moments import (
    DRAWS_PER_SEGMENT,
    NUM_SEGMENTS,
    Grid,
    HostSums,
    Summary,
    Sums,
    join_counts,
    max_span,
    put_away,
    split_counts,
    summarise,
    zero_sums,
)
from ensemble.walks.moves import as_shape, factor_of, shape_of
from ensemble.walks.target import TargetDensity
from ensemble.walks.walker_state import WalkerState

CPU_LANES = 8192
"""Numbers that a CPU moves at a time: they stay in its cache."""
ACCELERATOR_LANES = 131_072
"""Numbers that an accelerator moves at a time: an H100 is 4.3 times as fast with them."""
_NUM_WINDOWS = 24  # Of the warm-up.
_GAIN = 2.5  # Of the log scale by acceptance: near the targets its slope is -.3 to -.5.
_MIN_SUPERCHAINS = 16  # Unless asked for.
_MAX_POOLED = 4096  # Chains that say how far the target spreads.
_CHAINS = ("position", "log_density", "accepted", "invalid")
_PAIRS = ("pending", "totals", "excess")
_COUNTERS = ("step", "first", "segment_length", "num_segments")


SHAPES = ("identity", "diagonal", "dense")
"""Forms that the warm-up can give the covariance of the moves."""


@dataclasses.dataclass(frozen=True)
class Walker:
    """Random-walk Metropolis of many chains of one density.

    Attributes:
        density: what is sampled.
        num_chains: C.
        mesh: of `sharding.mesh.create_mesh`; chains lie over its axis `ensemble`.
        num_superchains: groups of neighbouring chains that start at the same point, for nested
            R-hat; a divisor of C, None takes the largest up to 64, or C where that is below 16.
        max_lanes: numbers of one dimension that a device moves at a time; None: as suits it.
        vector_width: bits of a CPU's vectors; None takes 512 where it has them, 0 XLA's choice.

    Raises:
        InputError: the numbers cannot be used, or the log density has the wrong shape.
    """

    density: TargetDensity
    num_chains: int
    mesh: Mesh
    num_superchains: int | None = None
    max_lanes: int | None = None
    vector_width: int | None = None

    def __post_init__(self) -> None:
        if self.num_chains < 1:
            raise InputError(f"num_chains={self.num_chains} must be positive")
        groups = self.num_superchains
        if groups is None:
            groups = max(k for k in range(1, 65) if self.num_chains % k == 0)
            # Too few starts say nothing of the others; 1009 chains would have but one.
            groups = groups if groups >= _MIN_SUPERCHAINS else self.num_chains
            object.__setattr__(self, "num_superchains", groups)
        if groups < 1 or self.num_chains % groups:
            raise InputError(f"num_superchains={groups} must divide num_chains={self.num_chains}")
        check_density(self.density.logdensity_fn, self.num_chains, self.density.num_dims)
        self._check_memory()

    def _check_memory(self) -> None:
        num_blocks, num_lanes = self._lanes.num_blocks, self._lanes.num_lanes
        # Closed segments and open sums, positions, and copies of those that are placed or fetched.
        floats = (2 * NUM_SEGMENTS + 16) * self.density.num_dims * num_blocks * num_lanes
        check_memory(4 * floats, f"num_chains={self.num_chains}", "it, or use more samples of each")

    # Start.

    def init(self, rng_key: jax.Array, positions: Any = None, scale: Any = 1.0) -> WalkerState:
        """Starts the chains, and the sums over their draws.

        Args:
            rng_key: of the run, a typed key of Threefry.
            positions: [C, D]; None draws them from the density's overdispersed start, one for each
                superchain.
            scale: of the moves: standard deviations, one or [D], or a covariance [D, D].

        Raises:
            InputError: the scale or the positions cannot be used.
        """
        if jax.random.key_impl(rng_key) != "threefry2x32":
            raise InputError(
                f"rng_key is of {jax.random.key_impl(rng_key)}, must be of Threefry: "
                "jax.random.key(seed, impl='threefry2x32')"
            )
        factor = factor_of(scale, self.density.num_dims)
        key_start, key_steps = jax.random.split(rng_key)
        if positions is None:
            assert self.num_superchains is not None
            starts = np.asarray(self.density.start(key_start, self.num_superchains))
            positions = np.repeat(starts, self.num_chains // self.num_superchains, axis=0)
        positions = np.asarray(positions, np.float32)
        shape = self.num_chains, self.density.num_dims
        if positions.shape != shape:
            raise InputError(f"positions of the shape {positions.shape} must be of {shape}")
        log_density = np.asarray(jax.jit(self._logdensity)(positions))
        check_start(log_density)
        zeros = np.zeros(self.num_chains, np.int32)
        chains = Chains(*self._lanes.place((positions, log_density, zeros, zeros)))
        nothing: Any = None  # `begin` makes it.
        state = WalkerState(key_steps, factor, chains, nothing, nothing, nothing, step=0, first=0)
        return self.begin(state, positions)

    def begin(self, state: WalkerState, around: np.ndarray | None = None) -> WalkerState:
        """Forgets all draws so far: the sums begin here.

        Args:
            state: after its burn-in.
            around: points [N, D] among which the draws are expected; None takes the positions.
        """
        num_blocks, num_lanes = self._lanes.num_blocks, self._lanes.num_lanes
        num_dims, num_devices = self.density.num_dims, self.mesh.shape[ENSEMBLE]
        shape = num_blocks, NUM_SEGMENTS, num_dims, num_lanes
        # Two arrays, for the next steps reuse the buffer of each.
        accepted, invalid = (jnp.zeros((num_blocks, num_lanes), jnp.int32) for _ in range(2))
        state = state.replace(
            chains=state.chains.replace(accepted=accepted, invalid=invalid),
            grid=Grid.around(self.positions(state) if around is None else around),
            sums=zero_sums(num_blocks, num_dims, num_lanes, num_devices),
            closed=(jnp.zeros(shape), jnp.zeros(shape)),
            first=state.step,
            segment_length=DRAWS_PER_SEGMENT,
            num_segments=0,
        )
        return transfer.put(state, self._shardings(state))

    def warm_up(
        self,
        state: WalkerState,
        num_steps: int,
        shape: str = "identity",
        target_accept: float | None = None,
    ) -> WalkerState:
        """Tunes the moves to an acceptance, and begins the sums anew.

        After each window of steps the log of the scale is moved by how far the share of proposals
        that all chains have accepted is from the target, less and less in the second half. In the
        middle, the moves get the shape of the target. All that is read is exact, so that any
        devices find the same.

        Args:
            state: of `init`.
            num_steps: even.
            shape: 'identity'; 'diagonal' or 'dense' for the standard deviations or the covariance
                of the chains' positions.
            target_accept: None takes .44 in one dimension and .234 in more (Roberts, Gelman &
                Gilks 1997; Gelman, Roberts & Gilks 1996).

        Raises:
            InputError: an argument cannot be used.
        """
        num_dims = self.density.num_dims
        target = target_accept
        if target is None:
            target = 0.44 if num_dims == 1 else 0.234
        if shape not in SHAPES:
            raise InputError(f"shape={shape!r} must be one of {', '.join(SHAPES)}")
        if not 0 < target < 1:
            raise InputError(f"target_accept={target} must be between 0 and 1")
        check_steps(num_steps, state.step)
        ends = 2 * np.linspace(0, num_steps // 2, _NUM_WINDOWS + 1).astype(int)
        windows = [int(window) for window in np.diff(ends) if window]
        # As it will be in the end, so that one program is compiled.
        state = state.replace(factor=as_shape(state.factor, num_dims, shape))
        pooled: list[np.ndarray] = []
        for k, window in enumerate(windows):
            state = self.advance(self.begin(state), window)
            pooled.append(self.positions(state)[:_MAX_POOLED])
            late = k - len(windows) // 2  # Windows since the middle.
            rate = _GAIN / max(1, late)
            change = np.exp(rate * (self.acceptance(state) - target))
            state = state.replace(factor=jnp.asarray(np.asarray(state.factor) * change))
            if late == 0 and shape != "identity":
                factor = shape_of(np.concatenate(pooled[k // 2 :]), shape)
                state = state.replace(factor=factor * (2.4 / math.sqrt(num_dims)))
        return self.begin(state, np.concatenate(pooled[len(windows) // 2 :]) if pooled else None)

    # Sampling.

    def advance(self, state: WalkerState, num_steps: int) -> WalkerState:
        """Takes steps of all chains; the devices are not waited for.

        Args:
            state: it is used up.
            num_steps: even, for random numbers are made for pairs of steps.

        Raises:
            InputError: the number is odd or not positive, or the steps are too many in all.
        """
        check_steps(num_steps, state.step)
        num_blocks, num_lanes = self._lanes.num_blocks, self._lanes.num_lanes
        most = max_span(num_blocks * num_lanes // self.mesh.shape[ENSEMBLE])
        end = state.step + num_steps
        while state.step < end:
            length, done = state.segment_length, state.num_draws
            count = min(end - state.step, length - done % length, most)
            span = Span(np.uint32(state.step // 2), np.int32(done), np.int32(count))
            chains, sums = self.take_steps(
                state.chains, state.sums, state.rng_key, state.factor, state.grid, span
            )
            state = state.replace(chains=chains, sums=sums, step=state.step + count)
            if state.num_draws % length == 0:
                state = self._close_segment(state)
        return state

    def summaries(self, state: WalkerState) -> Summary:
        """What the draws say; waits for them."""
        assert self.num_superchains is not None
        return summarise(self._host_sums(state), self.num_superchains)

    def acceptance(self, state: WalkerState) -> float:
        """Share of the proposals that were accepted since the sums began; NaN of none."""
        accepted = self.counts(state)[0].sum(dtype=np.int64)
        return float(accepted) / (self.num_chains * state.num_draws or math.nan)

    def counts(self, state: WalkerState) -> tuple[np.ndarray, np.ndarray]:
        """Proposals that each chain [C] accepted, and whose log density was NaN or +inf."""
        return self._lanes.fetch(state.chains.accepted), self._lanes.fetch(state.chains.invalid)

    def stuck(self, state: WalkerState) -> int:
        """How many chains are still where the log density is -inf: their draws say nothing."""
        return int(np.isneginf(self._lanes.fetch(state.chains.log_density)).sum())

    def positions(self, state: WalkerState) -> np.ndarray:
        """Fetches the positions [C, D]."""
        return self._lanes.fetch(state.chains.position)

    # To and from the host: what a checkpoint holds.

    def to_host(self, state: WalkerState) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """Fetches a state as `(arrays, counters)`; they are the same whatever the devices."""
        pairs = {**{name: getattr(state.sums, name) for name in _PAIRS}, "closed": state.closed}
        arrays = {
            "rng_key": np.asarray(jax.random.key_data(state.rng_key)),
            "factor": np.asarray(state.factor),
            "origin": np.asarray(state.grid.origin),
            "bin_width": np.asarray(state.grid.bin_width),
            "counts": join_counts(*transfer.fetch((state.sums.counts, state.sums.carried))),
            **{name: self._lanes.fetch(getattr(state.chains, name)) for name in _CHAINS},
            **{
                name: np.stack([self._lanes.fetch(one) for one in pair])
                for name, pair in pairs.items()
            },
        }
        return arrays, {name: getattr(state, name) for name in _COUNTERS}

    def from_host(
        self, arrays: Mapping[str, np.ndarray], counters: Mapping[str, int]
    ) -> WalkerState:
        """The inverse of `to_host`, on any devices."""
        counts = np.zeros((2, self.mesh.shape[ENSEMBLE], *arrays["counts"].shape), np.int32)
        counts[:, 0] = split_counts(arrays["counts"])
        placed = self._lanes.place({name: arrays[name] for name in _CHAINS})
        pairs = self._lanes.place({name: tuple(arrays[name]) for name in (*_PAIRS, "closed")})
        state = WalkerState(
            rng_key=jax.random.wrap_key_data(jnp.asarray(arrays["rng_key"])),
            factor=jnp.asarray(arrays["factor"]),
            chains=Chains(**placed),
            grid=Grid(jnp.asarray(arrays["origin"]), jnp.asarray(arrays["bin_width"])),
            sums=Sums(*(pairs[name] for name in _PAIRS), *map(jnp.asarray, counts)),
            closed=pairs["closed"],
            **{name: counters[name] for name in _COUNTERS},
        )
        return transfer.put(state, self._shardings(state))

    def _host_sums(self, state: WalkerState) -> HostSums:
        arrays, _ = self.to_host(state)
        segments = np.moveaxis(arrays["closed"], 2, 1)[:, : state.num_segments]
        rest = arrays["totals"].astype(np.float64) - arrays["excess"] + arrays["pending"]
        return HostSums(
            origin=arrays["origin"].astype(np.float64),
            bin_width=arrays["bin_width"].astype(np.float64),
            segments=(segments[0], segments[1]),
            rest=(rest[0], rest[1]),
            counts=arrays["counts"],
            segment_length=state.segment_length,
            num_draws=state.num_draws,
            num_left_out=state.first,
        )

    # The devices.

    @functools.cached_property
    def take_steps(self) -> Callable[..., tuple[Chains, Sums]]:
        """The program that takes steps: one for all chunks."""
        num_blocks, over_chains = self._lanes.num_blocks, spec("chain")

        def run(
            chains: Chains,
            sums: Sums,
            rng_key: jax.Array,
            factor: jax.Array,
            grid: Grid,
            span: Span,
        ) -> tuple[Chains, Sums]:
            # Nothing is differentiated and no device waits for another, so there is nothing for
            # check_vma to check, and densities may hold loops that it would not understand.
            move = jax.shard_map(
                functools.partial(move_blocks, self._logdensity, self.num_chains),
                mesh=self.mesh,
                in_specs=(spec(),) * 4 + (over_chains,) * 3,
                out_specs=over_chains,
                check_vma=False,
            )
            streams = Streams.create(rng_key, self.density.num_dims)
            blocks = jnp.arange(num_blocks, dtype=jnp.uint32)
            return move(streams, factor, grid, span, blocks, chains, sums)

        options = compiler_options(self.mesh.devices.flat[0].platform, self.vector_width)
        sharding = named_sharding(self.mesh, "chain")  # One for all calls: one program.
        return jax.jit(run, donate_argnums=(0, 1), out_shardings=sharding, compiler_options=options)

    @functools.cached_property
    def _put_away(self) -> Callable[..., tuple[Sums, Any]]:
        sharding = named_sharding(self.mesh, "chain")
        return jax.jit(put_away, donate_argnums=(0, 1), out_shardings=sharding)

    def _close_segment(self, state: WalkerState) -> WalkerState:
        """Closes the open segment; where all places are taken, segments double in length."""
        number, length = state.num_segments, state.segment_length
        sums, closed = self._put_away(state.sums, state.closed, np.int32(number))
        number += 1
        if number == NUM_SEGMENTS:
            number, length = NUM_SEGMENTS // 2, 2 * length
        return state.replace(sums=sums, closed=closed, num_segments=number, segment_length=length)

    def _logdensity(self, positions: jax.Array) -> jax.Array:
        """The density's, in float32."""
        found = self.density.logdensity_fn(positions)
        return found.astype(jnp.float32) if hasattr(found, "astype") else found

    @functools.cached_property
    def _lanes(self) -> Lanes:
        is_cpu = self.mesh.devices.flat[0].platform == "cpu"
        most = self.max_lanes or (CPU_LANES if is_cpu else ACCELERATOR_LANES)
        return Lanes.create(self.mesh, self.num_chains, self.density.num_dims, most)

    def _shardings(self, state: WalkerState) -> WalkerState:
        """Says where every array of a state lies."""
        over_chains = named_sharding(self.mesh, "chain")
        spread = jax.tree.map(lambda _: named_sharding(self.mesh), state)
        of_chains = (state.chains, state.sums, state.closed)
        chains, sums, closed = jax.tree.map(lambda _: over_chains, of_chains)
        return spread.replace(chains=chains, sums=sums, closed=closed)
