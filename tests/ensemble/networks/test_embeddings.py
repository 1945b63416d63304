"""The embeddings of numbers, and the network behind them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble import networks
from ensemble.data.dataset import dataset_from_arrays, with_quantiles
from ensemble.networks.mlp import PiecewiseLinear


def table(num_rows=240):
    """Two numbers, one of them far from normal, a flag and a constant."""
    rng = np.random.default_rng(0)
    flag = rng.integers(0, 2, num_rows)
    columns = [rng.normal(size=num_rows), rng.exponential(size=num_rows), flag, np.ones(num_rows)]
    inputs = np.stack(columns, axis=1).astype(np.float32)
    targets = np.sign(np.sin(6 * inputs[:, 0])) + flag + 0.1 * rng.normal(size=num_rows)
    return {"inputs": inputs, "targets": targets}


def test_the_encoding_by_hand():
    """Bins 0 to 1 and 1 to 3; the second feature has one bin, and no second."""
    module = PiecewiseLinear(2, ((0.0, 1.0, 3.0), (0.0, 2.0, 2.0)))
    x = jnp.array([[-1.0, -1.0], [0.5, 1.0], [2.0, 2.0], [5.0, 4.0]])
    params = module.init(jax.random.key(0), x)["params"]
    assert (np.asarray(params["kernel"]) == 0).all()  # It starts as a line.
    line = x[:, :, None] * params["line"] + params["bias"]
    np.testing.assert_allclose(module.apply({"params": params}, x), line, rtol=1e-6)
    # Each number of the embedding is one of the encoding.
    zeros = jax.tree.map(jnp.zeros_like, params)
    found = module.apply({"params": zeros | {"kernel": jnp.stack([jnp.eye(2)] * 2)}}, x)
    assert found[:, 0].tolist() == [[-1, 0], [0.5, 0], [1, 0.5], [1, 2]]
    assert found[:, 1].tolist() == [[-0.5, 0], [0.5, 0], [1, 0], [2, 0]]


def test_quantiles_are_those_of_what_the_network_sees():
    rows = {"train_inputs": table()["inputs"], "train_targets": table()["targets"]}
    dataset = with_quantiles(dataset_from_arrays(rows, hold_out=False))
    seen = (rows["train_inputs"] - dataset.shift) * dataset.scale
    assert dataset.quantiles.shape == (4, 65)
    for feature, levels in ((0, [0, 0.25, 0.5, 1]), (1, [0, 0.25, 0.5, 1])):
        expected = np.quantile(seen[:, feature], levels, method="lower")
        found = dataset.quantiles[feature][[0, 16, 32, 64]]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.check
def test_flags_and_constants_go_on_as_they_are():
    dataset = with_quantiles(dataset_from_arrays(table()))
    settings = {"widths": (7,), "embedding_size": 5, "embedding": "piecewise_linear"}
    network = networks.create("mlp", 2, settings, quantiles=dataset.quantiles)
    params = network.init(jax.random.key(0), jnp.ones((1, 4)))["params"]
    assert params["Dense_0"]["kernel"].shape == (2 * 5 + 2, 7)
    assert params["embedding"]["numbers"]["kernel"].shape[0] == 2


def test_a_flag_is_one_however_often_it_is_set():
    """Interpolated quantiles of a flag may have a third value."""
    rng = np.random.default_rng(0)
    flags = (rng.random((200, 60)) < rng.random(60)).astype(np.float32)
    rows = {"train_inputs": flags, "train_targets": flags.sum(axis=1)}
    dataset = with_quantiles(dataset_from_arrays(rows, hold_out=False))
    assert max(len(np.unique(one)) for one in dataset.quantiles) == 2
