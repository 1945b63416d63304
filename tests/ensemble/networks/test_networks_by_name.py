"""Networks by name."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from ensemble import networks
from ensemble.errors import UserError


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Each test adds to a copy of the registry."""
    monkeypatch.setattr(networks, "_factories", dict(networks._factories))


def test_names_lists_the_networks_of_the_project():
    assert {"cnn", "lenet5", "mlp", "resnet20"} <= set(networks.names())
    assert networks.names() == sorted(networks.names())


def test_an_unknown_name_is_refused_and_the_known_ones_listed():
    with pytest.raises(
        UserError, match=r"'cmm'.*cnn,.* lenet5,.* mlp, resnet20.*networks.register"
    ):
        networks.create("cmm", 10)


def test_a_module_of_ones_own_is_registered_by_a_call():
    class Linear(nn.Module):
        num_classes: int

        @nn.compact
        def __call__(self, inputs):
            return nn.Dense(self.num_classes)(inputs)

    networks.register("linear", Linear)
    network = networks.create("linear", 3)
    outputs, state = network.apply(
        network.init(jax.random.key(0), jnp.ones([1, 4])), jnp.ones([5, 4])
    )
    assert outputs.shape == (5, 3)
    assert state == {}
    assert "linear" in networks.names()


def test_register_decorates_a_function():
    @networks.register("wide")
    def wide(num_classes):
        return nn.Dense(10 * num_classes)

    assert networks.create("wide", 2).module.features == 20
    assert wide(3).features == 30


@pytest.mark.parametrize(
    ("factory", "line"),
    [
        (lambda num_outputs: nn.Dense, r"'mine' makes the class Dense.*such as Dense\(num_out"),
        (lambda num_outputs: {"init": 3}, r"'mine' makes a dict, which is no network"),
    ],
)
def test_what_is_no_network_is_refused(factory, line):
    networks.register("mine", factory)
    with pytest.raises(UserError, match=line):
        networks.create("mine", 3)
