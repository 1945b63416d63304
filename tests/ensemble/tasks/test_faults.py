"""What is not finite by the network itself is told from training that has diverged."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from run_parts import classification

from ensemble.data import dataset_from_arrays
from ensemble.tasks.faults import fault


class Network:
    """Outputs [B, 2] by a function of inputs and one parameter, which starts at 1."""

    def __init__(self, function):
        self.function = function

    def init(self, rng_key, inputs):
        return {"params": {"w": jnp.ones(())}}

    def apply(self, variables, inputs, train=False, rng_key=None):
        outputs = self.function(inputs[:, :1], variables["params"]["w"])
        return jnp.concatenate([outputs, -outputs], axis=1), {}


def log_of_inputs(x, w):
    return w * jnp.log(x)


def log_of_parameter(x, w):
    return x + jnp.log(w)


def root_at_zero(x, w):
    return x + jnp.sqrt(w - 1)


def fault_of(function, w=None):
    rng = np.random.default_rng(0)
    data = dataset_from_arrays((rng.normal(size=(60, 2)), np.arange(60) % 2), hold_out=False)
    variables = None if w is None else {"params": {"w": np.float32(w)}}
    return fault(classification(data, Network(function)), variables)


@pytest.mark.parametrize(
    ("function", "w", "says"),
    [
        (log_of_inputs, None, r"before any training: .* \d+ of 60 .*test_faults.py:\d+ .*in log"),
        (log_of_parameter, -2.5, "with parameters of 2.5 at most: its outputs for 60 of 60 tr"),
        (root_at_zero, None, "before any training: its outputs are finite, but their gradient is"),
    ],
)
def test_a_network_that_is_not_finite_is_named(function, w, says):
    assert re.search(says, fault_of(function, w))


@pytest.mark.parametrize("w", [None, 0.5, -1e6])  # The last has diverged.
def test_else_it_is_no_fault_of_the_network(w):
    assert fault_of(log_of_parameter, w) == ""
