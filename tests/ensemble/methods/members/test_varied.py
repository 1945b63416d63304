"""Members with settings of their own: each learns as it would by `sgd` with these settings."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from run_parts import validated

import ensemble
from ensemble import UserError, networks, registry
from ensemble.methods.members.varied import draw_settings

QUIET = {"show_progress": False}
RANGES = {
    "varied.learning_rate_factor": "0.2,5",
    "varied.weight_decay_factor": "0.1,10",
    "varied.label_smoothing": "0.05,0.3",
    "varied.dropout": "0.1,0.5",
}
CONFIG = small_config(method="varied", model="mlp", weight_decay=1e-2, seed=3) | {
    "mlp.widths": "16",
    **RANGES,
}


def settings_of(config, k):
    key = jax.random.fold_in(jax.random.key(config["seed"]), k)
    drawn = draw_settings(validated(config), key)
    return {name: float(value) for name, value in drawn.items()}


@pytest.mark.check
@pytest.mark.parametrize(
    ("optimizer", "rematerialise"), [("sgd", False), ("adam", False), ("adamw", True)]
)
def test_a_member_learns_as_by_sgd_with_its_settings(blobs, optimizer, rematerialise):
    own = {"optimizer": optimizer, "learning_rate": 0.02, "rematerialise": rematerialise}
    found = ensemble.train(CONFIG | own, blobs, **QUIET).predictor.fitted.sets["params"]
    settings = settings_of(CONFIG | own, 0)
    assert len(settings) == 4
    plain = {name: value for name, value in CONFIG.items() if name not in RANGES}
    plain |= own | {"method": "sgd", "ensemble_size": 1, "mlp.dropout": settings.pop("dropout")}
    expected = ensemble.train(plain | settings, blobs, **QUIET).predictor.fitted.sets["params"]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a[0], b[0], rtol=2e-4, atol=2e-5), found, expected
    )


@pytest.mark.check
def test_settings_are_drawn_from_their_ranges():
    drawn = [settings_of(CONFIG, k) for k in range(300)]
    low_and_high = {
        "learning_rate": (0.02, 0.5),
        "weight_decay": (1e-3, 1e-1),
        "label_smoothing": (0.05, 0.3),
        "dropout": (0.1, 0.5),
    }
    for name, (low, high) in low_and_high.items():
        values = np.array([one[name] for one in drawn])
        assert low <= values.min() < low * 1.1 + 0.01 * high
        assert 0.95 * high < values.max() <= high
        middle = np.sqrt(low * high) if name.endswith(("rate", "decay")) else (low + high) / 2
        assert np.median(values) == pytest.approx(middle, rel=0.2)
    ranks = np.argsort(np.argsort([list(one.values()) for one in drawn], axis=0), axis=0)
    assert np.abs(np.corrcoef(ranks.T) - np.eye(4)).max() < 0.2  # None follows from another.


def test_a_range_of_no_dropout_is_none_at_all():
    assert settings_of(CONFIG | {"varied.dropout": "0,0"}, 0)["dropout"] == 0
    assert "dropout" not in settings_of(CONFIG | {"varied.dropout": ""}, 0)


@pytest.mark.check
def test_grown_on_other_devices_and_resumed_it_is_the_same_ensemble(blobs, tmp_path):
    """A mask of dropout that differed in one place would show."""
    config = CONFIG | {"num_epochs": 6}
    whole = ensemble.train(config, blobs, **QUIET)
    few = {"ensemble_size": 2, "num_devices": 1}
    ensemble.train(config | few | {"num_epochs": 3}, blobs, str(tmp_path), **QUIET)
    ensemble.train(config | few, blobs, str(tmp_path), **QUIET)
    grown = ensemble.train(config, blobs, str(tmp_path), **QUIET)
    inputs = blobs["inputs"]
    found, expected = (one.predictor.member_arrays(inputs) for one in (grown, whole))
    np.testing.assert_allclose(found["log_probs"], expected["log_probs"], rtol=2e-3, atol=2e-3)


@pytest.mark.check
def test_what_each_member_has_is_reported_and_shown(blobs, tmp_path):
    report = ensemble.train(CONFIG, blobs, str(tmp_path), **QUIET).report
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for k in range(4):
        for name, value in settings_of(CONFIG, k).items():
            assert report["varied"][name][k] == pytest.approx(value)
            shown = [
                line[f"train/member_{k:02d}/{name}"]
                for line in lines
                if f"train/member_{k:02d}/loss" in line
            ]
            assert shown[0] == pytest.approx(value)


@pytest.mark.check
@pytest.mark.parametrize(
    ("own", "are_alike"),
    [({}, True), ({"augment.shift": 2}, False), ({"augment.name": "noise"}, False)],
)
def test_each_member_sees_images_augmented_in_its_own_way(monkeypatch, own, are_alike):
    """Of members that start alike, and learn at one rate."""

    def noise(rng_key, inputs):
        return inputs + jax.random.normal(rng_key, inputs.shape)

    def alike(num_outputs):
        return networks.from_functions(
            lambda rng_key, inputs: jnp.zeros((inputs[0].size, num_outputs)),
            lambda params, inputs: inputs.reshape((len(inputs), -1)) @ params,
        )

    monkeypatch.setitem(registry.NETWORKS.registered, "alike", registry.NetworkEntry(alike))
    entry = registry.AugmentationEntry(noise)
    monkeypatch.setitem(registry.AUGMENTATIONS.registered, "noise", entry)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(64, 8, 8, 1)).astype(np.float32)
    config = small_config(model="alike", method="varied", ensemble_size=2, num_epochs=1)
    config |= {"varied.learning_rate_factor": "1,1", **own}
    trained = ensemble.train(config, {"inputs": images, "labels": np.arange(64) % 3}, **QUIET)
    first, second = trained.predictor.fitted.sets["params"]["array"]
    assert np.array_equal(first, second) is are_alike


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"varied.dropout": "0.3,0.1"}, "must be empty, or two numbers from 0 to below 1"),
        ({"varied.learning_rate_factor": "0,1"}, "must be two positive numbers"),
        ({"varied.learning_rate_factor": "a"}, "must be two positive numbers"),
        ({"weight_decay": 0.0}, "are factors of config.weight_decay=0"),
        ({"label_smoothing": 0.1}, "config.varied.label_smoothing says its range"),
    ],
)
def test_what_cannot_vary_is_refused(blobs, settings, line):
    config = CONFIG | {"varied.weight_decay_factor": "0.5,2"} | settings
    with pytest.raises(UserError, match=line):
        ensemble.train(config, blobs, **QUIET)


def test_a_network_without_dropout_has_no_rate(blobs):
    config = small_config(method="varied") | {"varied.dropout": "0.1,0.2"}
    with pytest.raises(UserError, match="is for Linen modules"):
        ensemble.train(config, blobs, **QUIET)


def test_numbers_have_no_labels_to_be_smoothed():
    inputs = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    with pytest.raises(UserError, match="is for classes"):
        ensemble.train(
            CONFIG | {"likelihood": "gaussian"},
            {"inputs": inputs, "targets": inputs.sum(axis=1)},
            **QUIET,
        )
