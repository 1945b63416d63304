"""Linen modules as networks, told whether they train by the argument or field that they have."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.errors import InvalidRngError

from ensemble.errors import UserError
from ensemble.network import Annotations, Variables, check_outputs
from ensemble.sharding.member_parts import path_of

SWITCHES = {"train": True, "training": True, "is_training": True, "deterministic": False}
"""Usual names of what tells a module whether it trains, and the value that says so."""
_STATISTICS = "use_running_average"
DROPOUT = "dropout"
"""The stream of noise that `nn.Dropout` draws from."""
_IS_STILL = "deterministic"
_NOISY = (nn.Dropout, nn.MultiHeadDotProductAttention)
"""Layers that draw noise unless they are told to be deterministic."""


@dataclasses.dataclass(frozen=True)
class LinenNetwork:
    """A Linen module, whose call, or else the module, may have one of the switches `SWITCHES`.

    Attributes:
        module: a `flax.linen.Module` from [B, ...] to outputs [B, K].
        rate: of `nn.Dropout` in training; None: as the layers have it.
    """

    module: Any
    rate: float | jax.Array | None = None

    @functools.cached_property
    def _arguments(self) -> list[str]:
        """The switches that are arguments of the call."""
        return [name for name in SWITCHES if name in _parameters(self.module)]

    @functools.cached_property
    def _fields(self) -> list[str]:
        """The switches that are fields of the module, where the call has none."""
        fields = [one.name for one in dataclasses.fields(self.module)]
        return [] if self._arguments else [name for name in SWITCHES if name in fields]

    def init(self, rng_key: jax.Array, inputs: jax.Array) -> Variables:
        """Starts the variables; `module.init` takes the key as it is."""
        return jax.tree.map(_value, self._boxed(rng_key, inputs), is_leaf=_is_annotated)

    def _boxed(self, rng_key: jax.Array, inputs: jax.Array) -> Variables:
        """The variables, with what the module says of how they are split."""
        module, mode = self._switched(False)
        # Where arrays lie is the mesh's to say; Flax would apply what is said of a member to all.
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            return dict(module.init(rng_key, inputs, **mode))

    def annotations(self, input_shape: tuple[int, ...]) -> Annotations:
        """What `nn.with_partitioning` says of the parameters."""
        inputs = jax.ShapeDtypeStruct((1, *input_shape), jnp.float32)
        boxed = jax.eval_shape(self._boxed, jax.random.key(0), inputs)["params"]
        found = tuple(
            (path_of(path), tuple(leaf.get_partition_spec()) if _is_annotated(leaf) else ())
            for path, leaf in jax.tree.leaves_with_path(boxed, is_leaf=_is_annotated)
        )
        return found if any(any(names) for _, names in found) else ()

    def apply(
        self,
        variables: Variables,
        inputs: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Variables]:
        """Maps inputs to outputs; each stream of noise that the module asks for has its own key.

        The stream `dropout` starts at `rng_key`, another at a key that follows from its name. With
        a key and without `train` the module is told that it predicts, and its layers of Flax that
        draw noise that they do not.
        """
        if train:
            with self._seen_to_be_active(), _dropping(self.rate):
                return self._with_streams(variables, inputs, True, rng_key)
        state = _state(variables)
        if rng_key is not None:
            with _told(dict.fromkeys(_NOISY, (_IS_STILL, False))):
                return self._with_streams(variables, inputs, False, rng_key)[0], state
        module, mode = self._switched(False)
        outputs: Any = module.apply(variables, inputs, **mode)
        return check_outputs(outputs), state

    def with_dropout(self, rate: float | jax.Array) -> LinenNetwork:
        """The same whose layers `nn.Dropout` drop at this rate in training; it may be traced."""
        return dataclasses.replace(self, rate=rate)

    def in_training(self, variables: Variables, inputs: jax.Array, rng_key: jax.Array) -> jax.Array:
        """Outputs of training, by statistics that do not move."""
        with _told({nn.BatchNorm: (_STATISTICS, True)}):
            return self._with_streams(variables, inputs, True, rng_key)[0]

    def _with_streams(
        self, variables: Variables, inputs: jax.Array, train: bool, rng_key: jax.Array | None
    ) -> tuple[jax.Array, Variables]:
        """Outputs and state of the module with keys for the streams that it asks for."""
        module, mode = self._switched(train)
        rngs: dict[str, Any] = {DROPOUT: rng_key}
        while True:
            try:
                outputs, state = module.apply(
                    variables, inputs, rngs=rngs, mutable=list(_state(variables)), **mode
                )
                return check_outputs(outputs), dict(state)
            except InvalidRngError as error:  # It is traced anew for each stream, of which few are.
                name = _absent_stream(error)
                if name in rngs:
                    raise UserError(
                        f"{type(self.module).__name__} asks for the stream {name!r} within a "
                        f"transformation that leaves it out: add {name!r} to its split_rngs"
                    ) from error
                rngs[name] = jax.random.fold_in(rngs[DROPOUT], zlib.crc32(name.encode()))

    def _switched(self, train: bool) -> tuple[Any, dict[str, bool]]:
        """The module, and arguments of its call, in training or not."""
        fields = {name: SWITCHES[name] == train for name in self._fields}
        module = self.module.clone(**fields) if fields else self.module
        return module, {name: SWITCHES[name] == train for name in self._arguments}

    @contextlib.contextmanager
    def _seen_to_be_active(self) -> Iterator[None]:
        """Refuses layers that are for training, and of which none trains, when they are traced.

        Raises:
            UserError: naming the layers.
        """
        active: dict[str, bool] = {}

        def look(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
            layer, outputs = context.module, call(*args, **kwargs)
            if context.method_name != "__call__":
                return outputs
            given = inspect.signature(call).bind(*args, **kwargs).arguments
            for kind, name in ((nn.Dropout, _IS_STILL), (nn.BatchNorm, _STATISTICS)):
                if isinstance(layer, kind) and getattr(layer, "rate", True):
                    rests = given.get(name) if given.get(name) is not None else getattr(layer, name)
                    active[kind.__name__] = active.get(kind.__name__, False) or not rests
            return outputs

        with nn.intercept_methods(look):
            yield
        idle = [kind for kind, is_active in active.items() if not is_active]
        if idle:
            raise UserError(
                f"{type(self.module).__name__} has {' and '.join(idle)}, but always calls them as "
                "in predictions: let __call__ take train: bool, and pass deterministic=not train "
                f"to Dropout and {_STATISTICS}=not train to BatchNorm"
            )


@contextlib.contextmanager
def _told(values: Mapping[type, tuple[str, bool]]) -> Iterator[None]:
    """Within, layers of some types have a switch set to a value, whatever their module says.

    Args:
        values: by type, the name of the switch, a field or an argument of the call, and its value.
    """

    def tell(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        layer = context.module
        kind = next((one for one in values if isinstance(layer, one)), None)
        if kind is None or context.method_name != "__call__":
            return call(*args, **kwargs)
        name, value = values[kind]
        before = getattr(layer, name)
        if before is None:
            bound = inspect.signature(call).bind(*args, **kwargs)
            bound.arguments[name] = value
            return call(*bound.args, **bound.kwargs)
        object.__setattr__(layer, name, value)  # Modules are frozen.
        try:
            return call(*args, **kwargs)
        finally:
            object.__setattr__(layer, name, before)

    with nn.intercept_methods(tell):
        yield


@contextlib.contextmanager
def _dropping(rate: float | jax.Array | None) -> Iterator[None]:
    """Within, layers `nn.Dropout` that drop do so at this rate, if it is one."""

    def drop(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        layer = context.module
        if not isinstance(layer, nn.Dropout) or context.method_name != "__call__":
            return call(*args, **kwargs)
        given = inspect.signature(call).bind(*args, **kwargs).arguments
        if nn.merge_param(_IS_STILL, layer.deterministic, given.get(_IS_STILL)):
            return call(*args, **kwargs)
        inputs, rng_key = given["inputs"], given.get("rng")
        if rng_key is None:
            rng_key = layer.make_rng(layer.rng_collection)
        shape = [1 if axis in layer.broadcast_dims else n for axis, n in enumerate(inputs.shape)]
        share = 1 - jnp.asarray(rate, jnp.float32)
        kept = jax.random.bernoulli(rng_key, share, shape)
        return jnp.where(kept, inputs / share.astype(inputs.dtype), jnp.zeros_like(inputs))

    with nn.intercept_methods(drop) if rate is not None else contextlib.nullcontext():
        yield


def _state(variables: Variables) -> Variables:
    """The collections beside the parameters."""
    return {name: value for name, value in variables.items() if name != "params"}


def _absent_stream(error: InvalidRngError) -> str:
    """The name of the stream that a module has asked for, and for which there is no key."""
    found = re.search(r'needs PRNG for "(.*?)"', str(error), re.DOTALL)
    if found is None:
        raise error
    return found[1]


def _is_annotated(value: Any) -> bool:
    return isinstance(value, nn.Partitioned)


def _value(leaf: Any) -> Any:
    return leaf.value if _is_annotated(leaf) else leaf


def _parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    """The arguments of a module's call."""
    return inspect.signature(type(module).__call__).parameters
