"""What every network promises: outputs of the size that is asked for, and each example alone."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import networks
from ensemble.config import model_block
from ensemble.testing.promises import Promise, demand, keep_all, promise


@dataclasses.dataclass(frozen=True)
class NetworkCase:
    """A network of inputs of a shape.

    Attributes:
        name: of the network.
        input_shape: of an example.
        settings: keywords of its factory.
        num_outputs: that it is asked for.
    """

    name: str
    input_shape: tuple[int, ...]
    settings: Mapping[str, Any]
    num_outputs: int = 7
    kind: str = "network"

    @functools.cached_property
    def network(self) -> Any:
        """The network as training makes it."""
        return networks.create(self.name, self.num_outputs, self.settings)

    @functools.cached_property
    def inputs(self) -> jax.Array:
        """Eight examples."""
        return jax.random.normal(jax.random.key(1), (8, *self.input_shape))

    def init(self, seed: int = 0) -> Any:
        """Variables of a member."""
        return self._init(jax.random.key(seed), self.inputs[:1])

    @functools.cached_property
    def _init(self) -> Any:
        return jax.jit(self.network.init)

    @functools.cached_property
    def variables(self) -> Any:
        """The variables of the first member."""
        return self.init()

    @functools.cached_property
    def apply(self) -> Any:
        """Outputs and collections of variables and inputs, compiled."""
        return jax.jit(lambda variables, inputs: self.network.apply(variables, inputs))


def check_network(name: str, input_shape: tuple[int, ...] = (5,), **settings: Any) -> None:
    """Checks what every network promises.

    Args:
        name: of a network that is built in, registered or installed.
        input_shape: of an example: (H, W, C) of pictures, (F,) of features.
        **settings: keywords of its factory, beside the defaults of its keys.

    Raises:
        BrokenPromise: it breaks a rule, which the message names, with what to look at.
        UserError: there is no such network, or its factory does not make one.
    """
    case = NetworkCase(name, input_shape, settings)
    _ = case.network  # Refuses what cannot be made.
    keep_all(PROMISES, case)


_FOUND: list[Promise] = []


@promise(_FOUND, "the Block that its entry names")
def keys_have_its_name(case: NetworkCase) -> None:
    """Its keys of the configuration begin with its name and a dot."""
    for key in model_block(case.name).keys:
        demand(key.startswith(f"{case.name}."), f"{key!r} does not begin with '{case.name}.'")


@promise(_FOUND, "the last layer: num_outputs wide, in float32, and nothing that reduces rows")
def outputs_have_the_size_that_is_asked_for(case: NetworkCase) -> None:
    """Outputs are float32, a row for each example, as many in it as are asked for."""
    inputs = case.inputs[:3]
    variables = jax.eval_shape(case.network.init, jax.random.key(0), inputs)
    demand("params" in variables, f"variables have no 'params', but {', '.join(variables)}")
    outputs, rest = jax.eval_shape(case.network.apply, variables, inputs)
    wanted = (3, case.num_outputs)
    demand(outputs.shape == wanted, f"outputs have the shape {outputs.shape}, not {wanted}")
    demand(outputs.dtype == jnp.float32, f"outputs are {outputs.dtype}, not float32")
    others = variables.keys() - {"params"}
    demand(
        rest.keys() == others, f"apply returns {sorted(rest)} beside them, init {sorted(others)}"
    )


@promise(_FOUND, "init: draw parameters by the key that it is given, and by nothing else")
def members_differ_by_their_key(case: NetworkCase) -> None:
    """One key gives the same parameters each time, and another key gives other ones."""
    first, again, other = (jax.tree.leaves(case.init(seed)["params"]) for seed in (0, 0, 1))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two, err_msg="one key twice")
    differ = any(np.any(one != two) for one, two in zip(first, other, strict=True))
    demand(differ, "two keys give the same parameters")


@promise(_FOUND, "what mixes the examples of a batch, or draws noise without train")
def an_example_is_predicted_alone_as_in_its_batch(case: NetworkCase) -> None:
    """An example is predicted alone as in its batch, and again alike."""
    inputs, variables = case.inputs[:4], case.variables
    outputs, _ = case.apply(variables, inputs)
    again, _ = case.apply(variables, inputs)
    np.testing.assert_array_equal(again, outputs, err_msg="the same inputs again")
    alone, _ = case.apply(variables, inputs[2:3])
    np.testing.assert_allclose(alone, outputs[2:3], rtol=1e-4, atol=1e-5, err_msg="alone")
    demand(np.isfinite(outputs).all(), "outputs are not finite")
    demand(np.std(outputs) > 0, "all outputs are the same")


@promise(_FOUND, "parameters that outputs do not depend on, or a function without a slope")
def every_parameter_has_a_gradient(case: NetworkCase) -> None:
    """Every parameter has a gradient that is finite, and not 0."""
    variables = case.variables

    @jax.jit
    def gradients(params: Any) -> Any:
        def loss(params: Any) -> Any:
            outputs, _ = case.network.apply({**variables, "params": params}, case.inputs)
            return -jnp.mean(jax.nn.log_softmax(outputs)[:, 3])

        return jax.grad(loss)(params)

    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients(variables["params"])):
        where = jax.tree_util.keystr(path)
        demand(np.any(leaf != 0), f"the gradient of {where} is 0")
        demand(np.all(np.isfinite(leaf)), f"the gradient of {where} is not finite")


PROMISES: tuple[Promise, ...] = tuple(_FOUND)
"""All rules of networks, in order."""
