"""The contract of networks: a pair of pure functions of variables and inputs.

`ensemble.networks` has the implementations, one adapter for each library, and takes whatever else
has these two functions. Nothing outside that folder knows which library a network is written in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Var

from ensemble.errors import UserError

Variables = dict[str, Any]
"""`params`, a tree of arrays, and the network's other collections, such as batch statistics."""


Names = tuple[str | tuple[str, ...] | None, ...]
"""What each axis of an array is split over: nothing, one axis of the mesh, or several."""

Annotations = tuple[tuple[tuple[str, ...], Names], ...]
"""What a network says of its parameters: pairs of a path in `params` and the names of its axes.

All parameters are there, those without a word too, or none: of paths that end alike, such as that
of a layer and of one of the same name in a block, the longest counts."""


class Network(Protocol):
    """A network without variables of its own; one object serves all members.

    It may have `check_inputs(inputs, params)`, which raises a `UserError` where inputs [N, ...] are
    none that it can predict with the parameters [M, ...] of members. It may have a `backbone`, a
    `Backbone`: its inputs are then the features that this makes of the raw ones. It may have
    `annotations(input_shape)`, which says how its parameters are split over a member's devices.
    It may have `in_training(variables, inputs, rng_key)`, which returns the outputs of training by
    statistics that do not move: `differs_in_training` looks whether noise is all that they have.
    """

    def init(self, rng_key: jax.Array, inputs: jax.Array) -> Variables:
        """Starts the variables.

        Args:
            rng_key: of the member, typed or raw.
            inputs: [B, *input_shape] float32, of which only the shape counts.

        Returns:
            `params` and, where the network has state, other collections.
        """

    def apply(
        self,
        variables: Variables,
        inputs: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Variables]:
        """Maps inputs to outputs.

        Args:
            variables: of `init`, or of training since.
            inputs: [B, *input_shape] float32, normalised.
            train: whether this is a training step: batch statistics move, dropout drops. Static.
            rng_key: of the noise, such as dropout; without `train` noise is drawn only where it is
                given.

        Returns:
            Outputs [B, K], and the collections beside `params` after the call; without `train` they
            are those that went in.
        """


class Backbone(Protocol):
    """A frozen function from raw inputs to features, the same for all members."""

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Makes features [B, F] float32 of raw inputs [B, ...] on the host.

        Raises:
            UserError: it fails.
        """

    def traced(self, inputs: jax.Array) -> jax.Array:
        """Makes features [B, F] of raw inputs [B, ...] in a program of JAX.

        Raises:
            UserError: it can be in none.
        """


class Traits(NamedTuple):
    """What a network does beside mapping inputs to outputs.

    Attributes:
        has_state: whether it has collections beside `params`.
        is_random: whether it draws noise in training.
        has_convolutions: whether it convolves, which XLA:CPU does slowly within a loop.
        annotations: what it says of how its parameters are split over devices.
    """

    has_state: bool
    is_random: bool
    has_convolutions: bool = False
    annotations: Annotations = ()

    @property
    def examples_are_independent(self) -> bool:
        """Whether a batch gives the same gradient in slices, and a likelihood is a function."""
        return not (self.has_state or self.is_random)


def traits(network: Network, input_shape: tuple[int, ...]) -> Traits:
    """Finds out what a network does by tracing it; nothing is computed.

    Args:
        network: any.
        input_shape: of one example.
    """
    rng_key, inputs, variables = _shapes(network, input_shape)
    train_step = jax.make_jaxpr(lambda *args: network.apply(args[0], args[1], True, args[2]))
    jaxpr = train_step(variables, inputs, rng_key).jaxpr
    return Traits(
        has_state=variables.keys() > {"params"},
        is_random=jaxpr.invars[-1] in _needed(jaxpr),
        has_convolutions=any(
            one.primitive.name == "conv_general_dilated" for one in equations(jaxpr)
        ),
        annotations=network.annotations(input_shape) if hasattr(network, "annotations") else (),
    )


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """The operations of a program, and of the programs that it calls."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for one in value if isinstance(value, tuple) else (value,):
                inner = getattr(one, "jaxpr", one)
                if isinstance(inner, Jaxpr):
                    yield from equations(inner)


