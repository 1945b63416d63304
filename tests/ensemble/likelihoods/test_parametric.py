"""Targets that are censored, or measured with a known error: against SciPy, and in scores."""

import json

import jax
import jax.export
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import pytest
import scipy.special
import scipy.stats
from run_parts import ALONE
from small_runs import small_config

import ensemble
from ensemble import UserError
from ensemble.likelihoods import described, of_data
from ensemble.report.advantage import beaten
from ensemble.scoring.sections import member_terms, score_split, values_of
from ensemble.target_rows import joined, on_devices

CENSORED = ["gaussian", "gaussian_shared", "student_t", "log_normal"]
MEASURED = ["gaussian", "gaussian_shared"]
NUM = 40


def rows(*annotations, num=NUM):
    """Targets [N] with some of the annotations."""
    rng = np.random.default_rng(0)
    said = {
        "censored": rng.uniform(size=num) < 0.4,
        "target_errors": rng.uniform(0, 2, num).astype(np.float32),
    }
    numbers = np.abs(5 + 3 * rng.normal(size=num)).astype(np.float32) + 0.1
    return joined({"targets": numbers, **{name: said[name] for name in annotations}})


def predicted_rows(name, targets):
    """A likelihood, and what three members predict, [3, N]."""
    likelihood = of_data(name, targets, ())
    outputs = np.random.default_rng(1).normal(size=(3, len(targets), likelihood.num_outputs))
    params = likelihood.init(jax.random.key(0))
    found = jax.vmap(likelihood.predict, in_axes=(None, 0))(params, jnp.asarray(outputs))
    return likelihood, {key: np.asarray(one) for key, one in found.items()}


def scipys(name, arrays, error=0.0):
    """The members' distributions as SciPy has them, of what was measured with an error."""
    arrays = {key: np.asarray(one, np.float64) for key, one in arrays.items()}
    if "df" in arrays:
        return scipy.stats.t(arrays["df"], arrays["loc"], arrays["scale"])
    if name == "log_normal":
        return scipy.stats.lognorm(arrays["scale"], scale=np.exp(arrays["loc"]))
    return scipy.stats.norm(arrays["loc"], np.hypot(arrays["scale"], error))


CASES = [
    *((name, ("censored",)) for name in CENSORED),
    *((name, ("target_errors",)) for name in MEASURED),
    ("gaussian", ("censored", "target_errors")),
]


def expected_log_probs(name, arrays, targets):
    columns = {key: targets[key].astype(np.float64) for key in targets.dtype.names}
    of_scipy = scipys(name, arrays, columns.get("target_errors", 0.0))
    y, is_censored = columns["targets"], columns.get("censored", np.zeros(len(targets)))
    return np.where(is_censored > 0, of_scipy.logsf(y), of_scipy.logpdf(y))


