"""The contract of augmentations of users, over all methods whose members see batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_blobs, small_config
from public.runs import METHODS, classes
from run_parts import task_of, validated

import ensemble
from ensemble import UserError, registry
from ensemble.config import method_block
from ensemble.methods.members.augmenting import augmented, check_augmentation
from ensemble.sources.batches import augment
from ensemble.testing.augmentations import PROMISES, AugmentationCase

NAMES = [name for name in METHODS if "augment.name" in method_block(name).keys]
QUIET = {"show_progress": False}
SHORT = {"num_epochs": 2, "log_every_steps": 4, "sgmcmc.num_burn_in": 2, "sgmcmc.num_samples": 4}


def noise(rng_key, inputs):
    return inputs + 3 * jax.random.normal(rng_key, inputs.shape)


@pytest.fixture(autouse=True)
def only_noise(monkeypatch):
    """What a test registers is there in the test alone."""
    monkeypatch.setattr(registry.AUGMENTATIONS, "registered", {})
    ensemble.register("augmentation", "noise", registry.AugmentationEntry(noise))


def keys(number):
    return jax.random.split(jax.random.key(0), number)


def test_all_methods_that_augment_are_here():
    assert set(NAMES) == {name for name in METHODS if "augment.flip" in method_block(name).keys}


@pytest.mark.parametrize(
    "name",
    [name if name == "sgd" else pytest.param(name, marks=pytest.mark.check) for name in NAMES],
)
def test_members_learn_of_it_the_same_on_any_number_of_devices(name):
    config = {**METHODS[name], **{key: one for key, one in SHORT.items() if key in METHODS[name]}}

    def nll(**own):
        found = ensemble.train({**config, **own}, classes(), **QUIET)
        return found.report["test"]["scores"]["nll"]["value"]

    one, two = (nll(**{"augment.name": "noise", "num_devices": n}) for n in (1, 2))
    assert one == pytest.approx(two, rel=1e-3)
    assert one != pytest.approx(nll(), rel=1e-2)


@pytest.mark.check
@pytest.mark.parametrize("batching", ["shared", "independent"])
def test_a_resumed_run_sees_what_the_straight_run_saw(batching, tmp_path, monkeypatch):
    config = small_config(**{"augment.name": "noise", "batching": batching, "num_epochs": 4})
    straight = ensemble.train(config, make_blobs(), **QUIET)
    ensemble.train({**config, "num_epochs": 2}, make_blobs(), str(tmp_path), **QUIET)
    resumed = ensemble.train(config, make_blobs(), str(tmp_path), **QUIET)
    ours, theirs = (one.predictor.fitted.sets["params"] for one in (straight, resumed))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    monkeypatch.setattr(registry.AUGMENTATIONS, "registered", {})
    assert len(ensemble.load(tmp_path).members) == 4, "what predicts needs no augmentation"


CASES = {
    "noise": AugmentationCase("noise", (5,)),
    "shift and flip": AugmentationCase("none", settings={"augment.shift": 2, "augment.flip": True}),
}
"""One of a user, and what is built in."""


@pytest.mark.parametrize("promise", PROMISES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_it_keeps(name, promise):
    promise.keep(CASES[name])


def test_it_sees_one_example_at_a_time_each_with_a_key_of_its_own():
    config = validated({"num_epochs": 1, "augment.name": "noise"})
    assert len(np.unique(augmented(config, keys(6), jnp.zeros((6, 5))))) == 30


@pytest.mark.check
def test_it_comes_after_shift_and_flip_and_may_return_numbers_for_pixels():
    def brighter(rng_key, inputs):
        assert inputs.shape == (1, 4, 4, 1)
        return inputs + jnp.float32(0.5)

    ensemble.register("augmentation", "brighter", registry.AugmentationEntry(brighter))
    moving = {"num_epochs": 1, "augment.shift": 1, "augment.flip": True}
    images = jax.random.randint(jax.random.key(1), (8, 4, 4, 1), 0, 255).astype(jnp.uint8)
    found = augmented(validated({**moving, "augment.name": "brighter"}), keys(8), images)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, augment(keys(8), images, 1, True) + 0.5)


def test_it_draws_by_another_key_than_shift_and_flip():
    def uniform(rng_key, inputs):
        return inputs * 0 + jax.random.uniform(rng_key)

    ensemble.register("augmentation", "uniform", registry.AugmentationEntry(uniform))
    config = validated({"num_epochs": 1, "augment.name": "uniform"})
    (found,) = augmented(config, keys(1), jnp.zeros((1, 1)))
    theirs = [jax.random.uniform(key) for key in (keys(1)[0], *jax.random.split(keys(1)[0]))]
    assert found[0] not in theirs


BAD = {
    "a number": (lambda key, inputs: 5, r"made a int of float32\[1, 6\]; it must return an array"),
    "nothing": (lambda key, inputs: None, "made a NoneType of"),
    "another shape": (lambda key, inputs: inputs[0], r"made float32\[6\] of float32\[1, 6\]"),
    "more examples": (lambda key, inputs: jnp.tile(inputs, (2, 1)), r"made float32\[2, 6\] of"),
    "truths": (lambda key, inputs: inputs > 0, "made bool"),
    "half precision": (lambda key, inputs: inputs.astype(jnp.bfloat16), "made bfloat16"),
    "other arguments": (
        lambda key: key,
        r"failed \(TypeError.*ensemble\.entries\.AugmentationEntry says",
    ),
    "an error": (lambda key, inputs: 1 / 0, r"failed at .*py:\d+ \(ZeroDivisionError"),
    "a branch": (lambda key, inputs: inputs if inputs.sum() > 0 else -inputs, "TracerBoolConv"),
    "NumPy": (lambda key, inputs: np.sort(inputs), "TracerArrayConversion"),
    "no function": (5, "failed .*'int' object is not callable"),
    "no module": ("not_there:AT_ALL", "cannot be loaded: importing not_there:AT_ALL failed"),
    "no name": ("json:mine", "cannot be loaded: importing json:mine failed"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_one_is_one_line_before_anything_is_trained(name, tmp_path):
    function, line = BAD[name]
    ensemble.register("augmentation", "mine", registry.AugmentationEntry(function))
    config = validated(small_config(**{"augment.name": "mine"}))
    with pytest.raises(UserError, match=f"^the augmentation 'mine' .*{line}") as found:
        check_augmentation(config, task_of(config, make_blobs()).dataset)
    assert "\n" not in str(found.value)
    with pytest.raises(UserError, match=line):
        ensemble.train(config.to_dict(), make_blobs(), str(tmp_path / "run"), **QUIET)
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"augment.name": "nois"}, "config.augment.name='nois' must be one of none, noise; regis"),
        ({"augment": "noise"}, "config.augment is a block of keys .* config.augment.name"),
        ({"augment.name": ["a", "b"]}, "has the wrong type list"),
        ({"augment.name": "noise", "augment.shift": 1}, "config.augment is for images"),
    ],
)
def test_a_bad_setting_is_one_line(config, line):
    with pytest.raises(UserError, match=line):
        ensemble.train(small_config(**config), make_blobs(), **QUIET)


def test_methods_that_see_no_batches_refuse_it():
    config = {**METHODS["hmc"], "augment.name": "noise"}
    with pytest.raises(
        UserError, match=r"config\.augment\.name='noise' is for config\.method='sgd'"
    ):
        ensemble.train(config, classes(), **QUIET)


def test_an_entry_of_another_form_is_one_line():
    with pytest.raises(UserError, match=r"is a function, and must be an .*AugmentationEntry"):
        ensemble.register("augmentation", "mine", noise)
