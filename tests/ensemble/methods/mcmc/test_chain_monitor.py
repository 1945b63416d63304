"""What chains say while they run."""

import types

import numpy as np
import pytest

from ensemble import notes
from ensemble.methods.mcmc.chain_monitor import (
    has_converged,
    headline,
    note_untuned,
    trace_scalars,
)
from ensemble.run.progress import _readable


def stop_at(rhat, ess, predictive_error=0.0):
    return types.SimpleNamespace(rhat=rhat, ess=ess, predictive_error=predictive_error)


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
    assert has_converged(scalars, stop_at(rhat, ess)) == ends


@pytest.mark.parametrize(
    ("error", "rhat", "found", "ends"),
    [
        (0.01, 0.0, (0.009, 101), True),
        (0.01, 0.0, (0.011, 9999), False),
        (0.01, 0.0, (None, 9999), False),  # It cannot be told.
        (0.01, 0.0, (0.009, 99), False),
        (0.01, 1.01, (0.009, 400), False),  # Its R-hat is 1.05.
    ],
)
def test_it_ends_by_the_error_of_its_predictive(error, rhat, found, ends):
    scalars = {"posterior/rhat_max": 1.05, "posterior/ess_bulk_min": found[1]}
    if found[0] is not None:
        scalars["posterior/predictive/error"] = found[0]
    assert has_converged(scalars, stop_at(rhat, 0.0, error)) == ends


def test_what_is_not_known_has_not_converged():
    assert not has_converged({}, stop_at(1.01, 0.0))
    scalars = {"posterior/ess_bulk_min": 500.0}
    assert not has_converged(scalars, stop_at(1.01, 0.0))


def test_scalars_are_by_chain_and_the_headline_is_their_mean():
    infinite = np.array([[0.1, np.inf], [0.3, np.inf], [0.2, 5.0]])  # [K, C].
    ones = np.ones((3, 2))
    info = types.SimpleNamespace(
        log_density=-ones,
        acceptance_rate=np.array([[0.5, 0.7], [0.7, 0.9], [0.6, 0.8]]),
        energy_error=infinite,
        is_divergent=np.array([[0, 1], [0, 1], [0, 0]], bool),
        step_size=np.array([[0.5, 0.5], [0.5, 0.5], [0.1, 0.3]]),
    )
    trace = types.SimpleNamespace(info=info, scores={"accuracy": ones, "nll": 2 * ones})
    scalars = trace_scalars(trace, (0, 1))
    assert scalars["posterior/chain_01/nll"] == 2
    assert scalars["posterior/chain_01/acceptance"] == pytest.approx(0.8)
    assert scalars["posterior/chain_00/energy_error"] == pytest.approx(0.2)
    assert scalars["posterior/chain_01/divergences"] == 2
    assert "posterior/chain_01/energy_error" not in scalars  # Infinite: it is not shown.
    scalars["validation/average_draw/nll"] = 0.4
    shown = headline(scalars, 2, ("accuracy", "nll"), "validation")
    assert shown["step size"] == pytest.approx(0.2)
    assert shown["energy error"] == pytest.approx(0.2)
    assert shown["average draw's nll"] == 0.4
    assert "R-hat" not in shown
    scalars["posterior/chain_00/divergences"] = 1.0
    divergences = headline(scalars, 2, (), None)["divergences"]
    assert (divergences, _readable(divergences)) == (3, "3")  # A count, over all chains.


def test_chains_that_mclmc_could_not_tune_are_named():
    config = types.SimpleNamespace(num_chains=4, sampler=types.SimpleNamespace(num_warmup=100))
    ones = np.ones(4, np.float32)
    steps = np.array([0.1, 0, np.nan, 0.1], np.float32)
    with notes.collected() as lines:
        note_untuned(types.SimpleNamespace(step_size=ones, L=ones), config)
        assert lines == []
        note_untuned(types.SimpleNamespace(step_size=steps, L=ones), config)
    assert "no step size for 2 of 4 chains, which stay where they are: 1, 2; raise" in lines[0]
