"""A multilayer perceptron."""

import functools
from typing import Any

import jax
from flax import linen as nn

from ensemble import network_keys
from ensemble.networks import layers
from ensemble.networks.packed import PLAIN, PackedDense, Packing


class MLP(nn.Module):
    """Hidden layers, by default two of 256 rectified units: 269,322 parameters on MNIST.

    Attributes:
        num_outputs: K, of a classifier its logits.
        widths: units of each hidden layer.
        activation: the name of a function of `jax.nn`, one of `network_keys.ACTIVATIONS`.
        dropout: share of the units that are dropped in training, after each hidden layer.
        dtype: computed in; None: float32. Parameters are float32.
        packing: of an estimator of a packed ensemble.
    """

    num_outputs: int
    widths: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    dropout: float = 0.0
    dtype: Any = None
    packing: Packing = PLAIN

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool = False) -> jax.Array:
        """Maps inputs `[N, ...]`, flattened, to outputs `[N, num_outputs]`."""
        # Flax's default (LeCun) starts tables of few features with large weights, and members stay
        # overconfident: on iris Glorot's halve the test NLL at an equal training NLL.
        init = nn.initializers.glorot_uniform()
        activate = getattr(jax.nn, self.activation)
        x = inputs.reshape((inputs.shape[0], -1))
        in_columns = layers.are_mapped() and self.dtype is None
        dense = (
            layers.DenseOfColumns
            if in_columns
            else functools.partial(PackedDense, dtype=self.dtype)
        )
        x = x.T if in_columns else x
        for i, width in enumerate(self.widths):
            x = dense(
                features=self.packing.units(width),
                kernel_init=init,
                feature_group_count=self.packing.num_groups if i else 1,
                name=f"Dense_{i}",
            )(x)
            x = nn.Dropout(self.dropout)(activate(x), deterministic=not train)
        last = f"Dense_{len(self.widths)}"
        x = dense(features=self.num_outputs, kernel_init=init, name=last)(x)
        return x.T if in_columns else x


def mlp(
    num_outputs: int,
    widths: str = network_keys.MLP.keys["mlp.widths"].default,
    activation: str = network_keys.MLP.keys["mlp.activation"].default,
    dropout: float = network_keys.MLP.keys["mlp.dropout"].default,
    dtype: Any = None,
    packing: Packing = PLAIN,
) -> MLP:
    """Makes what `config.model=mlp` says; the arguments are the values of its keys and fields."""
    return MLP(num_outputs, network_keys.parse_widths(widths), activation, dropout, dtype, packing)
