"""NNX modules as networks, by a factory.

    ensemble.networks.register(
        "mine",
        lambda num_outputs: ensemble.networks.from_nnx(
            lambda rngs: MyModule(num_outputs, rngs=rngs)
        ),
    )

An NNX module holds its weights, so one module is one member. The factory makes a module for each.

The Variables of type `nnx.Param` are the parameters, and each other type of Variable is a
collection of its own: `batch_stats`, or the name of a user's class. An index in a list becomes a
string, as in `layers/0/kernel`. States of random streams are no variables of a network: every call
makes them from its key. Intermediates, and Variables that only a call creates, are dropped.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from ensemble.errors import UserError, in_own_code
from ensemble.network import Annotations, Names, Variables, check_outputs
from ensemble.networks import refuse_nnx

if TYPE_CHECKING:
    from flax import nnx

Factory = Callable[[Any], Any]
Path = tuple[Any, ...]


class _Layout(NamedTuple):
    """What all modules of a factory have in common.

    Attributes:
        graphdef: the structure of a module without its arrays.
        paths: of all arrays, in the order of the structure.
        collections: of each Variable that is one of the network, by its path.
        annotations: what `nnx.with_partitioning` says of each parameter, by its path.
        streams: shapes and dtypes of random streams' keys and counters, by their paths.
        constants: arrays that are the same in every module, by their paths.
    """

    graphdef: nnx.GraphDef
    paths: list[Path]
    collections: dict[Path, str]
    annotations: dict[Path, Names]
    streams: dict[Path, tuple[tuple[int, ...], Any]]
    constants: dict[Path, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class NNXNetwork:
    """A factory of NNX modules; see `from_nnx`.

    Attributes:
        factory: from `nnx.Rngs` to an `nnx.Module`, which maps [B, ...] to outputs [B, K].
        layout: of its modules.
        takes_rngs: whether a module's call has an argument `rngs`.
    """

    factory: Factory
    layout: _Layout
    takes_rngs: bool

    def init(self, rng_key: jax.Array, inputs: jax.Array) -> Variables:
        """Starts the variables: those of `factory(nnx.Rngs(rng_key))`."""
        return {"params": {}} | self._variables(_arrays(_build(self.factory, rng_key)))

    def annotations(self, input_shape: tuple[int, ...]) -> Annotations:
        """What `nnx.with_partitioning` says of the parameters."""
        said = self.layout.annotations
        if not any(map(any, said.values())):
            return ()
        return tuple((tuple(map(str, path)), names) for path, names in said.items())

    def apply(
        self,
        variables: Variables,
        inputs: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Variables]:
        """Maps inputs to outputs; random stream number i starts at `fold_in(rng_key, i)`.

        With a key and without `train` the layers of Flax draw noise that do so in training.

        Raises:
            UserError: the module draws noise although it does not train, or has a Dropout without
                a random stream, or returns something else than an array.
        """
        module, before = self._module(variables, train, rng_key)
        if not train and rng_key is not None:
            _noisy(module)
        outputs = check_outputs(self._call(module, inputs, rng_key))
        after = _arrays(module)
        if rng_key is None and any(after[path] is not before[path] for path in self.layout.streams):
            raise UserError(
                f"{type(module).__name__} draws noise without the key of a training step; let it "
                "draw none where its attribute `deterministic` is True, as nnx.Dropout does"
            )
        return outputs, _without_params(self._variables(after) if train else variables)

    def in_training(self, variables: Variables, inputs: jax.Array, rng_key: jax.Array) -> jax.Array:
        """Outputs of training, by statistics that do not move."""
        from flax import nnx  # Imported by whoever has written the module.

        module, _ = self._module(variables, True, rng_key)
        module.set_attributes(nnx.BatchNorm, use_running_average=True, raise_if_not_found=False)
        return check_outputs(self._call(module, inputs, rng_key))

    def _module(
        self, variables: Variables, train: bool, rng_key: jax.Array | None
    ) -> tuple[nnx.Module, dict[Path, Any]]:
        """The module with these variables, in training or not, and its arrays by their paths."""
        from flax import nnx  # Imported by whoever has written the module.

        arrays = self._streams(rng_key) | self.layout.constants
        for path, collection in self.layout.collections.items():
            arrays[path] = _value_at(variables[collection], path)
        module = nnx.unflatten(self.layout.graphdef, [arrays[path] for path in self.layout.paths])
        if train:
            module.train()
        else:
            module.eval()
        return module, arrays

    def _call(self, module: Any, inputs: jax.Array, rng_key: jax.Array | None) -> Any:
        from flax import nnx  # Imported by whoever has written the module.

        options: dict[str, nnx.Rngs | None] = {"rngs": None} if self.takes_rngs else {}
        if options and rng_key is not None:
            options["rngs"] = nnx.Rngs(jax.random.fold_in(rng_key, len(self.layout.streams)))
        try:
            return module(inputs, **options)
        except ValueError as error:
            if "no `rngs` argument was provided" not in str(error):
                raise
            raise UserError(
                f"{type(module).__name__} has a layer that draws noise and has no rngs; build it "
                "as in nnx.Dropout(0.5, rngs=rngs), or give __call__ an argument `rngs` and hand "
                "that to the layer"
            ) from error

    def _variables(self, arrays: Mapping[Path, Any]) -> Variables:
        """Nested dicts with the names of collections and then the parts of paths as keys."""
        variables: Variables = {}
        for path, collection in self.layout.collections.items():
            *parents, name = (collection, *map(str, path))
            level = variables
            for parent in parents:
                level = level.setdefault(parent, {})
            level[name] = jax.tree.map(_strong, arrays[path])
        return variables

    def _streams(self, rng_key: jax.Array | None) -> dict[Path, Any]:
        """Random streams at their start, in the order of their paths."""
        key = _typed(jax.random.key(0) if rng_key is None else rng_key)
        arrays: dict[Path, Any] = {}
        number = 0
        for path, (shape, dtype) in self.layout.streams.items():
            if jnp.issubdtype(dtype, jax.dtypes.prng_key):
                start = jax.random.fold_in(key, number)
                arrays[path] = jax.random.split(start, shape) if shape else start
                number += 1
            else:
                arrays[path] = jnp.zeros(shape, dtype)
        return arrays


def from_nnx(factory: Factory) -> NNXNetwork:
    """Makes a network of a factory of NNX modules.

    Args:
        factory: called as `factory(rngs)` with an `nnx.Rngs`; returns a new `nnx.Module`, which
            maps inputs [N, ...] to outputs [N, K], of the same structure at each call. Its methods
            `train` and `eval` set what it is used for. Where its call has an argument `rngs`, that
            is an `nnx.Rngs` in training and None otherwise.

    Raises:
        UserError: it is no such factory, or it fails, or the module holds an array outside of its
            Variables.
    """
    if not isinstance(factory, type):
        refuse_nnx(factory, "mine")
    if not callable(factory):
        raise UserError(
            f"ensemble.networks.from_nnx was given a {type(factory).__name__}; it takes a function "
            "of an nnx.Rngs that returns an nnx.Module"
        )
    networks: list[NNXNetwork] = []

    def trace(rng_key: jax.Array) -> None:
        module = _build(factory, rng_key)
        if _build(factory, rng_key) is module:
            refuse_nnx(module, "mine")
        parameters = inspect.signature(type(module).__call__).parameters
        networks.append(NNXNetwork(factory, _layout(module), "rngs" in parameters))

    jax.eval_shape(trace, jax.random.key(0))  # Nothing is computed.
    return networks[0]


def _build(factory: Factory, rng_key: jax.Array) -> nnx.Module:
    """A module of a member, without what it has noted about its own construction."""
    from flax import nnx  # It takes as long to import as Linen, and few need it.

    try:
        with nnx.use_eager_sharding(False):  # Where arrays lie is the mesh's to say.
            module = factory(nnx.Rngs(rng_key))
    except UserError:
        raise
    except Exception as error:  # A factory is a program, and may raise anything.
        raise UserError(
            f"the factory of NNX modules failed {in_own_code(error)}; it is called as "
            "factory(rngs) with an nnx.Rngs"
        ) from error
    if not isinstance(module, nnx.Module):
        kind = f"class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise UserError(
            f"the factory of NNX modules returns the {kind}; it must return a new nnx.Module, "
            "such as MyModule(rngs=rngs)"
        )
    nnx.pop(module, nnx.Intermediate)
    return module


def _layout(module: nnx.Module) -> _Layout:
    """What is found out about a module that was built from a traced key."""
    from flax import nnx  # Imported by whoever has written the module.

    for path, value in nnx.iter_graph(module):
        if isinstance(value, jax.core.Tracer):
            name = ".".join(map(str, (type(module).__name__, *path)))
            raise UserError(
                f"{name} is an array outside of a Variable; keep it in an nnx.Param if it is "
                "learned, in an nnx.Variable if it changes, and make a NumPy array of a constant"
            )
    graphdef, state = nnx.split(module)
    layout = _Layout(graphdef, [], {}, {}, {}, {})
    for path, leaf in nnx.to_flat_state(state):
        layout.paths.append(path)
        if not isinstance(leaf, nnx.Variable):
            layout.constants[path] = leaf
        elif isinstance(leaf, nnx.RngState):
            value = leaf.get_value()
            layout.streams[path] = value.shape, value.dtype
        else:
            layout.collections[path] = _collection(leaf, path)
            if isinstance(leaf, nnx.Param):
                layout.annotations[path] = tuple(nnx.spmd.get_var_pspec(leaf) or ())
    return layout


def _collection(variable: nnx.Variable, path: Path) -> str:
    """The name of the collection that a Variable belongs to, by its type.

    Raises:
        UserError: its value is neither an array nor a dict of arrays.
    """
    from flax import nnx  # Imported by whoever has written the module.

    for keys, _ in jax.tree_util.tree_leaves_with_path(variable.get_value()):
        if not all(isinstance(getattr(key, "key", None), str) for key in keys):
            raise UserError(
                f"the Variable {'.'.join(map(str, path))} of a module of NNX holds a "
                f"{type(variable.get_value()).__name__}; it must hold one array, or a dict of them "
                "by names: make an nnx.List of Variables"
            )
    if isinstance(variable, nnx.Param):
        return "params"
    try:
        return nnx.variable_name_from_type(type(variable))
    except ValueError:  # A type of the user's own.
        return type(variable).__name__


def _arrays(module: nnx.Module) -> dict[Path, Any]:
    """The arrays of a module, in and outside of Variables, by their paths."""
    from flax import nnx  # Imported by whoever has written the module.

    flat = nnx.to_flat_state(nnx.state(module))
    return {
        path: leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf for path, leaf in flat
    }


def _value_at(collection: Any, path: Path) -> Any:
    """What a nested dict has at a path."""
    for part in path:
        collection = collection[str(part)]
    return collection


def _noisy(module: nnx.Module) -> None:
    """Lets layers of Flax draw noise."""
    from flax import nnx  # Imported by whoever has written the module.

    layers = nnx.Dropout, nnx.MultiHeadAttention
    module.set_attributes(*layers, deterministic=False, raise_if_not_found=False)


def _without_params(variables: Variables) -> Variables:
    return {name: collection for name, collection in variables.items() if name != "params"}


def _strong(value: Any) -> jax.Array:
    """An array whose dtype is its own, where a Variable was started from a Python number."""
    array = jnp.asarray(value)
    return jnp.asarray(array, array.dtype)


def _typed(rng_key: jax.Array) -> jax.Array:
    """A key that may be raw, as a typed one."""
    if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key):
        return rng_key
    return jax.random.wrap_key_data(rng_key)
