"""Facts about a user's network, found by calling it.

Values are computed for a few random examples with random variables, on a CPU: accelerators take
many seconds to compile convolutions.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpy.typing import NDArray

from ensemble.network import Network, Traits, Variables
from ensemble.pytrees import ByName
from ensemble.sharding.mesh import compiled_soon

_NUM_EXAMPLES = 4
_NUM_DRAWS = 4
_LARGE = 2**14
"""Numbers in an array of these examples' activations: of more, one member's at a time are kept."""
_TOLERANCE = 0.02
"""Share of the largest value; half precision rounds by less."""


def traits(network: Network, input_shape: tuple[int, ...]) -> Traits:
    """Finds out what a network does besides mapping inputs to outputs; nothing is computed.

    Args:
        network: Any network.
        input_shape: Shape of one example.
    """
    inputs = jax.ShapeDtypeStruct((_NUM_EXAMPLES, *input_shape), jnp.float32)
    rng_key = jax.eval_shape(random.key, 0)
    variables = jax.eval_shape(network.init, rng_key, inputs)

    def learn(variables: Variables, inputs, *rng_key):
        return network.apply(variables, inputs, True, *rng_key)

    program: Any = jax.make_jaxpr(learn)(variables, inputs, rng_key)
    try:
        jax.eval_shape(learn, variables, inputs)
        is_random = False
    except Exception:  # A network is a program, and may raise anything if it has no key.
        is_random = True
    convolves = "conv_general_dilated" in str(program)
    is_large = any(one.aval.size > _LARGE for step in program.eqns for one in step.outvars)
    return Traits(variables.keys() > {"params"}, is_random, convolves, convolves or is_large)


class Called:
    """A network that predicts a few random examples with random variables.

    Attributes:
        inputs: Examples [B, ...].
        variables: Parameters that keep activations in range, and state of ones.
    """

    def __init__(self, network: Network, input_shape: tuple[int, ...]):
        self._rng = np.random.default_rng(0)
        self._apply = compiled_soon(
            lambda *args: network.apply(*args)[0].astype(jnp.float32), static_argnums=2
        )
        self.inputs = self._rng.normal(size=(_NUM_EXAMPLES, *input_shape)).astype(np.float32)
        key = jax.eval_shape(random.key, 0)
        self._shapes = jax.eval_shape(network.init, key, self.inputs)
        self.variables = self.draw()

    def draw(self) -> Variables:
        """Variables with other parameters."""

        def normal(leaf) -> NDArray:  # JAX would compile a program for each shape.
            fan_in = max(1, math.prod(leaf.shape[:-1]))
            return (self._rng.normal(size=leaf.shape) * (2 / fan_in) ** 0.5).astype(leaf.dtype)

        return {
            name: jax.tree.map(
                normal if name == "params" else lambda leaf: np.ones(leaf.shape, leaf.dtype), tree
            )
            for name, tree in self._shapes.items()
        }

    def __call__(self, variables: Variables, inputs: Any, *how: Any) -> NDArray:
        """Outputs [B, K]; arguments are those of `Network.apply`."""
        is_traced = isinstance(jnp.zeros(()), jax.core.Tracer)  # What calls this.
        # It is compiled much more slowly there.
        eager = jax.ensure_compile_time_eval() if is_traced else nullcontext()
        with eager, jax.default_device(_cpu()):
            return np.asarray(self._apply(variables, inputs, *(how or (False,))))


def _cpu() -> jax.Device | None:
    """A CPU, in addition to accelerators; None if JAX_PLATFORMS leaves it out."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def _are_close(one: NDArray, other: NDArray) -> bool:
    return bool(np.max(np.abs(one - other)) <= _TOLERANCE * np.max(np.abs(other)))


def last_activation(call: Called) -> str:
    """'softmax' or 'sigmoid' if outputs are probabilities whatever the parameters are, else ''."""
    for _ in range(_NUM_DRAWS):
        outputs = call(call.draw(), 10 * call.inputs)
        is_within = outputs.min() >= 0 and outputs.max() <= 1 + _TOLERANCE
        if not is_within or np.ptp(outputs) <= _TOLERANCE:  # Of NaN neither holds.
            return ""
    sums_are_one = np.abs(outputs.sum(axis=-1) - 1).max() <= _TOLERANCE
    return "softmax" if sums_are_one else "sigmoid"


def output_layer(network: Network, input_shape: tuple[int, ...]) -> ByName | None:
    """The dense layer that makes the outputs.

    Args:
        network: Any network.
        input_shape: Shape of one example.

    Returns:
        The paths in `params` of its `kernel` [F, K], and of its `bias` [K] if it has one; None if
        no dense layer makes the outputs.
    """
    call = Called(network, input_shape)
    outputs = call(call.variables, call.inputs)
    params = call.variables["params"]
    num_outputs = outputs.shape[-1]
    factors = np.linspace(-10, -20, num_outputs, dtype=np.float32)

    def turned(values: NDArray) -> NDArray:
        """Other columns, of the other sign."""
        return np.roll(values, 1, axis=-1) * factors

    def with_kernel(path, kernel: NDArray) -> NDArray:
        changed = jax.tree.map_with_path(lambda at, one: kernel if at == path else one, params)
        return call({**call.variables, "params": changed}, call.inputs)

    leaves = jax.tree.leaves_with_path(params)
    for path, kernel in leaves:
        if kernel.ndim != 2 or kernel.shape[1] != num_outputs:
            continue
        rest = with_kernel(path, 0 * kernel)
        found = {"kernel": path}
        for other, bias in leaves:
            if bias.shape == (num_outputs,) and _are_close(rest, bias + 0 * outputs):
                found["bias"] = other
        is_linear = _are_close(with_kernel(path, turned(kernel)) - rest, turned(outputs - rest))
        if is_linear and ("bias" in found or not rest.any()):
            return found
    return None


def has_same_noise(network: Network, input_shape: tuple[int, ...]) -> bool:
    """Whether a prediction with a key is the output of training with it; of one without state."""
    call = Called(network, input_shape)
    rng_key = random.key(0)
    learned, predicted = (
        call(call.variables, call.inputs, train, rng_key) for train in (True, False)
    )
    return _are_close(predicted, learned)
