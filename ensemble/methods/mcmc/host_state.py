"""The state of chains as a checkpoint holds it: on the host, without the devices' padding."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import serialization

from ensemble.methods.mcmc.coordinates import Coordinates
from ensemble.methods.mcmc.programs import Programs, SamplingState
from ensemble.sharding import processes
from ensemble.storage.checkpoint import check_shapes
from ensemble.tasks.classification import Classification


def to_host(programs: Programs, task: Classification, state: SamplingState) -> dict[str, Any]:
    """Fetches a state as a nested dict of arrays."""
    chains = state.chains._replace(rng_key=jax.random.key_data(state.chains.rng_key))
    arrays = serialization.to_state_dict(processes.fetch(state.replace(chains=chains)))
    # Other devices will pad otherwise.
    arrays["chains"] = programs.layout.strip(arrays["chains"], axis=1)
    for name, sums in arrays["sums"].items():
        num_examples = task.dataset.sizes[name]
        arrays["sums"][name] = jax.tree.map(
            lambda leaf, n=num_examples: leaf[:, :n] if leaf.ndim > 1 else leaf, sums
        )
    return arrays


def from_host(
    programs: Programs,
    task: Classification,
    rng_keys: jax.Array,
    arrays: dict[str, Any],
    step: int,
) -> SamplingState:
    """The inverse of `to_host`, on any devices.

    Args:
        programs: for these devices.
        task: as there.
        rng_keys: [C], of chains that start; only their number counts.
        arrays: as `to_host` has returned them.
        step: that they have reached.

    Raises:
        ValueError: the arrays are of other shapes.
    """
    positions = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((len(rng_keys), *leaf.shape), leaf.dtype),
        programs.layout.padded_shapes(task.params_shapes()),
    )
    template = jax.eval_shape(
        programs.first_state,
        rng_keys,
        Coordinates(**arrays["coordinates"]),
        positions,
        programs.density.data,
    )
    arrays = {**arrays, "chains": programs.layout.pad(arrays["chains"], axis=1)}
    arrays["sums"] = {
        name: jax.tree.map(_padder(len(programs.splits[name].targets)), sums)
        for name, sums in arrays["sums"].items()
    }
    state = serialization.from_state_dict(template, arrays)
    # Not the warm-up's: the mass counts padding, which depends on the devices.
    check_shapes(
        (state.chains.state.position, state.sums),
        (template.chains.state.position, template.sums),
    )
    chains = state.chains._replace(rng_key=jax.random.wrap_key_data(state.chains.rng_key))
    state = state.replace(chains=chains, step=step)
    return processes.put(state, programs.shardings(state))


def _padder(size: int) -> Callable[[np.ndarray], np.ndarray]:
    """Pads arrays [C, N, ...] with zeros to as many places for examples; leaves [C] alone."""

    def pad(leaf: np.ndarray) -> np.ndarray:
        if leaf.ndim == 1:
            return leaf
        return np.pad(leaf, [(0, 0), (0, size - leaf.shape[1])] + [(0, 0)] * (leaf.ndim - 2))

    return pad
