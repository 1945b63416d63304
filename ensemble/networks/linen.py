"""Linen modules as networks, told whether they train by the argument or field that they have.

The smallest of them is logistic regression.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from inspect import signature
from typing import Any

import jax
from flax import linen as nn

from ensemble.network import Variables, check_outputs


class LogisticRegression(nn.Module):
    """One dense layer: 7,850 parameters on MNIST.

    Attributes:
        num_outputs: K, of a classifier its logits.
        dtype: computed in; None: float32. Parameters are float32.
    """

    num_outputs: int
    dtype: Any = None

    @nn.compact
    def __call__(self, inputs: Any) -> Any:
        """Maps inputs `[N, ...]`, flattened, to outputs `[N, num_outputs]`."""
        x = inputs.reshape((inputs.shape[0], -1))
        return nn.Dense(self.num_outputs, dtype=self.dtype)(x)


SWITCHES = {"train": True, "training": True, "is_training": True, "deterministic": False}
"""Usual names of what tells a module whether it trains, and the value that says so."""
DROPOUT = "dropout"
"""The stream of noise that `nn.Dropout` draws from."""
_OTHERS = 2**32 - 3  # What the key of other streams is folded with.
_NOISY = (nn.Dropout, nn.MultiHeadDotProductAttention)
"""Layers that draw noise unless they are told to be deterministic."""


@dataclasses.dataclass(frozen=True)
class LinenNetwork:
    """A Linen module, whose call, or else the module, may have one of the switches `SWITCHES`.

    Attributes:
        module: A `flax.linen.Module` from [B, ...] to outputs [B, K].
    """

    module: Any

    def init(self, rng_key: Any, inputs: Any) -> Variables:
        """Starts the variables; `module.init` takes the key as it is."""
        module, mode = self._switched(False)
        # Where arrays lie is the mesh's to say: `nn.with_partitioning` counts for nothing.
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            return dict(nn.unbox(module.init(rng_key, inputs, **mode)))

    def apply(
        self, variables: Variables, inputs: Any, train: bool = False, rng_key: Any = None
    ) -> tuple[jax.Array, Variables]:
        """Maps inputs to outputs.

        The stream `dropout` starts at `rng_key`, all others at another key. With a key and without
        `train` the module is told that it predicts, and its layers of Flax that draw noise that
        they do not.

        Raises:
            InvalidRngError: The module draws noise without a key, or a transformation within it
                leaves a stream out of its `split_rngs`.
        """
        module, mode = self._switched(train)
        state = {name: one for name, one in variables.items() if name != "params"}
        rngs = {}
        if rng_key is not None:  # Flax takes the stream `params` for one that is not given.
            rngs = {DROPOUT: rng_key, "params": jax.random.fold_in(rng_key, _OTHERS)}
        with _noisy() if rngs and not train else nullcontext():
            outputs, moved = module.apply(
                variables, inputs, rngs=rngs, mutable=list(state) if train else [], **mode
            )
        return check_outputs(outputs), dict(moved) if train else state

    def _switched(self, train: bool) -> tuple[Any, dict[str, bool]]:
        """The module, and arguments of its call, in training or not."""
        fields = {one.name for one in dataclasses.fields(self.module)}
        arguments = signature(type(self.module).__call__).parameters
        of_call, of_module = (
            {name: value == train for name, value in SWITCHES.items() if name in there}
            for there in (arguments, fields)
        )
        return (self.module, of_call) if of_call else (self.module.clone(**of_module), {})


@contextmanager
def _noisy() -> Iterator[None]:
    """Within, layers of Flax draw their noise, whatever their module tells them."""

    def draw(call, args, kwargs, context):
        layer = context.module
        if context.method_name != "__call__" or not isinstance(layer, _NOISY):
            return call(*args, **kwargs)
        bound = signature(call).bind(*args, **kwargs)
        before = layer.deterministic
        bound.arguments["deterministic"] = False
        object.__setattr__(layer, "deterministic", None)  # Modules are frozen.
        try:
            return call(*bound.args, **bound.kwargs)
        finally:
            object.__setattr__(layer, "deterministic", before)

    with nn.intercept_methods(draw):
        yield
