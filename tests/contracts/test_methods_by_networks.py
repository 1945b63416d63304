"""Which method predicts with which network, of which likelihood: few are refused, in a line."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_runs import small_config

import ensemble
from ensemble import UserError

METHODS = {
    "snapshots": {"snapshots.num_cycles": 2},
    "swag": {"swag.num_iterates": 2, "swag.fraction": 0.5, "swag.num_draws": 2},
    "mc_dropout": {"mc_dropout.num_passes": 2},
    "batch_ensemble": {"batch_ensemble.num_estimators": 2},
    "packed": {"packed.num_estimators": 2, "packed.gamma": 2},
    "varied": {},
    "cross_fitted": {},
    "laplace": {},
    "laplace, kronecker": {"laplace.structure": "kronecker", "laplace.predictive": "draws"},
}
LIKELIHOODS = ("categorical", "gaussian", "gaussian_shared")
DROPOUT = {"cnn": "cnn.dropout", "mlp": "mlp.dropout", "resnet20": "resnet20.dropout"}
DROPOUT |= {"lenet5": "lenet5.dropout", "vit": "vit.dropout"}
NETWORKS = (*DROPOUT, "of_nnx", "of_functions")


WHOLE = ensemble.networks.Packing()


class OfNNX(nnx.Module):
    """Dropout between two layers."""

    def __init__(self, num_outputs, rngs):
        self.first = nnx.Linear(64, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.last = nnx.Linear(8, num_outputs, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(nnx.relu(self.first(x.reshape((len(x), -1))))))


def of_functions(num_outputs, packing=WHOLE):
    """One hidden layer, without noise."""
    width = packing.units(8)

    def init(rng_key, inputs):
        first, last = jax.random.split(rng_key)
        return {
            "first": 0.1 * jax.random.normal(first, (inputs[0].size, width)),
            "last": 0.3 * jax.random.normal(last, (width, num_outputs)),
        }

    def apply(params, inputs):
        return jnp.tanh(inputs.reshape((len(inputs), -1)) @ params["first"]) @ params["last"]

    return ensemble.networks.from_functions(init, apply)


def of_nnx(num_outputs):
    return ensemble.networks.from_nnx(lambda rngs: OfNNX(num_outputs, rngs))


REFUSED = {
    ("mc_dropout", "of_functions"): "draws no noise where it predicts with a key",
    **{("packed", name): "factories take `packing`" for name in ("vit", "of_nnx")},
}
"""By method and network, whatever the likelihood; the reason in a line."""


def data_of(likelihood, num_examples=60):
    """Images of 8 x 8, of classes or of numbers."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(num_examples, 8, 8, 1)).astype(np.float32)
    if likelihood == "categorical":
        return {"inputs": images, "labels": np.arange(num_examples) % 3}
    targets = images.mean(axis=(1, 2, 3)) + rng.normal(size=num_examples)
    return {"inputs": images, "targets": targets}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Makes the workdir of two members of a network."""
    made = {}

    def train(network, likelihood):
        if (network, likelihood) not in made:
            workdir = tmp_path_factory.mktemp("members")
            ensemble.train(
                config_of("sgd", network, likelihood),
                data_of(likelihood),
                str(workdir),
                show_progress=False,
            )
            made[network, likelihood] = workdir
        return made[network, likelihood]

    return train


def config_of(method, network, likelihood, workdir=None):
    """A few steps."""
    ensemble.networks.register("of_nnx", of_nnx)
    ensemble.networks.register("of_functions", of_functions)
    config = small_config(ensemble_size=2, num_epochs=2, num_devices=1, learning_rate=0.01)
    name = method.partition(",")[0]
    config |= {"method": name, "model": network, "likelihood": likelihood, "hold_out": True}
    if name == "laplace":
        kept = ("ensemble_size", "num_devices", "batch_size", "log_every_steps")
        config = {key: config[key] for key in (*kept, "method", "model", "likelihood", "hold_out")}
        config["init_from"] = str(workdir)
    if network in DROPOUT:
        config[DROPOUT[network]] = 0.2
    if network == "vit":
        config |= {"vit.size": "Ti", "vit.patch": 4}
    return config | METHODS.get(method, {})


_QUICK = ("mlp", "of_nnx", "of_functions")
CASES = [
    pytest.param(
        *one,
        id="-".join(one),
        marks=pytest.mark.check
        if one[1] in _QUICK and one[2] == "gaussian_shared"
        else pytest.mark.soak,
    )
    for one in itertools.product(METHODS, NETWORKS, LIKELIHOODS)
]


@pytest.mark.parametrize(("method", "network", "likelihood"), CASES)
def test_it_predicts_or_is_refused_in_a_line(method, network, likelihood, trained, tmp_path):
    workdir = trained(network, likelihood) if method.startswith("laplace") else None
    config = config_of(method, network, likelihood, workdir)
    if why := REFUSED.get((method, network)):
        with pytest.raises(UserError, match=why):
            ensemble.train(config, data_of(likelihood), str(tmp_path), show_progress=False)
        return
    result = ensemble.train(config, data_of(likelihood), str(tmp_path), show_progress=False)
    assert np.isfinite(result.report["test"]["scores"]["nll"]["value"])
    inputs = data_of(likelihood)["inputs"][:5]
    found, again = result.predictor(inputs), ensemble.load(tmp_path)(inputs)
    name = "probs" if likelihood == "categorical" else "mean"
    np.testing.assert_allclose(getattr(again, name), getattr(found, name), rtol=1e-4, atol=1e-5)


def test_few_pairs_are_refused():
    assert len(REFUSED) * len(LIKELIHOODS) <= 10
