"""R-hat, ESS and MCSE against formulae and known answers; `posterior.nc` as ArviZ reads it."""

import errno
import math
import os
import resource

import numpy as np
import pytest
import scipy.signal
import scipy.stats
from etils import epath

from ensemble.draws import diagnostics
from ensemble.draws.diagnostics import import_arviz, summarise, write_netcdf


def autoregressive(correlation, num_chains=4, num_draws=1000, seed=0):
    """Stationary chains [C, T] of variance 1; the ESS of their mean is (1 - r) / (1 + r) of all."""
    noise = np.random.default_rng(seed).normal(size=(num_chains, num_draws))
    noise[:, 1:] *= np.sqrt(1 - correlation**2)
    return scipy.signal.lfilter([1], [1, -correlation], noise, axis=1)


def halves(values):
    half = values.shape[1] // 2
    return np.concatenate([values[:, :half], values[:, -half:]])


def rhat_by_formula(values):
    """Vehtari et al. 2021, equations 1-4 and 14, with the larger of bulk and folded."""
    split = halves(values)
    worst = 0.0
    for array in (split, np.abs(split - np.median(split))):
        fractions = (scipy.stats.rankdata(array) - 3 / 8) / (array.size + 1 / 4)
        z = scipy.stats.norm.ppf(fractions).reshape(array.shape)
        n = z.shape[1]
        between = n * z.mean(axis=1).var(ddof=1)
        within = z.var(axis=1, ddof=1).mean()
        worst = max(worst, math.sqrt(((n - 1) / n * within + between / n) / within))
    return worst


CASES = {
    "independent": autoregressive(0.0),
    "slow": autoregressive(0.95),
    "odd": autoregressive(0.5, num_draws=101),
    "short": autoregressive(0.5, num_draws=4),
    "shifted": autoregressive(0.3) + np.array([[0.0], [0.0], [0.0], [0.5]]),
    "wider": autoregressive(0.3) * np.array([[1.0], [1.0], [1.0], [3.0]]),
    "cauchy": np.tan(1.5 * np.tanh(autoregressive(0.3))),
    "probabilities": np.exp(20 * autoregressive(0.9) - 40),
    "ties": np.round(autoregressive(0.3)),
    "float32": autoregressive(0.5).astype(np.float32),
    "integers": np.round(3 * autoregressive(0.5)).astype(np.int32),
}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_diagnostics_are_those_of_arviz_and_of_the_paper(values):
    arviz = import_arviz()
    (scalar,) = summarise({"x": values}).scalars.values()
    values = values.astype(np.float64)
    assert scalar.rhat == pytest.approx(rhat_by_formula(values), rel=1e-9)
    assert scalar.rhat == arviz.rhat(values)
    assert scalar.ess_bulk == arviz.ess(values, method="bulk")
    assert scalar.ess_tail == arviz.ess(values, method="tail", prob=(0.05, 0.95))
    assert scalar.mean == pytest.approx(values.mean(), rel=1e-12)
    assert scalar.mcse == pytest.approx(arviz.mcse(values, method="mean"), rel=1e-6)


def test_known_answers():
    found = summarise({"iid": CASES["independent"], "slow": autoregressive(0.9, 4, 10_000)}).scalars
    assert found["iid"].rhat == pytest.approx(1, abs=0.005)
    assert found["iid"].ess_bulk == pytest.approx(4000, rel=0.15)
    assert found["iid"].mcse == pytest.approx(1 / math.sqrt(4000), rel=0.15)
    assert found["slow"].ess_bulk == pytest.approx(40_000 / 19, rel=0.15)
    assert found["slow"].mcse == pytest.approx(math.sqrt(19 / 40_000), rel=0.15)


def test_the_eight_schools_of_arviz():
    """`arviz.summary` of "centered_eight", which ArviZ 0.2x and 1 have different draws of."""
    draws = import_arviz().load_arviz_data("centered_eight").posterior
    found = summarise({name: draws[name].to_numpy() for name in ("mu", "tau")})
    table = {
        name: [round(one.rhat, 2), round(one.ess_bulk), round(one.ess_tail), round(one.mean, 3)]
        for name, one in found.scalars.items()
    }
    assert table in (
        {"mu": [1.02, 241, 659, 4.486], "tau": [1.06, 67, 38, 4.124]},
        {"mu": [1.03, 241, 622, 4.171], "tau": [1.03, 128, 214, 4.321]},
    )


