"""Networks by name."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from ensemble import UserError, networks, registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Each test adds to a copy of the registry."""
    monkeypatch.setattr(registry.NETWORKS, "registered", dict(registry.NETWORKS.registered))


def test_names_lists_the_networks_of_the_project():
    assert {"cnn", "lenet5", "mlp", "resnet20"} <= set(networks.names())
    assert networks.names() == sorted(networks.names())


def test_an_unknown_name_is_refused_and_the_known_ones_listed():
    with pytest.raises(UserError, match=r"'cmm'.*cnn,.* lenet5,.*resnet20.*networks.register"):
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


class Right(nn.Module):
    """The number of outputs is the first field."""

    num_outputs: int
    width: int = 8


class Late(nn.Module):
    """It is the second."""

    width: int = 8
    num_classes: int = 10


class Fixed(nn.Module):
    """It is none."""

    width: int = 8


def failing(num_outputs):
    return nn.Dens(num_outputs)


WRITE = r"write ensemble.networks.register\('mine', "


@pytest.mark.parametrize(
    ("factory", "line"),
    [
        (
            Right(3),
            rf"class Right.*{WRITE}Right\)",
        ),
        (
            Late,
            rf"the Linen class Late.*{WRITE}lambda num_outputs: Late\(num_classes=num_outputs\)\)$",
        ),
        (Late(), r"object of the class Late.*Late\(num_classes=num_outputs\)\)$"),
        (
            Fixed,
            rf"the Linen class Fixed.*`num_outputs: int`.*{WRITE}Fixed\)$",
        ),
        (Fixed(), rf"object of the class Fixed.*{WRITE}Fixed\)$"),
        (nn.Sequential([nn.Dense(3)]), r"an object of the class Sequential"),
        (
            networks.from_functions(lambda k, x: {}, lambda p, x: x),
            rf"FunctionNetwork.*{WRITE}lambda num_outputs: \.\.\.\)",
        ),
        (lambda: Right(3), r"0 positional arguments.*factory\(3\)"),
        (failing, r"test_networks_by_name.py:\d+ \(AttributeError: .*'Dens'"),
    ],
)
def test_what_makes_no_network_is_refused_with_what_to_write(factory, line):
    networks.register("mine", factory)
    with pytest.raises(UserError, match=line) as error:
        networks.create("mine", 3)
    assert "\n" not in str(error.value)


def test_the_first_field_may_have_another_name_if_it_must_be_given():
    networks.register("dense", nn.Dense)
    assert networks.create("dense", 4).module.features == 4
    networks.register("right", Right)
    assert networks.create("right", 4).module.num_outputs == 4


@pytest.mark.parametrize(
    ("factory", "line"),
    [
        (lambda num_outputs: nn.Dense, r"'mine'.*Dense\(num_out"),
        (lambda num_outputs: {"init": 3}, r"'mine' makes a dict, which is no network"),
    ],
)
def test_what_is_no_network_is_refused(factory, line):
    networks.register("mine", factory)
    with pytest.raises(UserError, match=line):
        networks.create("mine", 3)
