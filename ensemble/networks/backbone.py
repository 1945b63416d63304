"""A frozen backbone: what makes features of inputs, so that only heads on them are learned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble.errors import UserError, in_one_line
from ensemble.network import Annotations, Backbone, Network, Variables
from ensemble.sharding import transfer


class FunctionBackbone(Backbone):
    """A function of inputs as a backbone.

    A function of JAX is found out by tracing it, and is compiled; any other is called as it is.

    Args:
        function: from raw inputs [B, ...] float32 to features [B, F]: of JAX, of NumPy, or of what
            NumPy can make an array of, such as tensors on the CPU.
    """

    def __init__(self, function: Callable[[Any], Any]):
        self.function = function
        self._compiled = jax.jit(lambda inputs: function(inputs))
        self._refusals: dict[tuple[int, ...], str] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return FunctionBackbone, (self.function,)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Makes features [B, F] float32 of raw inputs [B, ...], on the host or one device.

        Raises:
            UserError: the function fails, or does not return such features.
        """
        inputs = np.asarray(inputs, np.float32)
        try:
            if self._refusal(inputs.shape[1:]):
                features = np.asarray(self.function(inputs))
            else:  # Few shapes are compiled.
                size = 1 << (len(inputs) - 1).bit_length()
                features = np.asarray(self._compiled(transfer.pad(inputs, size)))[: len(inputs)]
        except Exception as error:  # A backbone is a program, and may raise anything.
            raise self._failed(inputs.shape, error) from error
        if features.ndim != 2 or len(features) != len(inputs) or features.dtype.kind not in "fiu":
            raise UserError(
                f"the backbone {self.name} maps inputs {inputs.shape} to {features.dtype} "
                f"{features.shape}; it must return features [{len(inputs)}, F], numbers"
            )
        features = features.astype(np.float32, copy=False)
        if not np.isfinite(features).all():
            raise UserError(f"the backbone {self.name} returns NaN or infinities; fix it")
        return features

    def traced(self, inputs: jax.Array) -> jax.Array:
        """Makes features [B, F] of raw inputs [B, ...] in a program of JAX.

        Raises:
            UserError: the function is none of JAX.
        """
        try:
            features = self.function(inputs.astype(jnp.float32))
            return jnp.asarray(features, jnp.float32)
        except Exception as error:  # A backbone is a program, and may raise anything.
            raise UserError(
                f"the backbone {self.name} cannot be in an export, for it is no function of JAX "
                f"for batches of any size ({type(error).__name__}: {in_one_line(error, 100)}); "
                "write it with jax.numpy, with inputs.shape[0] for their number"
            ) from error

    @property
    def name(self) -> str:
        """The name of the function, for messages."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def _refusal(self, input_shape: tuple[int, ...]) -> str:
        """Why JAX cannot trace the function; empty where it can."""
        if input_shape not in self._refusals:
            inputs = jax.ShapeDtypeStruct((2, *input_shape), jnp.float32)
            try:
                jax.eval_shape(self._compiled, inputs)
                self._refusals[input_shape] = ""
            except Exception as error:  # Whatever another library makes of JAX's tracers.
                self._refusals[input_shape] = type(error).__name__
        return self._refusals[input_shape]

    def _failed(self, shape: tuple[int, ...], error: Exception) -> UserError:
        return UserError(
            f"the backbone {self.name} fails on raw inputs {shape} float32 "
            f"({type(error).__name__}: {in_one_line(error, 200)}); it must return features [B, F] "
            "of inputs [B, ...]"
        )


@dataclasses.dataclass(frozen=True)
class HeadNetwork:
    """A network whose inputs are the features of a backbone; see `ensemble.networks.on_features`.

    Attributes:
        head: from features [B, F] to outputs [B, K].
        backbone: from raw inputs to features.
    """

    head: Network
    backbone: Backbone

    def init(self, rng_key: jax.Array, inputs: jax.Array) -> Variables:
        """Starts the head's variables for features [B, F]."""
        return self.head.init(rng_key, inputs)

    def apply(
        self,
        variables: Variables,
        inputs: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Variables]:
        """Maps features [B, F] to outputs."""
        return self.head.apply(variables, inputs, train, rng_key)

    def in_training(self, variables: Variables, inputs: jax.Array, rng_key: jax.Array) -> jax.Array:
        """The head's outputs of training, by statistics that do not move."""
        if hasattr(self.head, "in_training"):
            return self.head.in_training(variables, inputs, rng_key)
        return self.head.apply(variables, inputs, False, rng_key)[0]

    def annotations(self, input_shape: tuple[int, ...]) -> Annotations:
        """What the head says of its parameters."""
        said = getattr(self.head, "annotations", None)
        return () if said is None else said(input_shape)