def test_the_worst_are_named():
    scalars = {
        "good": autoregressive(0.0),
        "shifted": autoregressive(0.0, seed=1) + 3 * np.arange(4)[:, None],
        "slow": np.tile(autoregressive(0.99, 1, seed=2), (4, 1)) + autoregressive(0.0, seed=3) / 9,
        "constant": np.ones((4, 1000), np.float32),
    }
    found = summarise(scalars)
    assert (found.rhat_worst, found.rhat_max) == ("shifted", found.scalars["shifted"].rhat)
    for name in ("ess_bulk", "ess_tail"):
        least = getattr(found, f"{name}_min")
        assert least == min(getattr(scalar, name) for scalar in found.scalars.values())
    assert found.rhat_max > 1.5
    assert found.num_constant == 1
    assert found.scalars.keys() == {"good", "shifted", "slow"}


def test_a_second_mode_and_a_narrow_chain_are_seen():
    assert summarise({"x": CASES["shifted"]}).rhat_max > 1.02
    assert summarise({"x": CASES["wider"]}).rhat_max > 1.1  # By the folded ranks alone.


def test_stuck_chains_are_no_constant():
    stuck = np.repeat([[0.1], [0.2], [0.3]], 50, axis=1)
    found = summarise({"stuck": stuck, "good": autoregressive(0.0, 3, 50)})
    assert (found.rhat_max, found.rhat_worst, found.num_constant) == (math.inf, "stuck", 0)
    assert found.ess_bulk_min < 10
    one_moves = np.concatenate([stuck, autoregressive(0.0, 1, 50)])
    assert 1.5 < summarise({"x": one_moves}).rhat_max < math.inf


def test_nothing_that_varies_is_never_converged():
    found = summarise({"a": np.ones((4, 100)), "b": np.zeros((4, 100))})
    assert found.num_constant == 2
    assert found.scalars == {}
    assert math.isnan(found.rhat_max)
    assert math.isnan(found.ess_bulk_min)
    assert found.rhat_worst is None
    assert math.isnan(summarise({}).rhat_max)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_converged(bad):
    values = autoregressive(0.0)
    values[2, 17] = bad
    found = summarise({"good": autoregressive(0.0), "bad": values})
    assert all(math.isnan(value) for value in found.scalars["bad"])
    assert found.rhat_worst == "bad"
    for value in (found.rhat_max, found.ess_bulk_min, found.ess_tail_min):
        assert math.isnan(value)
        assert not value < 1.01
        assert not value > 400
    assert found.scalars["good"].rhat < 1.01


@pytest.mark.parametrize("num_draws", [0, 1, 3])
def test_too_few_draws_say_nothing(num_draws):
    found = summarise({"x": autoregressive(0.0)[:, :num_draws], "y": np.ones((4, num_draws))})
    assert math.isnan(found.rhat_max)
    assert math.isnan(found.ess_bulk_min)
    assert math.isnan(found.ess_tail_min)
    assert found.num_constant == 0


def test_one_chain_is_compared_with_itself():
    values = autoregressive(0.5, num_chains=1)
    drifting = values + np.linspace(0, 5, 1000)
    found = summarise({"x": values, "drifting": drifting}).scalars
    assert found["x"].rhat == pytest.approx(rhat_by_formula(halves(values)), rel=1e-9)
    assert found["x"].rhat < 1.01
    assert found["drifting"].rhat > 1.5
    short = summarise({"x": values[:, :7]}).scalars["x"]
    assert math.isnan(short.rhat)
    assert short.ess_bulk > 0


# ArviZ's file.


def case():
    """60 draws from number 200 on, every third with its parameters."""
    scalars = {"a/log_prob_00": autoregressive(0.3, num_draws=60), "b": autoregressive(0.1, 4, 60)}
    info = {
        "log_density": autoregressive(0.5, num_draws=60),
        "is_divergent": (np.arange(240).reshape(4, 60) % 50 == 0).astype(np.int8),
        "energy_error": autoregressive(0.2, num_draws=60),
        "num_gradients": np.arange(240).reshape(4, 60),
    }
    kernel = np.random.default_rng(0).normal(size=(4, 20, 5, 3)).astype(np.float32)
    return scalars, info, {"Dense_0/kernel": kernel}


def as_arviz(scalars, info, params):
    draws = 200 + np.arange(60)
    return diagnostics.to_arviz(
        {
            "posterior": diagnostics.to_dataset(scalars, draws),
            "sample_stats": diagnostics.sample_stats(info, draws),
            "params": diagnostics.to_dataset(params, draws[2::3]),
            "observed_data": diagnostics.to_dataset({"y": np.arange(3.0)}, None),
        }
    )


