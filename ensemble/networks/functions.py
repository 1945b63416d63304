"""Two plain functions as a network.

    def init(rng_key, inputs):  # [1, *input_shape]
        return {"kernel": jax.random.normal(rng_key, (inputs.shape[1], 3)), "bias": jnp.zeros(3)}

    def apply(params, inputs):  # [N, *input_shape]
        return inputs @ params["kernel"] + params["bias"]

    ensemble.networks.register(
        "mine", lambda num_outputs: ensemble.networks.from_functions(init, apply)
    )

The parameters may be any tree of arrays, such as a list of pairs. Checkpoints and priors know an
array by its path in the tree, such as `0/1` for the second of the first pair.

Where `apply` has an argument `rng_key`, it is given the key of a training step's noise, and None
in predictions without noise. A network that has state needs more than two such functions: see
`ensemble.network.Network`.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ensemble.errors import UserError
from ensemble.network import Variables, check_outputs

Init = Callable[[jax.Array, jax.Array], Any]
Apply = Callable[..., jax.Array]
Path = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class FunctionNetwork:
    """A pair of functions without state; see `from_functions`.

    Attributes:
        init_params: from a key and inputs [1, ...] to a tree of parameters.
        forward: from such a tree and inputs [B, ...] to outputs [B, K].
        takes_key: whether it has an argument `rng_key`.
    """

    init_params: Init
    forward: Apply
    takes_key: bool = False

    def init(self, rng_key: jax.Array, inputs: jax.Array) -> Variables:
        """Starts the parameters, as nested dicts; the function takes the key as it is."""
        tree = self.init_params(rng_key, inputs)
        params: dict[str, Any] = {}
        for (*parents, name), leaf in zip(_paths(tree), jax.tree.leaves(tree), strict=True):
            level = params
            for parent in parents:
                level = level.setdefault(parent, {})
            level[name] = jnp.asarray(leaf, jnp.result_type(leaf))  # Also of a Python number.
        return {"params": params}

    def apply(
        self,
        variables: Variables,
        inputs: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Variables]:
        """Maps inputs to outputs, in training as otherwise; noise is drawn where a key is given."""
        paths, structure = _structure(self.init_params, inputs.shape[1:])
        leaves = [
            functools.reduce(lambda x, key: x[key], path, variables["params"]) for path in paths
        ]
        noise = {"rng_key": rng_key} if self.takes_key else {}
        return check_outputs(self.forward(structure.unflatten(leaves), inputs, **noise)), {}


def from_functions(init: Init, apply: Apply) -> FunctionNetwork:
    """Makes a network of two functions.

    Args:
        init: called as `init(rng_key, inputs)` with inputs [1, *input_shape], of which only the
            shape counts; returns the parameters of a member, a tree of arrays.
        apply: called as `apply(params, inputs)` with inputs [N, *input_shape]; returns the outputs
            [N, K]. One that draws noise, such as dropout, has a third argument `rng_key`: a key, or
            None where it is to draw none.

    Raises:
        UserError: they are no functions.
    """
    for name, function in (("init", init), ("apply", apply)):
        if not callable(function):
            raise UserError(
                f"ensemble.networks.from_functions was given a {type(function).__name__} as "
                f"{name}; it takes two functions, init(rng_key, inputs) and apply(params, inputs)"
            )
    return FunctionNetwork(init, apply, "rng_key" in inspect.signature(apply).parameters)


def _paths(tree: Any) -> list[Path]:
    """The paths of a tree's arrays; a tree that is one array has the path `array`."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    simple = functools.partial(jax.tree_util.keystr, simple=True)
    return [tuple(simple((key,)) for key in path) or ("array",) for path in paths]


@functools.lru_cache(maxsize=128)
def _structure(init: Init, input_shape: tuple[int, ...]) -> tuple[list[Path], Any]:
    """The paths and the structure of the parameters that `init` makes; nothing is computed."""
    inputs = jax.ShapeDtypeStruct((1, *input_shape), jnp.float32)
    tree = jax.eval_shape(init, jax.random.key(0), inputs)
    return _paths(tree), jax.tree.structure(tree)
