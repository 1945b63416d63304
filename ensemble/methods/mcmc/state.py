"""What chains are between two draws, and what draws leave until it is on disk."""

from typing import Any, NamedTuple

import jax
from flax import struct

from ensemble.draws.running_sums import PredictiveSums
from ensemble.methods.mcmc.coordinates import Coordinates
from ensemble.methods.mcmc.kernels import Chain, DrawInfo


class SamplingState(struct.PyTreeNode):
    """Everything the next draw needs, and the sums over the draws so far.

    Attributes:
        chains: [C, ...], spread over the axis `ensemble`.
        coordinates: in which the chains move, the same for all.
        sums: of the predictions, by split.
        num_moves: [C] draws after the warm-up at which a chain was elsewhere than before.
        step: draws taken, those of the warm-up included.
        begun: draws that have been reported; those since then are in the record.
        record: of the draws since then; None where there are none.
    """

    chains: Chain
    coordinates: Coordinates
    sums: dict[str, PredictiveSums]
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
