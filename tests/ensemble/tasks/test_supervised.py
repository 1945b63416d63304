"""The supervised task: whose parameters are whose, what fits, what a workdir says of it."""

import runpy

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from run_parts import classification, validated

from ensemble import InputError, networks
from ensemble.data import dataset_from_arrays
from ensemble.likelihoods.classes import Categorical
from ensemble.methods.training import make_objective
from ensemble.networks.linen import LinenNetwork
from ensemble.priors import parse_prior
from ensemble.tasks.supervised import Supervised, check_network, make_likelihood

KEY = jax.random.key(3)
START = 0.5


class Scaled(Categorical):
    """Logits over a scale that is learned: a likelihood with a parameter of its own."""

    name = "scaled"

    def init(self, rng_key):
        return {"log_scale": jnp.full((), START)}

    def log_prob(self, params, outputs, targets):
        return super().log_prob({}, outputs / jnp.exp(params["log_scale"]), targets)

    def predict(self, params, outputs):
        return super().predict({}, outputs / jnp.exp(params["log_scale"]))


class Named(nn.Module):
    """A network that has a layer called as likelihoods' parameters are."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="likelihood")(x)


class Bare:
    """A network whose parameters are a tuple."""

    def init(self, rng_key, inputs):
        return {"params": (jax.random.normal(rng_key, (inputs.shape[-1], 3)),)}

    def apply(self, variables, inputs, train=False, rng_key=None):
        return inputs @ variables["params"][0], {}


@pytest.fixture
def dataset(blobs):
    return dataset_from_arrays(blobs)


def scaled_task(dataset, prior="none"):
    likelihood = Scaled(dataset.class_names)
    return Supervised(
        dataset, networks.create("small_runs:Tiny", 3), likelihood, parse_prior(prior)
    )


def test_a_likelihood_keeps_its_parameters_beside_the_network_s(dataset):
    plain = classification(dataset, networks.create("small_runs:Tiny", 3))
    task = scaled_task(dataset)
    variables = task.init_variables(KEY)
    expected = plain.init_variables(KEY)
    own = variables["params"].pop("likelihood")
    assert own == {"log_scale": START}
    jax.tree.map(np.testing.assert_array_equal, variables, expected)  # Nothing else has moved.
    assert task.params_shapes()["likelihood"]["log_scale"].shape == ()


def test_the_likelihood_sees_its_parameters_and_the_network_does_not(dataset):
    task = scaled_task(dataset)
    variables = task.init_variables(KEY)
    inputs, targets = dataset.splits["test"]
    outputs, own, _ = task.outputs(variables, task.prepare(inputs))
    log_probs = jax.nn.log_softmax(outputs / np.exp(START))
    np.testing.assert_allclose(task.predict(variables, inputs)["log_probs"], log_probs, rtol=1e-5)
    assert own == {"log_scale": START}
    values, aux = task.log_likelihood(variables, task.prepare(inputs), targets)
    expected = log_probs[np.arange(len(targets)), targets]
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(aux.predicted["log_probs"], log_probs, rtol=1e-5)
    assert variables["params"].keys() == {"Dense_0", "Dense_1", "likelihood"}  # Left alone.


@pytest.mark.check
def test_what_training_maximises_has_a_gradient_by_them(dataset):
    task = scaled_task(dataset)
    objective = make_objective(validated(small_config()), task)
    variables = task.init_variables(KEY)
    inputs, targets = dataset.splits["train"]

    def total(params):
        return objective({"params": params}, task.prepare(inputs), targets, KEY)[0].sum()

    gradient = jax.grad(total)(variables["params"])["likelihood"]["log_scale"]
    step = 1e-2
    up, down = (
        total(
            {**variables["params"], "likelihood": {"log_scale": jnp.float32(START + sign * step)}}
        )
        for sign in (1, -1)
    )
    assert abs(gradient) > 1
    np.testing.assert_allclose(gradient, (up - down) / (2 * step), rtol=1e-2)


def test_priors_reach_them(dataset):
    task = scaled_task(dataset, "likelihood/*=normal(0.25), *=normal(1)")
    params = task.init_variables(KEY)["params"]
    moved = {**params, "likelihood": {"log_scale": jnp.zeros(())}}
    difference = task.log_prior(moved) - task.log_prior(params)
    np.testing.assert_allclose(difference, 0.5 * (START / 0.25) ** 2, rtol=1e-4)
    forgotten = scaled_task(dataset, "Dense*=normal(1)")
    with pytest.raises(InputError, match="says nothing of likelihood/log_scale"):
        forgotten.log_prior(params)


@pytest.mark.parametrize("network", [LinenNetwork(Named()), Bare()], ids=["named", "bare"])
def test_without_any_the_network_s_parameters_are_any_tree(dataset, network):
    task = classification(dataset, network)
    check_network(task, {"model": "mine"})
    variables = task.init_variables(KEY)
    inputs = dataset.splits["test"].inputs
    outputs, own, _ = task.outputs(variables, task.prepare(inputs))
    assert own == {}
    np.testing.assert_array_equal(outputs, network.apply(variables, task.prepare(inputs))[0])
    with pytest.raises(InputError, match="'mine' failed"):
        check_network(Supervised(dataset, network, Scaled(dataset.class_names)), {"model": "mine"})


def test_a_network_that_does_not_fit_is_refused(dataset):
    task = classification(dataset, networks.create("small_runs:Tiny", 4))
    message = (
        r"'small_runs:Tiny' maps 2 examples to \(2, 4\); outputs of config.likelihood='categorical'"
    )
    with pytest.raises(InputError, match=message + r" must be \(2, 3\): flatten each"):
        check_network(task, {"model": "small_runs:Tiny"})
    with pytest.raises(InputError, match=r"'cnn' failed .* on inputs of shape \(6,\)"):
        check_network(classification(dataset, networks.create("cnn", 3)), {"model": "cnn"})


BROKEN = """import flax.linen as nn


