"""Several targets: each is scored as if it were alone, and the NLL is of all together."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from run_parts import ALONE
from small_runs import small_config

import ensemble
from ensemble import UserError, likelihoods, networks
from ensemble.report.advantage import beaten
from ensemble.run.distill import distill
from ensemble.scoring.sections import member_terms, score_split, values_in
from ensemble.sources import dataset_from_arrays

NUM = 30
TARGETS = np.random.default_rng(0).normal([0, 50, -3], [1, 20, 0.1], (NUM, 3)).astype(np.float32)


@pytest.fixture(scope="module", params=["gaussian_shared", "student_t"])
def case(request):
    """The likelihood of all targets, those of each, what three members predict, log densities."""
    whole = likelihoods.of_data(request.param, TARGETS, ())
    alone = [likelihoods.of_data(request.param, column, ()) for column in TARGETS.T]
    size = alone[0].num_outputs
    outputs = jnp.asarray(np.random.default_rng(1).normal(size=(3, NUM, 3 * size)))
    steps = jnp.array([0.0, 0.3, 0.6])
    own = jax.tree.map(lambda leaf: leaf + steps, whole.init(jax.random.key(0)))
    found = jax.jit(jax.vmap(whole.predict, in_axes=(None, 0)))(own, outputs)
    of_each = []
    for d, one in enumerate(alone):
        mine = {name: leaf[d] for name, leaf in own.items()}
        predict = jax.jit(jax.vmap(one.predict, in_axes=(None, 0)))
        of_each.append(predict(mine, outputs[..., size * d : size * (d + 1)]))
    log_prob = jax.jit(jax.vmap(whole.log_prob, in_axes=(None, 0, None)))(own, outputs, TARGETS)
    on_host = [{name: np.asarray(one) for name, one in arrays.items()} for arrays in of_each]
    return whole, alone, {k: np.asarray(v) for k, v in found.items()}, on_host, log_prob


@pytest.mark.check
def test_scores_are_those_of_each_target_and_the_nll_is_of_their_product(case):
    whole, alone, arrays, of_each, log_prob = case
    assert arrays["loc"].shape == (3, NUM, 3)
    sections = [
        score_split(one.view(mine, column))
        for one, mine, column in zip(alone, of_each, TARGETS.T, strict=True)
    ]
    found = score_split(whole.view(arrays, TARGETS))
    for name in values_in(found, "members"):
        value = found["scores"][name]["value"]
        values = [one["scores"][name]["value"] for one in sections]
        np.testing.assert_allclose(
            [one["scores"][name]["value"] for one in found["targets"]], values, rtol=1e-6
        )
        if name not in ("nll", "nll_by_moments"):
            assert value == pytest.approx(np.mean(values), rel=1e-6), name
    joint = scipy.special.logsumexp(np.asarray(log_prob, np.float64), axis=0) - np.log(3)
    assert found["scores"]["nll"]["value"] == pytest.approx(-joint.mean(), rel=1e-5)
    np.testing.assert_allclose(found["scores"]["nll"]["members"], -log_prob.mean(axis=1), rtol=1e-4)
    np.testing.assert_allclose(
        member_terms(whole.view(arrays, TARGETS), whole.loss).mean(axis=1),
        -log_prob.mean(axis=1),
        rtol=1e-4,
    )
    on_devices = whole.mixture_scores(arrays, TARGETS, jnp.ones(3, bool), ALONE)
    np.testing.assert_allclose(on_devices["nll"], -joint, rtol=1e-4, atol=1e-4)
    of_examples = whole.example_scores(arrays, TARGETS)
    np.testing.assert_allclose(of_examples["nll"], -log_prob, rtol=1e-4, atol=1e-4)
    constant = beaten(whole, TARGETS, TARGETS)
    assert constant.value == pytest.approx(TARGETS.std(axis=0).mean(), rel=1e-4)
    assert "means over 3 targets" in whole.sentence(found, "test", 3)


@pytest.mark.check
def test_predictions_are_those_of_each_target(case):
    whole, alone, arrays, of_each, _ = case
    p = whole.prediction(arrays, None)
    exported: dict[str, jax.Array] = {}
    if whole.num_outputs == 3:  # Compiling it takes seconds.
        exported = jax.jit(whole.exported)(arrays, None)
    for d, (one, mine) in enumerate(zip(alone, of_each, strict=True)):
        expected = one.prediction(mine, None)
        for name in ("mean", "standard_deviation", "quantiles", "aleatoric", "epistemic"):
            values = getattr(expected, name)
            np.testing.assert_allclose(getattr(p, name)[:, d], values, rtol=1e-5, atol=1e-6)
            if exported:
                np.testing.assert_allclose(exported[name][:, d], values, rtol=1e-3, atol=1e-3)
        np.testing.assert_array_equal(p.of_target(d).mean, p.mean[:, d])
    titles = [title for title, _ in whole.cells(p, 0)]
    assert titles[:2] == ["mean 0", "sd 0"]
    assert titles[-6:-4] == ["mean 2", "sd 2"]
    assert np.shape(json.loads(json.dumps(whole.entry(p, 0)))["quantiles"]) == (3, 7)
    columns = whole.as_columns(p)
    np.testing.assert_array_equal(columns["target_2_mean"], p.mean[:, 2])
    np.testing.assert_array_equal(columns["target_1_quantile_0.05"], p.quantiles[:, 1, 1])
    assert {one.shape for one in columns.values()} == {(NUM,)}
    assert whole.uncertainty(p).shape == whole.spread(arrays)[1].shape == (NUM,)


def test_chains_have_the_joint_density_of_their_draws(case):
    whole, _, arrays, _, _ = case
    members = score_split(whole.view(arrays, TARGETS))
    chain = score_split(whole.view(arrays, TARGETS, np.zeros(3, int)))  # Three draws of one.
    assert values_in(chain) == values_in(members)
    assert values_in(chain, "members")["nll"] == pytest.approx([members["scores"]["nll"]["value"]])


def test_predictions_of_other_shapes_are_refused(case):
    whole, _, arrays, _, _ = case
    whole.check_predictions(arrays, TARGETS)
    with pytest.raises(ValueError, match=r"loc .*\[M, N, ..., 3\]"):
        whole.check_predictions({**arrays, "loc": arrays["loc"][..., :2]}, TARGETS)
    with pytest.raises(ValueError, match=r"must be \[N, 3\]"):
        whole.check_predictions(arrays, TARGETS[:, :2])


def test_the_description_makes_the_same_likelihood():
    whole = likelihoods.of_data("gaussian", TARGETS, ())
    description = json.loads(json.dumps(whole.describe()))
    assert likelihoods.described("gaussian", description).describe() == whole.describe()
    for forged in ([], "three", [1], [{**description["targets"][0], "target_scale": 0.0}]):
        with pytest.raises(ValueError, match=r"dataset\.target"):
            likelihoods.described("gaussian", {"targets": forged})


@pytest.mark.check
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("quantiles", {"levels": "0.1,0.5,0.9"}),
        ("mixture_of_gaussians", {"components": 2}),
        ("poisson", {}),
    ],
)
def test_every_kind_can_be_of_several_targets(name, settings):
    """Those without a density too, and those whose parameters have an axis of their own."""
    targets = np.random.default_rng(0).poisson([3, 9], (NUM, 2)).astype(np.float32)
    whole = likelihoods.of_data(name, targets, (), **settings)
    again = likelihoods.described(name, json.loads(json.dumps(whole.describe())))
    assert again.num_outputs == whole.num_outputs
    outputs = jnp.asarray(np.random.default_rng(1).normal(size=(3, NUM, whole.num_outputs)))
    found = jax.vmap(whole.predict, in_axes=(None, 0))({}, outputs)
    arrays = {key: np.asarray(one) for key, one in found.items()}
    again.check_predictions(arrays, targets)
    section = score_split(whole.view(arrays, targets))
    live = jnp.ones(3, bool)
    scores = whole.mixture_scores(arrays, targets, live, ALONE)
    mean = float(scores[whole.loss].mean())
    assert values_in(section)[whole.loss] == pytest.approx(mean, rel=1e-4)
    constant = beaten(whole, targets, targets)
    assert constant.score in values_in(section)
    p = whole.prediction(arrays, None)
    assert p.point.shape == (NUM, 2)
    assert p.first(4).of_target(1).quantiles.shape[0] == 4
    assert len(repr(p).splitlines()) > 3
    assert whole.uncertainty(p).shape == (NUM,)
    assert whole.sentence(section, "test", 3).endswith(").")


def test_what_targets_cannot_be_is_one_line():
    alike = np.stack([TARGETS[:, 0], np.ones(NUM)], axis=1)
    with pytest.raises(UserError, match="target 1 of 2"):
        likelihoods.of_data("gaussian", alike, ())
    with pytest.raises(UserError, match="an example in each row"):
        likelihoods.of_data("gaussian", np.ones((2, 1001)), ())
    with pytest.raises(UserError, match="is for classes"):
        likelihoods.of_data("categorical", TARGETS, ())
    with pytest.raises(UserError, match="one at a time"):
        likelihoods.of_data("gaussian", TARGETS, ()).view({}, TARGETS).fit_factor()
    with pytest.raises(UserError, match=r"or \[N, D\]"):
        dataset_from_arrays({"inputs": TARGETS, "targets": TARGETS[:, None]})


@networks.register("two_outputs")
class TwoOutputs(nn.Module):
    """As many outputs as one Gaussian needs, whatever is asked for."""

    num_classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(x)


def test_more_targets_than_outputs_are_refused():
    with pytest.raises(UserError, match=r"'gaussian'.*3 targets.*\(2, 6\)"):
        ensemble.train(
            small_config(model="two_outputs"),
            data={"inputs": TARGETS, "targets": TARGETS},
            show_progress=False,
        )


@pytest.mark.soak
def test_runs_learn_several_targets(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (211, 2)).astype(np.float32)
    noise = 0.1 * rng.normal(size=(211, 2))
    y = np.stack([x[:, 0], 100 + 20 * x[:, 1]], axis=1) + [1, 20] * noise
    np.savez(tmp_path / "data.npz", inputs=x, targets=y)
    learning = {"optimizer": "adam", "learning_rate": 0.02, "num_epochs": 20, "batch_size": 32}
    config = small_config(likelihood="gaussian", ensemble_size=2, **learning)
    path, work = f"npz:{tmp_path}/data.npz", tmp_path / "run"
    run = ensemble.train({**config, "dataset": path}, workdir=str(work), show_progress=False)
    for d, one in enumerate(run.report["test"]["targets"]):
        assert one["rmse"] < 0.4 * y[:, d].std()
    drawn = {one.name for one in (work / "plots").iterdir()}
    assert {"predictions_0.png", "predictions_1.png"} <= drawn
    loaded, p = ensemble.load(work), run.predictor(x[:5])
    np.testing.assert_allclose(loaded(x[:5]).mean, p.mean, rtol=1e-4)
    with pytest.raises(UserError, match="2 targets"):
        distill(work, str(tmp_path / "student"), show_progress=False)
    found = ensemble.EnsembleRegressor(ensemble_size=2, num_epochs=2).fit(x, y)
    assert found.predict(x[:5]).shape == (5, 2)
    assert np.isfinite(found.score(x, y))
