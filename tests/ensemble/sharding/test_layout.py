import jax
import numpy as np
import pytest

from ensemble.sharding.transfer import Layout

LAYOUT = Layout(("users", "bias"), num_rows=5, num_places=8)


@pytest.fixture
def tree():
    return {"users": np.ones((5, 2)), "bias": np.ones(5), "movies": np.ones((3, 2))}


def test_split_leaves_are_padded_with_zeros_and_others_left_alone(tree):
    padded = LAYOUT.pad(tree)
    assert padded["users"].shape == (8, 2)
    assert padded["bias"].tolist() == [1] * 5 + [0] * 3
    assert padded["movies"] is tree["movies"]
    stripped = LAYOUT.strip(padded)
    assert jax.tree.map(np.shape, stripped) == jax.tree.map(np.shape, tree)


def test_chains_may_come_first(tree):
    stacked = jax.tree.map(lambda leaf: np.stack([leaf] * 4), tree)
    padded = LAYOUT.pad(stacked, axis=1)
    assert padded["users"].shape == (4, 8, 2)
    assert LAYOUT.strip(padded, axis=1)["bias"].shape == (4, 5)


def test_the_mask_knows_the_padding(tree):
    mask = LAYOUT.mask(jax.eval_shape(LAYOUT.pad, tree))
    assert mask["bias"].tolist() == [True] * 5 + [False] * 3
    assert mask["movies"].shape == ()


def test_networks_have_nothing_to_split(tree):
    assert Layout().pad(tree) is tree
    assert not Layout().is_split([jax.tree_util.DictKey("users")])
