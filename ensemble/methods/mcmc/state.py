"""The state of chains between two draws, on the devices as in checkpoints.

What draws leave stays in a record until it is on disk. A checkpoint holds all of it without the
padding of the devices.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from flax import serialization, struct

from ensemble.draws.store import Draws
from ensemble.methods.mcmc.coordinates import Coordinates
from ensemble.methods.mcmc.kernels import Chain, DrawInfo
from ensemble.sharding import transfer
from ensemble.storage.checkpoint import check_shapes

if TYPE_CHECKING:
    from ensemble.methods.mcmc.programs import Programs


class SamplingState(struct.PyTreeNode):
    """Everything the next draw needs.

    Attributes:
        chains: [C, ...], spread over the axis `ensemble`.
        coordinates: in which the chains move, the same for all.
        num_moves: [C] draws after the warm-up at which a chain was elsewhere than before.
        step: draws taken, those of the warm-up included.
        begun: draws that have been reported; those since then are in the record.
        record: of the draws since then; None where there are none.
    """

    chains: Chain
    coordinates: Coordinates
    num_moves: jax.Array
    step: int = struct.field(pytree_node=False)
    begun: int = struct.field(pytree_node=False, default=0)
    record: "Record | None" = None


class Trace(NamedTuple):
    """What is recorded of every draw, [T, C] on the devices.

    Attributes:
        info: the sampler's diagnostics.
        scores: `Likelihood.traced` of the draw alone, means over the tracked split.
        log_probs: [T, C, n], of the targets of fixed examples; of a model, what it tracks.
    """

    info: DrawInfo
    scores: dict[str, jax.Array]
    log_probs: jax.Array


class Record(NamedTuple):
    """What the draws leave that have not been reported yet; its last places may be empty.

    Attributes:
        trace: [T, C].
        positions: parameters [K, C, ...] of the draws that are kept.
    """

    trace: Trace
    positions: Any


def append_draws(
    draws: Draws,
    first: int,
    trace: Trace,
    positions: Any,
    numbers: np.ndarray,
    tracked: Sequence[str],
) -> None:
    """Appends draws to those on disk.

    Args:
        draws: on disk.
        first: number of the first draw.
        trace: [T, C], on the host.
        positions: parameters [K, C, ...] of the draws that are kept.
        numbers: [K] of these.
        tracked: names of the scalars `trace.log_probs`.
    """
    trace, positions = jax.tree.map(lambda leaf: np.moveaxis(leaf, 0, 1), (trace, positions))
    values = dict(zip(tracked, np.moveaxis(np.asarray(trace.log_probs), -1, 0), strict=True))
    scalars = {**trace.info._asdict(), **trace.scores, **values}
    end = first + trace.info.log_density.shape[1]
    draws.append(first, end, scalars, positions, numbers)


def to_host(programs: "Programs", state: SamplingState) -> dict[str, Any]:
    """Fetches a state as a nested dict of arrays; of a record, the places that are filled."""
    chains = state.chains._replace(rng_key=jax.random.key_data(state.chains.rng_key))
    record, state = state.record, state.replace(chains=chains, record=None)
    fetched = transfer.fetch(state)
    # Other devices will pad otherwise.
    fetched = fetched.replace(chains=programs.layout.strip(fetched.chains, axis=1))
    arrays = serialization.to_state_dict(fetched)
    del arrays["record"]
    if record is not None:
        arrays["record"] = _record_to_host(programs, record, state.begun, state.step)
    return arrays


def from_host(
    programs: "Programs",
    rng_keys: jax.Array,
    arrays: dict[str, Any],
    step: int,
    begun: int,
) -> SamplingState:
    """The inverse of `to_host`, on any devices.

    Args:
        programs: for these devices.
        rng_keys: [C], of chains that start; only their number counts.
        arrays: as `to_host` has returned them.
        step: that they have reached.
        begun: the number of the record's first draw.

    Raises:
        ValueError: the arrays are of other shapes.
    """
    positions = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((len(rng_keys), *leaf.shape), leaf.dtype),
        programs.padded_shapes,
    )
    template = jax.eval_shape(
        programs.first_state,
        rng_keys,
        Coordinates(**arrays["coordinates"]),
        positions,
        programs.density.data,
    )
    record = arrays.get("record")
    if begun > step or (record is not None) != (begun < step):
        raise ValueError(f"it must have a record of draws {begun} to {step - 1}, and no other")
    arrays = {**arrays, "record": None}
    try:
        state = serialization.from_state_dict(template, arrays)
    except AttributeError as error:  # An array where a tree is expected.
        raise ValueError("its arrays are not arranged as this program does it") from error
    state = state.replace(chains=programs.layout.pad(state.chains, axis=1))
    # Not the warm-up's: an identity counts padding, which depends on the devices.
    check_shapes(state.chains.state.position, template.chains.state.position)
    chains = state.chains._replace(rng_key=jax.random.wrap_key_data(state.chains.rng_key))
    state = state.replace(chains=chains, step=step, begun=begun)
    state = transfer.put(state, programs.shardings(state))
    if record is None:
        return state
    return state.replace(record=_record_from_host(programs, record, begun, step))


def _record_to_host(programs: "Programs", record: Record, begun: int, step: int) -> dict[str, Any]:
    num_kept = programs.num_kept(step) - programs.num_kept(begun)
    trace = jax.tree.map(lambda leaf: leaf[: step - begun], programs.gather(record.trace))
    arrays: dict[str, Any] = {"trace": serialization.to_state_dict(transfer.fetch(trace))}
    if not trace.log_probs.size:
        del arrays["trace"]["log_probs"]  # Orbax stores nothing empty.
    if num_kept:
        positions = jax.tree.map(lambda leaf: leaf[:num_kept], record.positions)
        arrays["positions"] = programs.layout.strip(transfer.fetch(positions), axis=2)
    return arrays


def _record_from_host(
    programs: "Programs", arrays: dict[str, Any], begun: int, step: int
) -> Record:
    """The inverse of `_record_to_host`.

    Raises:
        ValueError: the arrays are of other shapes.
    """
    num_draws = programs.record_length(begun, step)
    empty = programs.new_record(num_draws=num_draws)
    num_kept = programs.num_kept(step) - programs.num_kept(begun)

    def fill(template: jax.Array, leaf: np.ndarray, count: int) -> np.ndarray:
        check_shapes(leaf, jax.ShapeDtypeStruct((count, *template.shape[1:]), template.dtype))
        return transfer.pad(leaf, len(template))

    none = {"log_probs": np.zeros((step - begun, *empty.trace.log_probs.shape[1:]), np.float32)}
    trace = serialization.from_state_dict(empty.trace, {**none, **arrays["trace"]})
    trace = jax.tree.map(lambda one, leaf: fill(one, leaf, step - begun), empty.trace, trace)
    positions = empty.positions
    if num_kept:
        kept = serialization.from_state_dict(positions, arrays["positions"])
        kept = programs.layout.pad(kept, axis=2)
        positions = jax.tree.map(lambda one, leaf: fill(one, leaf, num_kept), positions, kept)
    return transfer.put(Record(trace, positions), jax.tree.map(lambda leaf: leaf.sharding, empty))
