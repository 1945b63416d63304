"""The contract of networks: a pair of pure functions of variables and inputs.

`ensemble.networks` has the implementations, one adapter for each library, and takes whatever else
has these two functions. Nothing outside that folder knows which library a network is written in.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from ensemble.errors import InputError
from ensemble.pytrees import ByName

Variables = ByName
"""`params`, a tree of arrays, and the network's other collections, such as batch statistics."""


class Network(Protocol):
    """A network without variables of its own; one object serves all members.

    It may have `check_inputs(inputs, params)`, which raises a `InputError` for inputs [N, ...] that
    it cannot predict with the parameters [M, ...] of members. If it has `takes_raw_inputs = True`,
    its inputs are not normalised.
    """

    def init(self, rng_key: Array, inputs: Array) -> Variables:
        """Starts the variables.

        Args:
            rng_key: Key of the member, typed or raw.
            inputs: [B, *input_shape] float32, of which only the shape counts.

        Returns:
            `params` and, if the network has state, other collections.
        """

    def apply(
        self,
        variables: Variables,
        inputs: Array,
        train: bool = False,
        rng_key: Array | None = None,
    ) -> tuple[Array, Variables]:
        """Maps inputs to outputs.

        Args:
            variables: Variables of `init`, or of training since.
            inputs: [B, *input_shape] float32, normalised.
            train: If True, this is a training step: batch statistics move, dropout drops. Static.
            rng_key: Key of the noise, such as dropout. A network that draws noise in training fails
                there without a key; a prediction draws noise only if it has a key.

        Returns:
            Outputs [B, K], and the collections other than `params` after the call; without `train`
            they are those of `variables`.
        """


class Traits(NamedTuple):
    """What a network does besides mapping inputs to outputs; `ensemble.networks.facts` finds it.

    Attributes:
        has_state: It has collections other than `params`.
        is_random: It draws noise in training.
        has_convolutions: It learns kernels of convolutions, which XLA:CPU differentiates slowly
            within a loop.
        unrolls: On CPU members follow each other: it convolves, or its activations would fill the
            memory if they were of all members at once.
    """

    has_state: bool
    is_random: bool
    has_convolutions: bool = False
    unrolls: bool = False

    @property
    def examples_are_independent(self) -> bool:
        """Whether a batch gives the same gradient in slices, and a likelihood is a function."""
        return not (self.has_state or self.is_random)


def path_name(path: Any) -> str:
    """The name of a leaf of variables: its path, with `/`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def widened(outputs: Array) -> Array:
    """Outputs in float32 at least, whatever a network computes in: likelihoods need it."""
    return outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))


def check_outputs(outputs: Any) -> Array:
    """Returns the outputs of a network.

    Raises:
        InputError: they are not an array.
    """
    if isinstance(outputs, Array):
        return outputs
    raise InputError(
        f"the network returns a {type(outputs).__name__}; end it with `return outputs`, one array "
        "[N, K] of N examples"
    )