class Mine(nn.Module):
    num_outputs: int

    @nn.compact
    def __call__(self, x, train: bool = False):
        {body}
        return nn.Dense(self.num_outputs)(x)
"""


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("x = nn.rellu(x)", "AttributeError: module 'flax.linen' has no attribute 'rellu'"),
        ("x = hidden", "NameError: name 'hidden' is not defined"),
        ("x = x if x.sum() > 0 else -x", "TracerBoolConversionError: "),
        ("x = nn.relu(y) if train else x", "NameError: name 'y' is not defined"),
    ],
)
def test_an_error_in_the_code_of_a_network_names_its_line(dataset, tmp_path, body, says):
    message = refusal_of(dataset, tmp_path, body)
    assert message.startswith(f"config.model='mine' failed at {tmp_path}/mine.py:9 ({says}")


def refusal_of(dataset, folder, body):
    """What `check_network` says of a network in a file of its own."""
    (folder / "mine.py").write_text(BROKEN.format(body=body))
    module = runpy.run_path(str(folder / "mine.py"))["Mine"](3)
    with pytest.raises(InputError) as refused:
        check_network(classification(dataset, LinenNetwork(module)), {"model": "mine"})
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_targets_have_a_likelihood_or_none(dataset):
    config = {"likelihood": "categorical"}
    assert make_likelihood(dataset, config).class_names == dataset.class_names
    with pytest.raises(InputError, match=r"config.likelihood='weibull'"):
        make_likelihood(dataset, {"likelihood": "weibull"})


@pytest.mark.parametrize("shape", [(40,), (40, 2)])
def test_targets_of_all_splits_suit_the_likelihood(shape):
    rng = np.random.default_rng(0)
    arrays = {}
    for split in ("train", "test"):
        arrays[f"{split}_inputs"] = rng.normal(size=(40, 2)).astype(np.float32)
        arrays[f"{split}_targets"] = rng.poisson(3, shape).astype(np.float32)
    arrays["test_targets"].flat[5] = -1
    with pytest.raises(InputError, match="the test targets have -1"):
        make_likelihood(dataset_from_arrays(arrays), {"likelihood": "poisson"})