@pytest.fixture(params=["local", "remote"])
def path(request, tmp_path):
    if request.param == "local":
        return epath.Path(tmp_path) / "posterior.nc"
    return request.getfixturevalue("bucket").path / "posterior.nc"


def test_arviz_reads_what_is_written(path, tmp_path):
    arviz = import_arviz()
    scalars, info, params = case()
    write_netcdf(path, as_arviz(*case()))
    local = tmp_path / "copy.nc"
    local.write_bytes(path.read_bytes())
    data = arviz.from_netcdf(str(local))
    try:
        np.testing.assert_array_equal(data.posterior.draw, 200 + np.arange(60))
        np.testing.assert_array_equal(data.posterior["a.log_prob_00"], scalars["a/log_prob_00"])
        stats = data.sample_stats
        assert set(stats.data_vars) == {"lp", "diverging", "energy_error", "n_steps"}
        np.testing.assert_array_equal(stats.lp, info["log_density"])
        np.testing.assert_array_equal(stats.n_steps, info["num_gradients"])
        np.testing.assert_array_equal(stats.diverging, info["is_divergent"])
        assert stats.diverging.dtype == bool
        kernel = data.params["Dense_0.kernel"]
        assert kernel.dims == ("chain", "draw", "Dense_0.kernel_dim_0", "Dense_0.kernel_dim_1")
        assert (kernel.dtype, kernel.attrs["site"]) == (np.float32, "Dense_0/kernel")
        np.testing.assert_array_equal(kernel, params["Dense_0/kernel"])
        beside = data.posterior.sel(draw=data.params.draw)["b"]
        np.testing.assert_array_equal(beside, scalars["b"][:, 2::3])
        assert data.observed_data["y"].shape == (3,)
        table = arviz.summary(data, round_to="none")
        found = summarise(scalars).scalars["b"]
        assert float(table.loc["b", "r_hat"]) == pytest.approx(found.rhat)
        assert float(table.loc["b", "ess_bulk"]) == pytest.approx(found.ess_bulk)
        assert len(arviz.summary(data, group="params")) == 15
    finally:
        data.close()


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    path = epath.Path(tmp_path) / "posterior.nc"
    path.write_bytes(b"before")
    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_netcdf(path, as_arviz(*case()))
    assert path.read_bytes() == b"before"
    assert [found.name for found in path.parent.iterdir()] == ["posterior.nc"]


def test_a_limit_on_the_size_of_files_is_an_error(tmp_path):
    """HDF5 itself would end the process by a segmentation fault."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            write_netcdf(epath.Path(tmp_path) / "posterior.nc", as_arviz(*case()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [*tmp_path.iterdir()]


def test_loo_is_the_density_of_what_is_left_out():
    """A normal mean with a known variance: each observation given the others, in closed form."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=30)
    n = 30
    mu = rng.normal(y.sum() / (n + 1), (n + 1) ** -0.5, size=(4, 2000, 1))
    found = diagnostics.loo(scipy.stats.norm.logpdf(y, mu), 1.0)
    centre = (y.sum() - y) / n
    expected = scipy.stats.norm.logpdf(y, centre, math.sqrt(1 + 1 / n)).sum()
    assert found["elpd_loo"] == pytest.approx(expected, abs=0.02)
    together = scipy.stats.norm.logpdf(y, y.sum() / (n + 1), math.sqrt(1 + 1 / (n + 1))).sum()
    assert found["p_loo"] == pytest.approx(together - expected, abs=0.02)
    assert (found["num_bad_k"], found["good_k"]) == (0, pytest.approx(0.7))


def test_chains_disagree_or_are_too_short():
    judge = diagnostics.judge_chains
    assert judge(1.005, 500, 401) == diagnostics.AGREE
    few = judge(1.005, 500, 300), judge(1.05, 500, 500), judge(1.005, 500, None)
    assert few == (diagnostics.TOO_FEW,) * 3
    assert judge(np.inf, 4) == judge(np.nan, 4) == judge(1.2, 500) == diagnostics.DISAGREE


def test_an_interval_is_two_standard_errors_of_enough_draws():
    found = summarise({"x": CASES["independent"]}).scalars["x"]
    low, high = found.interval
    assert (low + high) / 2 == pytest.approx(found.mean)
    assert (high - low) / 2 == pytest.approx(1.96 * found.mcse)
    assert summarise({"x": CASES["slow"][:, :200]}).scalars["x"].interval is None
