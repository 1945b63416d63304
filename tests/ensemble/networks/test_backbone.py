"""Frozen backbones: functions of JAX and of others, and heads on their features."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_parts import task_of

import ensemble
from ensemble import UserError, networks, registry
from ensemble.export import export
from ensemble.network import is_dense_layer
from ensemble.networks.backbone import FunctionBackbone

WEIGHTS = np.random.default_rng(3).normal(size=(6, 5)).astype(np.float32)
INPUTS = np.random.default_rng(4).normal(size=(11, 6)).astype(np.float32)


def of_jax(inputs):
    return jnp.tanh(inputs @ WEIGHTS)


def of_numpy(inputs):
    return np.tanh(np.asarray(inputs) @ WEIGHTS)  # Which a tracer refuses.


@pytest.fixture(autouse=True)
def own_places(monkeypatch, tmp_path):
    """Each test adds to a copy of the registry, and has a cache of its own."""
    monkeypatch.setattr(registry.NETWORKS, "registered", dict(registry.NETWORKS.registered))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("function", [of_jax, of_numpy, lambda x: of_numpy(x).tolist()])
def test_functions_of_any_library_make_features(function):
    backbone = FunctionBackbone(function)
    for made in (backbone(INPUTS), pickle.loads(pickle.dumps(FunctionBackbone(of_jax)))(INPUTS)):
        assert made.dtype == np.float32
        np.testing.assert_allclose(made, np.tanh(INPUTS @ WEIGHTS), rtol=1e-5, atol=1e-6)


def test_a_function_of_jax_is_compiled_for_few_sizes():
    sizes = []

    def counting(inputs):
        sizes.append(inputs.shape[0])
        return of_jax(inputs)

    backbone = FunctionBackbone(counting)
    for count in (11, 9, 16, 10):
        assert len(backbone(INPUTS.repeat(2, axis=0)[:count])) == count
    assert sizes == [2, 16]  # The first finds out what it is.


@pytest.mark.parametrize("function", [of_jax, of_numpy])
def test_only_a_function_of_jax_can_be_in_a_program(function):
    backbone = FunctionBackbone(function)
    if function is of_jax:
        np.testing.assert_allclose(jax.jit(backbone.traced)(INPUTS), of_jax(INPUTS), rtol=1e-5)
        return
    with pytest.raises(UserError, match=r"of_numpy.*export.*TracerArrayConv") as one:
        jax.jit(backbone.traced)(INPUTS)
    assert "\n" not in str(one.value)


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda x: np.asarray(x)[0], r"\(11, 6\).*float32 \(6,\).*return"),
        (lambda x: np.asarray(x)[1:], r"float32 \(10, 6\).*features \[11, F\]"),
        (lambda x: np.asarray(x)[:, :, None], r"to float32 \(11, 6, 1\)"),
        (lambda x: np.full((11, 2), "a"), r"to <U1 \(11, 2\)"),
        (lambda x: np.full((11, 2), np.nan), "returns NaN or infinities"),
        (lambda x: np.asarray(x) @ np.ones((3, 3)), r"inputs \(11, 6\) float32 \(Val"),
        (lambda x: jnp.sum(x @ jnp.ones((3, 3))), r"fails on raw inputs \(11, 6\) float32"),
    ],
)
def test_what_makes_no_features_is_told_in_one_line(function, line):
    with pytest.raises(UserError, match=line) as error:
        FunctionBackbone(function)(INPUTS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((WEIGHTS, "mlp"), "ndarray as the backbone"),
        ((of_jax, 3), "int as the head.*'mlp'"),
    ],
)
def test_what_is_no_backbone_or_head_is_refused_where_it_is_registered(arguments, line):
    with pytest.raises(UserError, match=line):
        networks.on_features(*arguments)


def test_a_head_is_any_network_by_name_or_factory_but_one_on_a_backbone():
    linear = networks.on_features(of_jax, "logistic_regression")
    assert is_dense_layer(linear(3), (7,))
    deep = networks.on_features(of_jax, lambda k: networks.MLP(k, (4,)))
    assert not is_dense_layer(deep(3), (7,))
    with pytest.raises(UserError, match="has a backbone of its own"):
        networks.on_features(of_jax, linear)(3)
    with pytest.raises(UserError, match=r"'unheard'"):
        networks.on_features(of_jax, "unheard")(3)


CONFIG = {
    "model": "mine",
    "num_epochs": 2,
    "ensemble_size": 2,
    "num_devices": 1,
    "batch_size": 32,
    "learning_rate": 0.1,
}


def train(blobs, workdir=None, **changes):
    return ensemble.train(CONFIG | changes, data=blobs, workdir=workdir, show_progress=False)


@pytest.mark.check
@pytest.mark.parametrize("function", [of_jax, of_numpy])
def test_heads_learn_features_and_predict_raw_inputs(function, blobs, tmp_path):
    networks.register("mine", networks.on_features(function, "logistic_regression"))
    result = train(blobs, tmp_path / "run")
    assert result.predictor.fitted.sets["params"]["Dense_0"]["kernel"].shape == (2, 5, 3)
    loaded = ensemble.load(tmp_path / "run", num_devices=1)
    assert loaded.dataset.input_shape == (6,)
    data = task_of(CONFIG, blobs).dataset
    raw = data.raw.read("test", slice(None)).inputs
    stored = np.load(tmp_path / "run" / "predictions" / "test.npz")["log_probs"]
    np.testing.assert_allclose(loaded(raw).member_log_probs, stored, atol=1e-4)
    features = (of_jax(raw) - data.shift) * data.scale
    params = loaded.fitted.sets["params"]["Dense_0"]
    logits = np.asarray(features) @ params["kernel"] + params["bias"][:, None]
    np.testing.assert_allclose(loaded(raw).member_log_probs, jax.nn.log_softmax(logits), atol=1e-4)
    with pytest.raises(UserError, match=r"takes \[N, 6\]"):
        loaded(np.asarray(features))


@pytest.mark.soak
def test_another_backbone_is_noticed_wherever_members_are_read(blobs, tmp_path):
    networks.register("mine", networks.on_features(of_jax, "logistic_regression"))
    train(blobs, tmp_path)

    def changed(inputs):
        return of_jax(inputs * 1.1)

    networks.register("mine", networks.on_features(changed, "logistic_regression"))
    with pytest.raises(UserError, match="another backbone"):
        ensemble.load(tmp_path, num_devices=1)
    with pytest.raises(UserError, match="another backbone"):
        train(blobs, tmp_path, ensemble_size=3)
    hmc = {"method": "hmc", "model": "mine", "init_from": str(tmp_path), "num_chains": 2}
    with pytest.raises(UserError, match="another backbone"):
        ensemble.train({**hmc, "num_devices": 1, "sampler.num_samples": 20}, data=blobs)
    networks.register("mine", networks.on_features(lambda x: of_jax(x)[:, :4], "mlp"))
    with pytest.raises(UserError, match=r"4 features.*example.*5"):
        ensemble.load(tmp_path, num_devices=1)
    networks.register("mine", networks.LogisticRegression)
    with pytest.raises(UserError, match="had a backbone"):
        ensemble.load(tmp_path, num_devices=1)


def test_a_run_without_a_backbone_is_not_read_with_one(blobs_run):
    networks.register("tiny", networks.on_features(of_jax, "mlp"))
    with pytest.raises(UserError, match="had no backbone, unlike the one here"):
        ensemble.load(blobs_run, num_devices=1)


@pytest.mark.soak
def test_features_are_computed_once_for_more_members_and_other_heads(blobs, tmp_path):
    counts = []

    def counting(inputs):
        counts.append(len(inputs))
        return of_numpy(inputs)

    networks.register("mine", networks.on_features(counting, "logistic_regression"))
    train(blobs, tmp_path / "run")
    assert sum(counts) > 203
    counts.clear()
    train(blobs, tmp_path / "run", ensemble_size=3)
    networks.register("mine", networks.on_features(counting, "mlp"))
    train(blobs)
    assert max(counts) == 8  # The probe.


@pytest.mark.check
def test_an_export_holds_the_backbone_where_it_is_of_jax(blobs):
    networks.register("mine", networks.on_features(of_jax, "logistic_regression"))
    predictor = train(blobs).predictor
    model = jax.export.deserialize(bytearray(export(predictor)))
    np.testing.assert_allclose(model.call(INPUTS)["probs"], predictor(INPUTS).probs, atol=1e-5)
    networks.register("mine", networks.on_features(of_numpy, "logistic_regression"))
    with pytest.raises(UserError, match="of_numpy cannot be in an export"):
        export(train(blobs).predictor)


@pytest.mark.check
def test_hmc_samples_the_last_layer(blobs):
    networks.register("mine", networks.on_features(of_jax, "logistic_regression"))
    config = {
        "method": "hmc",
        "model": "mine",
        "prior": "normal(1)",
        "num_chains": 2,
        "num_devices": 1,
        "sampler": {
            "num_warmup": 20,
            "num_samples": 20,
            "thin": 5,
            "num_leapfrog_steps": 8,
            "step_size": 0.1,
            "mass": "kronecker",
        },
    }
    result = ensemble.train(config, data=blobs, show_progress=False)
    assert result.report["test"]["scores"]["accuracy"]["value"] > 0.5
    assert result.predictor(INPUTS).probs.shape == (11, 3)


@pytest.mark.check
def test_evaluations_shift_and_make_raw_images(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 120)
    images = rng.integers(0, 100, (120, 6, 6, 1)) + 100 * labels[:, None, None, None]
    data = {"inputs": images.astype(np.uint8), "labels": labels}
    kernel = rng.normal(size=(36, 4)).astype(np.float32)
    networks.register(
        "mine", networks.on_features(lambda x: x.reshape((x.shape[0], -1)) @ kernel, "mlp")
    )
    train(data, tmp_path)
    found = ensemble.evaluate(tmp_path, datasets=["shift", "uniform"], data=data, num_devices=1)
    assert found["shift"].keys() >= {"rotation", "noise"}
    assert found["out_of_distribution"].keys() == {"uniform"}
