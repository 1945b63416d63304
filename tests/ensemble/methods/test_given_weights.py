"""Members that start from weights of a file or of another run."""

import contextlib
import json

import flax.linen as nn
import jax
import ml_dtypes
import numpy as np
import pytest
from conftest import small_config
from run_parts import loop_of

import ensemble
from ensemble import InputError

BODY = ("Dense_0/bias", "Dense_0/kernel")


class ZeroHead(nn.Module):
    """The network `tiny`, with a head that starts at zero."""

    num_classes: int

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(8)(x))
        return nn.Dense(self.num_classes, kernel_init=nn.initializers.zeros)(x)


def body_of_tiny(seed=0):
    """Arrays of the network `tiny` for inputs of six features and five classes."""
    rng = np.random.default_rng(seed)
    shapes = {"Dense_0/kernel": (6, 8), "Dense_0/bias": (8,), "Dense_1/kernel": (8, 5)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_safetensors(path, arrays, **claims):
    """Writes a file of arrays in float32 or bfloat16; claims are of the header's entries."""
    header = {"__metadata__": {"format": "np"}}
    data = b""
    for name, array in arrays.items():
        dtype = "BF16" if array.dtype == ml_dtypes.bfloat16 else "F32"
        end = len(data) + array.nbytes
        entry = {"dtype": dtype, "shape": array.shape, "data_offsets": [len(data), end]}
        header[name] = entry | claims
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def started(blobs, **overrides):
    """Variables [M, ...] of members that have taken no step, by path."""
    loop = loop_of(small_config(**overrides), blobs)
    loop.start()
    members = loop.devices.fetch_members(loop.members.state.variables)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/").removeprefix("params/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(members)
    }


@pytest.mark.check
@pytest.mark.parametrize("num_devices", [1, 3, 8])
def test_every_member_starts_from_the_file_with_a_head_of_its_own(blobs, tmp_path, num_devices):
    arrays = body_of_tiny()
    np.savez(tmp_path / "w.npz", **arrays)
    found = started(blobs, init_from=str(tmp_path / "w.npz"), num_devices=num_devices)
    alone = started(blobs, num_devices=num_devices)
    for name in BODY:
        np.testing.assert_array_equal(found[name], np.stack([arrays[name]] * 4))
    head = found["Dense_1/kernel"]
    assert head.shape == (4, 8, 3)
    assert len(np.unique(head[:, 0, 0])) == 4
    np.testing.assert_array_equal(head, alone["Dense_1/kernel"])  # As without any weights.


def test_members_that_would_stay_the_same_are_refused(blobs, tmp_path):
    np.savez(tmp_path / "w.npz", **body_of_tiny())
    keys = {"model": f"{__file__}:ZeroHead", "init_from": str(tmp_path / "w.npz")}
    with pytest.raises(InputError, match="always starts alike"):
        started(blobs, **keys)
    assert started(blobs, **keys, shuffle="independent")


def test_members_that_join_start_from_the_weights_of_the_others(blobs, tmp_path):
    path = tmp_path / "w.npz"
    keys = {"init_from": str(path), "num_epochs": 1}
    for seed, size in ((0, 4), (0, 5), (1, 6)):
        np.savez(path, **body_of_tiny(seed))
        expected = contextlib.nullcontext()
        if seed:
            expected = pytest.raises(InputError, match=r"config\.init_from has changed")
        with expected:
            config = small_config(**keys, ensemble_size=size)
            ensemble.train(config, blobs, str(tmp_path / "run"), show_progress=False)


def test_names_may_have_dots_and_a_prefix_and_numbers_may_be_half(blobs, tmp_path):
    arrays = {name: one.astype(ml_dtypes.bfloat16) for name, one in body_of_tiny().items()}
    dotted = {f"params.{name.replace('/', '.')}": one for name, one in arrays.items()}
    write_safetensors(tmp_path / "w.safetensors", dotted)
    found = started(blobs, init_from=str(tmp_path / "w.safetensors"))
    for name in BODY:
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name][1], arrays[name].astype(np.float32))