def _needed(jaxpr: Jaxpr) -> set[Var]:
    """The variables of a program that its results depend on: keys may be made and never used."""
    needed = {one for one in jaxpr.outvars if isinstance(one, Var)}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or not needed.isdisjoint(equation.outvars):
            needed.update(one for one in equation.invars if isinstance(one, Var))
    return needed


def draws_noise(network: Network, input_shape: tuple[int, ...]) -> bool:
    """Whether predictions depend on a key that they are given, by tracing.

    Args:
        network: any.
        input_shape: of one example.
    """
    rng_key, inputs, variables = _shapes(network, input_shape)
    predict = jax.make_jaxpr(lambda *args: network.apply(args[0], args[1], False, args[2])[0])
    jaxpr = predict(variables, inputs, rng_key).jaxpr
    return jaxpr.invars[-1] in _needed(jaxpr)


def differs_in_training(network: Network, input_shape: tuple[int, ...]) -> bool:
    """Whether training changes more than noise and statistics, by tracing.

    Args:
        network: any; of one without `in_training` it is not known, and said to be False.
        input_shape: of one example.
    """
    if not hasattr(network, "in_training"):
        return False
    rng_key, inputs, variables = _shapes(network, input_shape)
    predict = jax.make_jaxpr(lambda *args: network.apply(args[0], args[1], False, args[2])[0])
    learn = jax.make_jaxpr(network.in_training)
    programs = {str(one(variables, inputs, rng_key)) for one in (predict, learn)}
    return len(programs) > 1


