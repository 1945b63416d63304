"""Plain functions as networks: a pair of functions, and heads on the features of a frozen one.

    def init(rng_key, inputs):  # [1, *input_shape]
        return {"kernel": jax.random.normal(rng_key, (inputs.shape[1], 3)), "bias": jnp.zeros(3)}

    def apply(params, inputs):  # [N, *input_shape]
        return inputs @ params["kernel"] + params["bias"]

    def mine(num_outputs):
        return ensemble.networks.from_functions(init, apply)

The parameters may be any tree of arrays, such as a list of pairs. Checkpoints and priors know an
array by its path in the tree, such as `0/1` for the second of the first pair.

If `apply` has an argument `rng_key`, it is given the key of a training step's noise, and None
in predictions without noise. A network that has state needs more than two such functions: see
`ensemble.network.Network`.
"""

import operator
from dataclasses import dataclass
from functools import reduce
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict
from jax import Array

from ensemble.errors import InputError
from ensemble.network import Network, Variables, check_outputs
from ensemble.pytrees import Function


@dataclass(frozen=True)
class FunctionNetwork:
    """A pair of functions without state; see `from_functions`.

    Attributes:
        init_params: From a key and inputs [1, ...] to a tree of parameters.
        forward: From such a tree and inputs [B, ...] to outputs [B, K].
        takes_key: Whether it has an argument `rng_key`.
    """

    init_params: Function
    forward: Function
    takes_key: bool

    def init(self, rng_key: Any, inputs: Any) -> Variables:
        """Starts the parameters, as nested dicts; the function takes the key as it is."""
        leaves = jax.tree.leaves_with_path(self.init_params(rng_key, inputs))
        flat = {_names(path): jnp.asarray(one, jnp.result_type(one)) for path, one in leaves}
        return {"params": unflatten_dict(flat)}

    def apply(
        self, variables: Variables, inputs: Any, train: bool = False, rng_key: Any = None
    ) -> tuple[Array, Variables]:
        """Maps inputs to outputs, in training as otherwise; noise is drawn if a key is given.

        Raises:
            InputError: there is no key for the noise of training.
        """
        if train and self.takes_key and rng_key is None:
            raise InputError("the function `apply` draws noise in training; give it a key")
        one = jax.ShapeDtypeStruct((1, *inputs.shape[1:]), jnp.float32)
        tree = jax.eval_shape(self.init_params, jax.random.key(0), one)
        params = jax.tree.map_with_path(
            lambda path, _: reduce(operator.getitem, _names(path), variables["params"]),
            tree,
        )
        noise = {"rng_key": rng_key} if self.takes_key else {}
        return check_outputs(self.forward(params, inputs, **noise)), {}


def from_functions(init: Function, apply: Function) -> FunctionNetwork:
    """Makes a network of two functions.

    Args:
        init: Called as `init(rng_key, inputs)` with inputs [1, *input_shape], of which only the
            shape counts; returns the parameters of a member, a tree of arrays.
        apply: Called as `apply(params, inputs)` with inputs [N, *input_shape]; returns the outputs
            [N, K]. To draw noise, such as dropout, it takes a third argument `rng_key`: a key, or
            None if it is to draw none.
    """
    return FunctionNetwork(init, apply, "rng_key" in signature(apply).parameters)


def _names(path) -> tuple[str, ...]:
    """The names of an array's path; of a tree that is one array, `array`."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path) or ("array",)


@dataclass(frozen=True)
class FrozenBackbone:
    """A head on features; see `ensemble.networks.on_features`.

    Attributes:
        function: From raw inputs [B, ...] to features [B, F], in JAX.
        head: From features to outputs [B, K].
    """

    function: Function
    head: Network
    takes_raw_inputs = True

    def init(self, rng_key: Any, inputs: Any) -> Variables:
        """Starts the variables of the head."""
        return self.head.init(rng_key, self._features(inputs))

    def apply(
        self, variables: Variables, inputs: Any, train: bool = False, rng_key: Any = None
    ) -> tuple[Array, Variables]:
        """Maps inputs to outputs; only the head has noise and state."""
        return self.head.apply(variables, self._features(inputs), train, rng_key)

    def _features(self, inputs) -> Array:
        return jax.lax.stop_gradient(jnp.asarray(self.function(inputs), jnp.float32))