@pytest.mark.parametrize(("name", "annotations"), CASES)
def test_rows_have_scipy_s_densities_and_survival_on_devices_and_on_the_host(name, annotations):
    targets = rows(*annotations)
    likelihood, arrays = predicted_rows(name, targets)
    expected = expected_log_probs(name, arrays, targets)
    scores = likelihood.example_scores(arrays, on_devices(targets))
    np.testing.assert_allclose(-scores["nll"], expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(
        member_terms(likelihood.view(arrays, targets), likelihood.loss).mean(axis=1),
        -expected.mean(axis=1),
        rtol=1e-5,
    )
    density = np.log(np.exp(expected).mean(axis=0))
    mixture = likelihood.mixture_scores(arrays, on_devices(targets), jnp.ones(3, bool), ALONE)
    np.testing.assert_allclose(mixture["nll"], -density, rtol=1e-4, atol=1e-4)
    found = values_of(likelihood.view(arrays, targets))
    assert found["nll"] == pytest.approx(-density.mean(), rel=1e-5)


@pytest.mark.check
@pytest.mark.parametrize("name", CENSORED)
def test_a_network_learns_from_survival(name):
    """The gradient is finite and right however far a target lies, on both sides."""
    likelihood = of_data(name, rows("censored"), ())
    start = likelihood.init(jax.random.key(0))

    @jax.jit
    def moved(step, y):
        row = {"targets": y[None], "censored": jnp.array([True])}
        outputs = jnp.full((1, likelihood.num_outputs), 0.1 + step)
        params = jax.tree.map(lambda leaf: leaf + step, start)
        return likelihood.log_prob(params, outputs, row)[0]

    for y in (-2e4, 4.0, 5.0, 30.0, 2e4):
        slope = float(jax.grad(moved)(0.0, jnp.float32(y)))
        step = 0.01
        found = float(moved(step, jnp.float32(y)) - moved(-step, jnp.float32(y))) / (2 * step)
        assert slope == pytest.approx(found, rel=0.02, abs=1e-3), y
        assert slope >= 0 or y > 5  # A censored value pulls predictions up, if anywhere.


def test_all_but_the_nll_are_scores_of_the_known_targets_as_measured():
    targets = rows("censored", "target_errors")
    likelihood, arrays = predicted_rows("gaussian", targets)
    known = ~targets["censored"]
    wider = np.hypot(arrays["scale"], targets["target_errors"])[:, known]
    expected = score_split(
        likelihood.view({"loc": arrays["loc"][:, known], "scale": wider}, targets["targets"][known])
    )
    found = score_split(likelihood.view(arrays, targets))
    parts = {"epistemic", "aleatoric", "total"}
    others = {"nll", "coverage_50", "coverage_90", "coverage_95", *parts}
    for name in expected["scores"].keys() - others:
        for key in ("value", "members"):
            ours, theirs = (one["scores"][name][key] for one in (found, expected))
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    plain = score_split(likelihood.view(arrays, targets["targets"]))
    for name in parts:  # Of predictions, which have no such error.
        assert found["scores"][name] == plain["scores"][name]
    hidden = joined({"targets": targets["targets"], "censored": np.ones(NUM, bool)})
    scores = values_of(likelihood.view(arrays, hidden))
    assert all(np.isfinite(scores.pop(name)) for name in ("nll", *parts))
    assert np.isnan(list(scores.values())).all()


def test_the_description_knows_of_remarks():
    likelihood = of_data("gaussian", rows("target_errors", "censored"), ())
    description = json.loads(json.dumps(likelihood.describe()))
    assert vars(described("gaussian", description)) == vars(likelihood)
    assert "target_remarks" not in of_data("gaussian", rows(), ()).describe()
    for forged in ("censored", ["else"], [{}]):
        with pytest.raises(ValueError, match="target_remarks must be some of censored"):
            described("gaussian", {**description, "target_remarks": forged})


def test_a_constant_is_scored_alike():
    targets = rows("censored", "target_errors")
    likelihood = of_data("gaussian", targets, ())
    found = beaten(likelihood, targets, targets)
    numbers = targets["targets"].astype(np.float64)
    normal = {"loc": numbers.mean(), "scale": np.full(NUM, numbers.std())}
    assert found.loss == pytest.approx(
        -expected_log_probs("gaussian", normal, targets).mean(), rel=1e-5
    )
    known = numbers[~targets["censored"]]
    assert found.value == pytest.approx(np.sqrt(np.mean((known - numbers.mean()) ** 2)), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "targets", "message"),
    [
        ("student_t", rows("target_errors"), "errors of measurement"),
        ("gaussian", rows("censored")[rows("censored")["censored"]], "are censored; nothing says"),
        ("categorical", rows("censored"), "cannot learn censored targets: leave out"),
        ("laplace", rows("censored"), "cannot learn censored targets"),
    ],
)
def test_remarks_that_cannot_be_learned_from_are_refused(name, targets, message):
    with pytest.raises(UserError, match=message):
        of_data(name, targets, ())


# Whole runs of such targets.


def truth(x):
    """What is to be found."""
    return 1 + 2 * np.sin(x[:, 0]) + x[:, 0]


