"""The networks that weights are published for: their parameters, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ensemble
from ensemble import UserError, networks, registry
from ensemble.network import equations, traits
from ensemble.networks.vit import Size, ViT


@pytest.mark.parametrize(
    ("name", "settings", "count"),
    # As https://github.com/huggingface/pytorch-image-models (timm) counts them.
    [
        ("vit", {"size": "Ti"}, 5_717_416),
        ("vit", {}, 22_050_664),
        ("vit", {"size": "B"}, 86_567_656),
        ("vit", {"size": "L"}, 304_326_632),
        ("vit", {"size": "B", "patch": 32}, 88_224_232),
        ("resnet50", {}, 25_557_032),
    ],
)
def test_as_many_parameters_as_the_published_weights(name, settings, count):
    network = networks.create(name, 1000, settings)
    images = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    variables = jax.eval_shape(network.init, jax.random.key(0), images)
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == count


def test_parameters_of_a_transformer_have_the_published_names_and_shapes():
    """Of https://storage.googleapis.com/vit_models/augreg/S_16-*.npz, as timm reads them."""
    images = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    variables = jax.eval_shape(networks.create("vit", 1000).init, jax.random.key(0), images)
    shapes = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(variables["params"])
        if "encoderblock_" not in jax.tree_util.keystr(path) or "encoderblock_11" in str(path)
    }
    block = "Transformer/encoderblock_11/"
    attention = f"{block}MultiHeadDotProductAttention_1/"
    assert shapes == {
        "Transformer/encoder_norm/bias": (384,),
        "Transformer/encoder_norm/scale": (384,),
        "Transformer/posembed_input/pos_embedding": (1, 197, 384),
        "cls": (1, 1, 384),
        "embedding/bias": (384,),
        "embedding/kernel": (16, 16, 3, 384),
        "head/bias": (1000,),
        "head/kernel": (384, 1000),
        **{f"{block}LayerNorm_{i}/{part}": (384,) for i in (0, 2) for part in ("bias", "scale")},
        f"{block}MlpBlock_3/Dense_0/bias": (1536,),
        f"{block}MlpBlock_3/Dense_0/kernel": (384, 1536),
        f"{block}MlpBlock_3/Dense_1/bias": (384,),
        f"{block}MlpBlock_3/Dense_1/kernel": (1536, 384),
        **{f"{attention}{part}/bias": (6, 64) for part in ("query", "key", "value")},
        **{f"{attention}{part}/kernel": (384, 6, 64) for part in ("query", "key", "value")},
        f"{attention}out/bias": (384,),
        f"{attention}out/kernel": (6, 64, 384),
    }


@pytest.mark.check
def test_noise_and_state_are_where_they_should_be():
    assert traits(networks.create("vit", 3, {"patch": 4}), (8, 8, 1))[:3] == (False, False, True)
    dropping = networks.create("vit", 3, {"patch": 4, "dropout": 0.1})
    assert traits(dropping, (8, 8, 1))[:3] == (False, True, True)
    assert traits(networks.create("resnet50", 3), (32, 32, 3))[:3] == (True, False, True)


@pytest.mark.check
@pytest.mark.parametrize("name", ["vit", "resnet50"])
def test_only_products_in_half_precision_and_only_parameters_in_float32(name):
    network = networks.create(name, 7, dtype="bfloat16")
    images = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    outputs, variables = jax.eval_shape(
        lambda key, x: (network.apply(network.init(key, x), x)[0], network.init(key, x)),
        jax.random.key(0),
        images,
    )
    assert (outputs.shape, outputs.dtype) == ((2, 7), jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {np.dtype(np.float32)}


@pytest.mark.check
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_transformers_softmax_is_in_float32_and_every_product_in_the_dtype(dtype):
    network = networks.create("vit", 3, {"patch": 8, "size": "Ti"}, dtype)
    images = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    variables = jax.eval_shape(network.init, jax.random.key(0), images)
    traced = jax.make_jaxpr(lambda *args: network.apply(*args)[0])(variables, images)
    found = {"exp": [], "dot_general": []}
    for one in equations(traced.jaxpr):
        found.setdefault(one.primitive.name, []).extend(var.aval.dtype for var in one.invars)
    assert found["exp"] == [jnp.float32] * 12  # One of each block.
    assert set(found["dot_general"]) == {jnp.dtype(dtype)}


def test_images_that_are_no_whole_number_of_patches_are_refused():
    with pytest.raises(UserError, match=r"patch=16.*\(28, 28, 1\) .*config.resize"):
        traits(networks.create("vit", 10), (28, 28, 1))


@pytest.mark.check
def test_a_transformer_is_fine_tuned_in_half_precision_from_its_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(registry.NETWORKS, "registered", dict(registry.NETWORKS.registered))
    networks.register(
        "small", lambda k, dtype=None: ViT(k, Size(16, 2, 2), patch=4, dropout=0.1, dtype=dtype)
    )
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 120)
    images = (rng.integers(0, 80, (120, 8, 8, 1)) + 80 * labels[:, None, None, None]).astype(
        np.uint8
    )
    config = {"model": "small", "ensemble_size": 2, "optimizer": "adam", "learning_rate": 0.01}
    data = {"inputs": images, "labels": labels % 2}
    first = ensemble.train(config | {"num_steps": 20}, data=data)
    flat = jax.tree_util.tree_leaves_with_path(first.predictor.fitted.sets["params"])
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in flat]
    arrays = {name: leaf[0] for name, (_, leaf) in zip(names, flat, strict=True)}
    np.savez(tmp_path / "w.npz", **arrays)
    tuned = ensemble.train(
        config | {"num_steps": 40, "init_from": str(tmp_path / "w.npz"), "dtype": "bfloat16"},
        data={"inputs": images, "labels": labels},
    )
    assert tuned.report["test"]["scores"]["accuracy"]["value"] > 0.8
    embedding = tuned.predictor.fitted.sets["params"]["embedding"]["kernel"]
    assert embedding.dtype == np.float32
    assert 0 < np.abs(embedding - arrays["embedding/kernel"]).max() < 0.5