def _shapes(network: Network, input_shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """A key, inputs of two examples and variables, without values."""
    rng_key = jax.eval_shape(jax.random.key, 0)
    inputs = jax.ShapeDtypeStruct((2, *input_shape), jnp.float32)
    return rng_key, inputs, jax.eval_shape(network.init, rng_key, inputs)


def last_activation(network: Network, input_shape: tuple[int, ...]) -> str:
    """Whether outputs come out of a 'softmax' or a 'sigmoid', '' if neither, by tracing.

    Args:
        network: any.
        input_shape: of one example.
    """
    _, inputs, variables = _shapes(network, input_shape)
    jaxpr = jax.make_jaxpr(lambda *args: network.apply(*args)[0])(variables, inputs).jaxpr
    equation, _, makers = _maker(jaxpr, jaxpr.outvars[0])
    if equation is None:
        return ""
    name = equation.primitive.name
    if name == "logistic":
        return "sigmoid"
    if name != "div":
        return ""
    numerator, denominator = (_maker(makers, var)[0] for var in equation.invars)
    is_softmax = (
        numerator is not None
        and denominator is not None
        and (numerator.primitive.name, denominator.primitive.name) == ("exp", "reduce_sum")
    )
    return "softmax" if is_softmax else ""


_CASTS = {"convert_element_type", "copy"}
_FLATTENS = _CASTS | {"reshape", "squeeze"}
_ROWS_BY_COLUMNS = (((1,), (0,)), ((), ()))


def is_dense_layer(network: Network, input_shape: tuple[int, ...]) -> bool:
    """Whether outputs are inputs @ kernel + bias and nothing else, by tracing.

    Args:
        network: any.
        input_shape: of one example.

    Returns:
        Whether it is so, and the parameters are `{NAME: {"kernel": [F, K], "bias": [K]}}` of any
        name.
    """
    _, inputs, variables = _shapes(network, input_shape)
    name = next(iter(variables["params"]), None)
    if jax.tree.map(lambda leaf: 0, variables) != {"params": {name: {"kernel": 0, "bias": 0}}}:
        return False
    traced = jax.make_jaxpr(lambda *args: network.apply(*args)[0])(variables, inputs).jaxpr
    bias, kernel, raw = traced.invars  # Keys of a dict are sorted.
    total = _made_by(traced, traced.outvars[0], _CASTS)
    if not isinstance(total, JaxprEqn) or total.primitive.name != "add":
        return False
    product = _made_by(traced, total.invars[0], _CASTS)
    if not isinstance(product, JaxprEqn) or product.primitive.name != "dot_general":
        return False
    left, right = product.invars
    return bool(
        product.params["dimension_numbers"] == _ROWS_BY_COLUMNS
        and _made_by(traced, left, _FLATTENS) is raw
        and _made_by(traced, right, _CASTS) is kernel
        and _made_by(traced, total.invars[1], _FLATTENS | {"broadcast_in_dim"}) is bias
    )


def output_layer(network: Network, input_shape: tuple[int, ...]) -> dict[str, Path] | None:
    """The dense layer that puts the outputs out, by tracing.

    Args:
        network: any.
        input_shape: of one example.

    Returns:
        The paths in `params` of its `kernel` [F, K], and of its `bias` [K] where it has one; None
        where the outputs come out of something else.
    """
    _, inputs, variables = _shapes(network, input_shape)
    traced = jax.make_jaxpr(lambda *args: network.apply(*args)[0])(variables, inputs).jaxpr
    leaves = jax.tree.leaves_with_path(variables)
    paths = {var: path for var, (path, _) in zip(traced.invars, leaves, strict=False)}
    found: dict[str, Path] = {}
    product = _made_by(traced, traced.outvars[0], _CASTS)
    if isinstance(product, JaxprEqn) and product.primitive.name == "add":
        made = [_made_by(traced, var, _FLATTENS | {"broadcast_in_dim"}) for var in product.invars]
        biases = [one for one in made if isinstance(one, Var) and one in paths]
        products = [one for one in made if isinstance(one, JaxprEqn)]
        if len(biases) != 1 or len(products) != 1:
            return None
        found["bias"] = paths[biases[0]]
        product = products[0]
    if not isinstance(product, JaxprEqn) or product.primitive.name != "dot_general":
        return None
    kernel = _made_by(traced, product.invars[1], _CASTS)
    if kernel not in paths or product.params["dimension_numbers"] != _ROWS_BY_COLUMNS:
        return None
    shapes = {path: leaf.shape for path, leaf in leaves}
    found["kernel"] = paths[kernel]
    if "bias" in found and shapes[found["bias"]] != shapes[found["kernel"]][1:]:
        return None
    of_params = [path[0].key == "params" for path in found.values()]
    return {name: path[1:] for name, path in found.items()} if all(of_params) else None


def dense_kernels(network: Network, input_shape: tuple[int, ...]) -> list[Path]:
    """The paths in `params` of the kernels [F, K] of dense layers, in the order of use, by tracing.

    Args:
        network: any.
        input_shape: of one example.
    """
    _, inputs, variables = _shapes(network, input_shape)
    traced = jax.make_jaxpr(lambda *args: network.apply(*args)[0])(variables, inputs).jaxpr
    leaves = jax.tree.leaves_with_path(variables)
    paths = {var: path for var, (path, _) in zip(traced.invars, leaves, strict=False)}
    found = []
    for equation in traced.eqns:
        # Products of other axes make something of each feature by itself.
        is_dense = equation.primitive.name == "dot_general"
        if not is_dense or equation.params["dimension_numbers"] != _ROWS_BY_COLUMNS:
            continue
        kernel = _made_by(traced, equation.invars[1], _CASTS)
        if kernel in paths and paths[kernel][0].key == "params":
            found.append(paths[kernel][1:])
    return found


Path = tuple[Any, ...]
"""The path of a leaf of a tree, as JAX has it."""


def _made_by(jaxpr: Jaxpr, var: Any, through: set[str]) -> Any:
    """The operation that makes a variable, or the input that it is, through some operations."""
    for equation in jaxpr.eqns:
        if var in equation.outvars:
            if equation.primitive.name in through:
                return _made_by(jaxpr, equation.invars[0], through)
            return equation
    return var


_SAME_VALUES = {"reshape", "convert_element_type", "squeeze", "broadcast_in_dim", "copy"}
_LIMITS = {"max", "min", "clamp"}


def _maker(jaxpr: Jaxpr, var: Any) -> tuple[JaxprEqn | None, Any, Jaxpr]:
    """The operation that makes the values of a variable, through calls and changes of shape.

    Returns:
        The operation, None where there is none: then the input that it is; and the program that
        the operation is of.
    """
    for equation in reversed(jaxpr.eqns):
        if var not in equation.outvars:
            continue
        if equation.primitive.name in _SAME_VALUES:
            return _maker(jaxpr, equation.invars[0])
        if equation.primitive.name in _LIMITS:
            arrays = [one for one in equation.invars if getattr(one.aval, "shape", ())]
            if len(arrays) == 1:  # The others are limits, as of `clip`.
                return _maker(jaxpr, arrays[0])
        programs = [getattr(one, "jaxpr", one) for one in equation.params.values()]
        inner = next((one for one in programs if isinstance(one, Jaxpr)), None)
        if inner is None or len(inner.outvars) != len(equation.outvars):
            return equation, var, jaxpr
        found = _maker(inner, inner.outvars[equation.outvars.index(var)])
        if found[0] is None and found[1] in inner.invars:  # It is passed through.
            return _maker(jaxpr, equation.invars[inner.invars.index(found[1])])
        return found
    return None, var, jaxpr


_MAX_CHECKED = 1 << 26
"""Parameters, above which a network is not computed before it is split over devices."""


def mixes_examples(network: Network, input_shape: tuple[int, ...]) -> bool:
    """Whether what is predicted of an example changes where only the others of its batch do.

    One small batch is computed twice on a CPU, with parameters that keep activations in range:
    accelerators take many seconds to compile convolutions. False too for networks of more than 67
    million parameters, which are not computed.

    Args:
        network: any.
        input_shape: of one example.
    """
    rng = np.random.default_rng(0)
    first, others = rng.normal(size=(2, 4, *input_shape)).astype(np.float32)
    others[1] = first[1]
    rng_key = jax.eval_shape(jax.random.key, 0)
    shapes = jax.eval_shape(network.init, rng_key, jax.ShapeDtypeStruct(first.shape, jnp.float32))
    if sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) > _MAX_CHECKED:
        return False

    def start(leaf: jax.ShapeDtypeStruct) -> jax.Array | np.ndarray:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(jax.random.key(0), leaf.shape)
        fan_in = max(1, math.prod(leaf.shape[:-1]))
        # Of NumPy: JAX would compile a program for each shape.
        return np.asarray(rng.uniform(size=leaf.shape) / fan_in, leaf.dtype)

    predict = jax.jit(lambda *args: network.apply(*args)[0][1])
    variables = jax.tree.map(start, shapes)
    with jax.default_device(_cpu()):
        one, same = (np.asarray(predict(variables, each), np.float32) for each in (first, others))
    return bool(np.any(np.abs(one - same) > 1e-5 * (1 + np.abs(one))))


def _cpu() -> jax.Device | None:
    """A CPU, beside accelerators too; None where JAX_PLATFORMS leaves it out."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def path_name(path: Any) -> str:
    """The name of a leaf of variables: its path, with `/`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def widened(outputs: jax.Array) -> jax.Array:
    """Outputs in float32 at least, whatever a network computes in: likelihoods need it."""
    return outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))


def check_outputs(outputs: Any) -> jax.Array:
    """Returns what a network has put out.

    Raises:
        UserError: it is no array.
    """
    if isinstance(outputs, jax.Array):
        return outputs
    if outputs is None:
        what, remedy = "None", "end the function with `return outputs`"
    else:
        what = f"a {type(outputs).__name__}"
        remedy = "write `return outputs`, without anything beside them"
    raise UserError(
        f"the network returns {what}; it must return one array, the outputs [N, K] of N examples: "
        f"{remedy}"
    )
