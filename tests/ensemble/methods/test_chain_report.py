"""What chains say while they run."""

import json
import types

import numpy as np
import pytest

import ensemble
from ensemble.methods.chain_report import ChainReport


def make_report(traced=(), **config):
    likelihood = types.SimpleNamespace(traced=traced)
    task = types.SimpleNamespace(likelihood=likelihood, sizes={"train": 9, "validation": 9})
    sampler = types.SimpleNamespace(num_warmup=0, num_burn_in=0, step_size=0.1)
    known = {"method": "hmc", "num_chains": 2, "sampler": sampler}
    return ChainReport(types.SimpleNamespace(**known, **config), task)


@pytest.mark.parametrize(
    ("rhat", "ess", "found", "ends"),
    [
        (0.0, 0.0, (1.0, 9999), False),  # Nothing is asked for.
        (1.01, 0.0, (1.005, 400), True),
        (1.01, 0.0, (1.02, 400), False),
        (1.01, 0.0, (1.005, 99), False),  # A lucky R-hat of few draws.
        (0.0, 300.0, (1.5, 301), True),
        (0.0, 300.0, (1.5, 299), False),
        (1.01, 300.0, (1.02, 301), False),
    ],
)
def test_it_has_converged_when_all_that_is_asked_for_is_there(rhat, ess, found, ends):
    scalars = {"posterior/rhat_max": found[0], "posterior/ess_bulk_min": found[1]}
    goal = types.SimpleNamespace(r_hat=rhat, ess=ess)
    assert make_report(stop_when=goal).may_end(scalars) == ends


def test_scalars_are_by_chain_and_the_headline_is_their_mean():
    infinite = np.array([[0.1, np.inf], [0.3, np.inf], [0.2, 5.0]])  # [K, C].
    ones = np.ones((3, 2))
    draws = {
        "log_density": -ones,
        "acceptance_rate": np.array([[0.5, 0.7], [0.7, 0.9], [0.6, 0.8]]),
        "energy_error": infinite,
        "is_divergent": np.array([[0, 1], [0, 1], [0, 0]], bool),
        "step_size": np.array([[0.5, 0.5], [0.5, 0.5], [0.1, 0.3]]),
        "accuracy": ones,
        "nll": 2 * ones,
    }
    report = make_report(("accuracy", "nll"))
    run = types.SimpleNamespace(numbers=[0, 1])
    period = types.SimpleNamespace(scalars=draws)
    scalars = report.scalars(run, period)
    assert scalars["posterior/chain_01/nll"] == 2
    assert scalars["posterior/chain_01/acceptance"] == pytest.approx(0.8)
    assert scalars["posterior/chain_00/energy_error"] == pytest.approx(0.2)
    assert scalars["posterior/chain_01/divergences"] == 2
    assert "posterior/chain_01/energy_error" not in scalars  # Infinite: it is not shown.
    shown = report.headline(scalars)
    assert shown["step size"] == pytest.approx(0.2)
    assert shown["energy error"] == pytest.approx(0.2)
    assert "R-hat" not in shown
    scalars["posterior/chain_00/divergences"] = 1.0
    assert report.headline(scalars)["divergences"] == 3  # A count, over all chains.


def test_convergence_is_judged_when_there_are_a_tenth_more_draws(tmp_path):
    config = {"method": "hmc", "model": "logistic_regression", "num_chains": 2, "num_devices": 1}
    config |= {"prior": "normal(1)", "init_from": "prior", "log_every_steps": 1}
    sampler = {"num_warmup": 4, "num_samples": 60, "num_leapfrog_steps": 1, "step_size": 0.1}
    config |= {f"sampler.{name}": value for name, value in sampler.items()}
    data = {"inputs": np.eye(40, 3), "labels": np.arange(40) % 2}
    ensemble.train(config, data, tmp_path, show_progress=False)
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    steps = [one["step"] for one in lines if "posterior/ess_bulk_min" in one]
    assert steps[-1] == 64
    assert 6 <= sum(step > 34 for step in steps) <= 9
