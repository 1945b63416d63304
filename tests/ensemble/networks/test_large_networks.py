"""The networks that weights are published for: their parameters, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble import networks


@pytest.mark.check
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
