"""NNX modules as networks, by a factory.

    def mine(num_outputs):
        return ensemble.networks.from_nnx(lambda rngs: MyModule(num_outputs, rngs=rngs))

An NNX module holds its weights, so one module is one member. The factory makes a module for each.

The Variables of type `nnx.Param` are the parameters; all others are the collection `batch_stats`.
An index in a list becomes a string, as in `layers/0/kernel`. States of random streams are no
variables of a network: every call makes them from its key. Intermediates, and Variables that only a
call creates, are dropped.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import unflatten_dict
from jax import random

from ensemble.errors import InputError, in_one_line, in_own_code
from ensemble.network import Variables, check_outputs

Factory = Callable[[Any], Any]
_MODULE = "new module at each call, such as lambda rngs: MyModule(num_outputs, rngs=rngs)"
_NOISY = (nnx.Dropout, nnx.MultiHeadAttention)


@dataclass(frozen=True, eq=False)
class NNXNetwork:
    """A factory of NNX modules; see `from_nnx`.

    Attributes:
        factory: From `nnx.Rngs` to an `nnx.Module`, which maps [B, ...] to outputs [B, K].
        graphdef: Structure of its modules without their arrays.
        leaves: By the path of each array, in the order of the structure: `params` or `batch_stats`
            if it is a variable of the network, shape and dtype if it is of a random stream, else
            the array, which is the same in every module.
        takes_rngs: Whether a module's call has an argument `rngs`.
    """

    factory: Factory
    graphdef: Any
    leaves: dict[Any, Any]
    takes_rngs: bool

    def init(self, rng_key: Any, inputs: Any) -> Variables:
        """Starts the variables: those of `factory(nnx.Rngs(rng_key))`."""
        return {"params": {}} | self._variables(_build(self.factory, rng_key))

    def apply(
        self, variables: Variables, inputs: Any, train: bool = False, rng_key: Any = None
    ) -> tuple[jax.Array, Variables]:
        """Maps inputs to outputs; random stream number i starts at `fold_in(rng_key, i)`.

        With a key and without `train` the layers of Flax draw noise that do so in training.

        Raises:
            InputError: the module draws noise without a key, or returns something else than an
                array.
        """
        key = random.key(0) if rng_key is None else rng_key
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = random.wrap_key_data(key)
        arrays = dict(self.leaves)
        streams = [path for path, leaf in arrays.items() if isinstance(leaf, jax.ShapeDtypeStruct)]
        number = 0
        for path, leaf in self.leaves.items():
            if isinstance(leaf, str):
                arrays[path] = reduce(operator.getitem, map(str, path), variables[leaf])
            elif path in streams and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                start = random.fold_in(key, number)
                arrays[path] = random.split(start, leaf.shape) if leaf.shape else start
                number += 1
            elif path in streams:  # A counter.
                arrays[path] = jnp.zeros(leaf.shape, leaf.dtype)
        module: Any = nnx.unflatten(self.graphdef, list(arrays.values()))
        module.train() if train else module.eval()
        if not train and rng_key is not None:
            module.set_attributes(*_NOISY, deterministic=False, raise_if_not_found=False)
        own = None if rng_key is None else nnx.Rngs(random.fold_in(key, len(streams)))
        outputs = check_outputs(module(inputs, **({"rngs": own} if self.takes_rngs else {})))
        after = _arrays(module)
        if rng_key is None and any(after[path] is not arrays[path] for path in streams):
            raise InputError(
                f"{type(module).__name__} draws noise without the key of a training step; let it "
                "draw none where its attribute `deterministic` is True, as nnx.Dropout does"
            )
        state = self._variables(module) if train else variables
        return outputs, {name: one for name, one in state.items() if name != "params"}

    def _variables(self, module: nnx.Module) -> Variables:
        """The variables of a module as nested dicts."""
        arrays = _arrays(module)
        flat = {
            # Of a Variable that a number started, the type is weak.
            (leaf, *map(str, path)): jax.tree.map(
                lambda one: jnp.asarray(one, jnp.result_type(one)), arrays[path]
            )
            for path, leaf in self.leaves.items()
            if isinstance(leaf, str)
        }
        found: Variables = unflatten_dict(flat)
        return found


def from_nnx(factory: Factory) -> NNXNetwork:
    """Makes a network of a factory of NNX modules.

    Args:
        factory: Called as `factory(rngs)` with an `nnx.Rngs`; returns a new `nnx.Module`, which
            maps inputs [N, ...] to outputs [N, K], of the same structure at each call. Its methods
            `train` and `eval` set what it is used for. If its call has an argument `rngs`, that
            is an `nnx.Rngs` in training and None otherwise.

    Raises:
        InputError: It is no such factory, or it fails, or the module holds an array outside of its
            Variables.
    """
    networks: list[NNXNetwork] = []

    def trace(rng_key: jax.Array) -> None:
        module = _build(factory, rng_key)
        if _build(factory, rng_key) is module:
            raise InputError(
                f"the factory of NNX modules returns the same module twice, not a {_MODULE}"
            )
        graphdef, state = nnx.split(module)
        leaves = {path: _leaf(module, path, one) for path, one in nnx.to_flat_state(state)}
        takes_rngs = "rngs" in signature(type(module).__call__).parameters
        networks.append(NNXNetwork(factory, graphdef, leaves, takes_rngs))

    jax.eval_shape(trace, random.key(0))  # Nothing is computed.
    return networks[0]


def _leaf(module: nnx.Module, path, leaf):
    """An entry of `NNXNetwork.leaves`, of a module that was built from a traced key."""
    if isinstance(leaf, nnx.RngState):
        return jax.eval_shape(lambda value: value, leaf.get_value())
    if isinstance(leaf, nnx.Variable):
        return "params" if isinstance(leaf, nnx.Param) else "batch_stats"
    if isinstance(leaf, jax.core.Tracer):
        name = ".".join(map(str, (type(module).__name__, *path)))
        raise InputError(
            f"{name} is an array outside of a Variable; keep it in an nnx.Param if it is "
            "learned, in an nnx.Variable if it changes, and make a NumPy array of a constant"
        )
    return leaf


def _build(factory: Factory, rng_key) -> nnx.Module:
    """A module of a member, without what it has noted about its own construction."""
    try:
        with nnx.use_eager_sharding(False):  # Where arrays lie is the mesh's to say.
            module = factory(nnx.Rngs(rng_key))
    except InputError:
        raise
    except Exception as error:  # A factory is a program, and may raise anything.
        raise InputError(
            f"the factory of NNX modules failed {in_own_code(error)}; it is called as "
            f"factory(rngs) with an nnx.Rngs, and returns a {_MODULE}"
        ) from error
    if not isinstance(module, nnx.Module):
        given = in_one_line(repr(module), 60)
        raise InputError(f"the factory of NNX modules returns {given}, not a {_MODULE}")
    nnx.pop(module, nnx.Intermediate)
    return module


def _arrays(module: nnx.Module) -> dict[Any, Any]:
    """The arrays of a module, in and outside of Variables, by their paths."""
    flat = nnx.to_flat_state(nnx.state(module))
    return {
        path: leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf for path, leaf in flat
    }
