"""Linen modules as networks."""

import dataclasses
import functools
import inspect
from typing import Any

import jax

from ensemble.network import Variables, check_outputs


@dataclasses.dataclass(frozen=True)
class LinenNetwork:
    """A Linen module, whose call may have an argument `train`.

    Attributes:
        module: a `flax.linen.Module` from [B, ...] to outputs [B, K].
    """

    module: Any

    @property
    def is_linear(self) -> bool:
        """Whether the module says that it is multinomial logistic regression.

        Its own class must say so: one that is derived from it may be another network.
        """
        return bool(vars(type(self.module)).get("is_linear", False))

    @functools.cached_property
    def _takes_train(self) -> bool:
        return "train" in inspect.signature(type(self.module).__call__).parameters

    def init(self, rng_key: jax.Array, inputs: jax.Array) -> Variables:
        """Starts the variables; `module.init` takes the key as it is."""
        return dict(self.module.init(rng_key, inputs, **self._mode(False)))

    def apply(
        self,
        variables: Variables,
        inputs: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Variables]:
        """Maps inputs to outputs; noise of the stream `dropout` comes from `rng_key`."""
        state = {name: value for name, value in variables.items() if name != "params"}
        mode = self._mode(train)
        if not train:
            outputs: Any = self.module.apply(variables, inputs, **mode)
            return check_outputs(outputs), state
        outputs, state = self.module.apply(
            variables, inputs, rngs={"dropout": rng_key}, mutable=list(state), **mode
        )
        return check_outputs(outputs), dict(state)

    def _mode(self, train: bool) -> dict[str, bool]:
        return {"train": train} if self._takes_train else {}
