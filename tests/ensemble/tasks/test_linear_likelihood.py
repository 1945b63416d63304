"""The fast logistic regression: agreement with the general way, and blocks that lose nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_parts import classification, mesh_of, over_chains

from ensemble import networks
from ensemble.data import dataset_from_arrays
from ensemble.methods.log_density import make_log_density
from ensemble.priors import parse_prior
from ensemble.tasks import linear_likelihood
from ensemble.tasks.supervised import Supervised

NUM_CLASSES = 4


class General(Supervised):
    """The same task, which takes the general way."""

    def own_log_likelihood(self, split, mesh):
        return None


def make_task(num_examples=203):
    """Sparse images of two kinds, which light different halves."""
    rng = np.random.default_rng(0)
    labels = rng.integers(NUM_CLASSES, size=num_examples)
    images = rng.integers(0, 256, (num_examples, 4, 5, 1)) * (rng.random((4, 5, 1)) < 0.8)
    images[::2, :2] = 0
    images[1::2, 2:] = 0
    data = {
        "train_inputs": images.astype(np.uint8),
        "train_labels": labels,
        "class_names": list("abcd"),
    }
    dataset = dataset_from_arrays(data, hold_out=False)
    return classification(
        dataset, networks.create("logistic_regression", NUM_CLASSES), parse_prior("normal(1)")
    )


def make_params(num_chains=None, scale=1.0):
    rng = np.random.default_rng(1)
    batch = () if num_chains is None else (num_chains,)
    layer = {
        "kernel": rng.normal(size=(*batch, 20, NUM_CLASSES)),
        "bias": rng.normal(size=(*batch, NUM_CLASSES)),
    }
    return {"Dense_0": {k: jnp.asarray(scale * v, jnp.float32) for k, v in layer.items()}}


def value_and_grad(task, mesh):
    density = make_log_density(task, task.dataset.splits["train"], mesh)
    return lambda params: jax.value_and_grad(density.bind(density.data))(params)


def assert_same(ours, theirs):
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
    for a, b in zip(jax.tree.leaves(ours[1]), jax.tree.leaves(theirs[1]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch):
    monkeypatch.setattr(linear_likelihood, "EXAMPLES_PER_GROUP", 64)
    monkeypatch.setattr(linear_likelihood, "_MIN_ROWS", 8)


@pytest.mark.check
@pytest.mark.parametrize(
    ("groups", "shards"),
    [
        (1, 8),
        (2, 2),
    ],
)
def test_it_agrees_with_the_general_way(groups, shards):
    task = make_task()
    general = General(task.dataset, task.network, task.likelihood, task.priors)
    mesh = mesh_of(groups, shards)
    fast = value_and_grad(task, mesh)
    slow = value_and_grad(general, mesh)
    params = make_params()
    assert_same(jax.jit(fast)(params), jax.jit(slow)(params))
    chains = make_params(4)
    ours = jax.jit(over_chains(fast))(chains)
    assert_same(ours, jax.jit(over_chains(slow))(chains))


@pytest.mark.check
def test_chains_that_the_groups_do_not_divide_and_parameters_that_chains_share():
    task = make_task()
    fast = jax.jit(value_and_grad(task, mesh_of(2, 2)))
    chains = make_params(3)
    one_by_one = [fast(jax.tree.map(lambda leaf, k=k: leaf[k], chains)) for k in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *one_by_one)
    assert_same(jax.jit(jax.vmap(fast))(chains), stacked)

    shared = chains["Dense_0"]["bias"][0]
    of_kernel = lambda kernel: fast({"Dense_0": {"kernel": kernel, "bias": shared}})  # noqa: E731
    values, _ = jax.jit(jax.vmap(of_kernel))(chains["Dense_0"]["kernel"])
    np.testing.assert_allclose(values[0], one_by_one[0][0], rtol=1e-6)
    assert np.abs(values[1] - one_by_one[1][0]) > 1


@pytest.mark.check
def test_accelerators_get_one_block_that_says_the_same():
    task = make_task()
    split = task.dataset.splits["train"]
    mesh = mesh_of(1, 2)
    many = linear_likelihood.place_blocks(task.dataset, split, mesh)
    one = linear_likelihood.place_blocks(task.dataset, split, mesh, in_blocks=False)
    assert sum(len(block.features) for block in many) == 4
    assert [block.features.shape for block in one] == [(1, 21)]
    assert one[0].inputs_transposed is None
    compute = jax.jit(linear_likelihood.make_value_and_grad(mesh))
    assert_same(compute(make_params(), many), compute(make_params(), one))


def test_groups_hold_every_example_once_and_all_that_is_active():
    rng = np.random.default_rng(2)
    kind = rng.integers(3, size=500)
    active = (rng.random((500, 30)) < 0.5) & (np.arange(30) // 10 == kind[:, None])
    groups = linear_likelihood.group_by_support(active, 64)
    assert sorted(np.concatenate([examples for examples, _ in groups])) == list(range(500))
    assert [len(examples) for examples, _ in groups] == [64] * 7 + [52]
    for examples, features in groups:
        np.testing.assert_array_equal(features, np.flatnonzero(active[examples].any(axis=0)))
    # Kinds are kept apart wherever a group can be of one.
    assert np.mean([len(features) for _, features in groups]) < 18