def simulated(num, error=0.0, limits=(np.inf, np.inf)):
    """Noise of .3 around the truth, errors of half of the targets, and what is beyond limits."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (num, 1)).astype(np.float32)
    errors = np.where(rng.uniform(size=num) < 0.5, 0.05, error)
    y = truth(x) + 0.3 * rng.normal(size=num) + errors * rng.normal(size=num)
    limit = rng.uniform(*limits, num) if np.isfinite(limits[0]) else np.full(num, np.inf)
    annotations = {"censored": y > limit, "target_errors": errors}
    return {"inputs": x, "targets": np.minimum(y, limit), **annotations}


def config(**overrides):
    return small_config(
        **{"optimizer": "adam", "likelihood": "gaussian", "ensemble_size": 2, **overrides}
    )


@pytest.mark.soak
def test_every_program_takes_such_targets(tmp_path):
    data = simulated(120, 1.0, (0, 5))
    np.savez(tmp_path / "data.npz", **data)
    path = f"npz:{tmp_path}/data.npz"
    settings = {"num_epochs": 20, "early_stopping_epochs": 10, "batching": "independent"}
    run = ensemble.train(
        config(dataset=path, **settings), workdir=str(tmp_path / "run"), show_progress=False
    )
    assert np.isfinite(run.report["test"]["scores"]["rmse"]["value"])
    assert len(run.report["notes"]) >= 2
    inputs = data["inputs"][:5]
    expected = run.predictor(inputs).mean
    np.testing.assert_allclose(ensemble.load(tmp_path / "run")(inputs).mean, expected, rtol=1e-4)
    assert ensemble.load(tmp_path / "run", calibrated=True)(inputs).mean.shape == (5,)
    with pytest.raises(UserError, match="predictions of censored targets"):
        ensemble.load(tmp_path / "run", abstain="coverage=0.8")
    sampling = {"method": "hmc", "prior": "normal(1)", "num_chains": 2, "sampler.num_warmup": 10}
    sampling |= {"sampler.num_samples": 10, "sampler.num_leapfrog_steps": 4, "log_every_steps": 5}
    chains = ensemble.train(
        {"model": "tiny", "likelihood": "gaussian", **sampling},
        data=data,
        workdir=str(tmp_path / "chains"),
        show_progress=False,
    )
    assert np.isfinite(chains.report["test"]["scores"]["nll"]["value"])
    annotations = {name: data[name] for name in ("censored", "target_errors")}
    weights = np.arange(120) % 3
    found = ensemble.EnsembleRegressor(ensemble_size=2, num_epochs=2).fit(
        data["inputs"], data["targets"], weights, **annotations
    )
    assert found.predict(inputs).shape == (5,)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        found.fit(data["inputs"], data["targets"], censored=[True])


def fitted(data, likelihood, **overrides):
    """What an ensemble says of the truth: the bias of medians, and the mean deviation."""
    learning = {"num_epochs": 40, "learning_rate": 0.01, "batch_size": 32, "schedule": "cosine"}
    settings = config(likelihood=likelihood, **learning, **overrides)
    if likelihood == "log_normal":
        data = {**data, "targets": np.exp(data["targets"])}
    run = ensemble.train(settings, data=data, show_progress=False)
    inputs = np.linspace(-2.5, 2.5, 51, dtype=np.float32)[:, None]
    low, median, high = run.predictor(inputs).quantiles[:, [1, 3, 5]].T
    if likelihood == "log_normal":
        low, median, high = np.log([low, median, high])
    return float(np.mean(median - truth(inputs))), float(np.mean(high - low)) / (2 * 1.645)


@pytest.mark.soak
@pytest.mark.parametrize("likelihood", CENSORED)
def test_censored_targets_do_not_bias_the_mean(likelihood):
    """Some 4 of 10 targets are censored, at every input."""
    data = simulated(4000)
    rng = np.random.default_rng(1)
    limit = truth(data["inputs"]) + rng.uniform(-1, 1.5, 4000)
    y, _ = data["targets"], data.pop("target_errors")
    data |= {"targets": np.minimum(y, limit), "censored": y > limit}
    assert 0.3 < data["censored"].mean() < 0.5
    bias, deviation = fitted(data, likelihood)
    assert abs(bias) < 0.05
    assert deviation == pytest.approx(0.31, abs=0.05)
    naive, _ = fitted({name: data[name] for name in ("inputs", "targets")}, likelihood)
    assert naive < -0.15


@pytest.mark.soak
@pytest.mark.parametrize("likelihood", MEASURED)
def test_errors_of_measurement_do_not_widen_predictions(likelihood):
    data = simulated(4000, error=1.5)
    del data["censored"]
    bias, deviation = fitted(data, likelihood)
    assert abs(bias) < 0.05
    assert deviation == pytest.approx(0.3, abs=0.05)
    del data["target_errors"]
    assert fitted(data, likelihood)[1] > 0.8


@pytest.mark.check
def test_the_constant_of_a_mixture_beats_one_normal_distribution():
    rng = np.random.default_rng(0)
    targets = rng.choice([-5.0, 5.0], 30_000) + 0.2 * rng.normal(size=30_000)
    mixture = of_data("mixture_of_gaussians", targets.astype(np.float32), (), components=2)
    found = beaten(mixture, targets.astype(np.float32), targets.astype(np.float32))
    entropy = np.log(2) + np.log(0.2) + 0.5 * np.log(2 * np.pi * np.e)
    assert entropy - 0.01 < found.loss < np.log(targets.std()) + 1.4


def test_the_constant_knows_of_censored_targets():
    rng = np.random.default_rng(0)
    times = rng.exponential(size=4000).astype(np.float32) + 0.01
    censored = times > 0.5
    seen = np.minimum(times, 0.5)
    rows = joined({"targets": seen, "censored": censored})
    likelihood = of_data("log_normal", rows, ())
    assert censored.mean() > 0.5
    found = beaten(likelihood, rows, rows).loss
    as_if_seen = beaten(likelihood, seen, rows).loss
    assert found < as_if_seen - 0.1
