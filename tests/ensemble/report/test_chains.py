"""Chains that do not agree get advice by the cause."""

import pytest

from ensemble.report.posterior import chain_findings


def results(**posterior):
    found = {
        "rhat_max": 1.002, "ess_bulk_min": 900.0, "ess_tail_min": 800.0,
        "rhat_worst": "x", "num_samples": 500, "num_warmup": 500, "converged": True,
        "accept": 0.85, "accept_by_chain": [0.85] * 4, "divergences": 0, "step_size": [0.1] * 4,
    }  # fmt: skip
    bad = {"rhat_max": 1.3, "ess_bulk_min": 20.0, "converged": False} if posterior else {}
    config = {"sampler": {"step_size": 0.1, "target_accept": 0.8}}
    return {
        "active_members": [0, 1, 2, 4], "config": config, "posterior": found | bad | posterior
    }  # fmt: skip


def test_chains_that_agree_are_good():
    (one,) = chain_findings(results())
    assert (one.code, one.level) == ("convergence", "good")
    assert "R-hat is up to 1.002" in one.text
    assert not chain_findings({"posterior": {"num_total_samples": 9}})


@pytest.mark.parametrize(
    ("posterior", "code", "word"),
    [
        ({"rhat_max": float("nan")}, "convergence", "too few"),
        ({"rhat_max": 1.2}, "convergence", "mix slowly"),
        ({"accept_by_chain": [0.8, 0.01, 0.8, 0.02]}, "convergence", "Chains 1, 4 hardly moved"),
        ({"modes": 2, "modes_scalar": "x"}, "convergence", "2 modes of x"),
        ({"num_warmup": 0, "divergences": 3}, "divergences", "Lower config.sampler.step_size"),
        ({"divergences": 7}, "divergences", "target_accept"),
        ({"divergences": 7, "energy_variance": 1e-3}, "divergences", "adjusted_mclmc"),
    ],
)
def test_advice_is_by_cause(posterior, code, word):
    found = {one.code: one for one in chain_findings(results(**posterior))}
    assert found[code].level == "warning"
    assert word in found[code].text
    sentences = [text for one in found.values() for text in one.text.split(". ")]
    assert all(len(text.split()) <= 25 for text in sentences)


def test_what_a_posterior_is_worth_is_told():
    more = {
        "predictive": {"rhat_max": 1.004, "nll_interval": [0.1, 0.3]},
        "sd_bias": 0.02,
        "rhat_max": 1.001,
        "ess_bulk_min": 900.0,
    }
    texts = {one.code: one.text for one in chain_findings(results(**more))}
    assert texts["convergence"].startswith("Its 4 chains")
    assert "0.1000" in texts["predictions_of_chains"]
    assert "2.0%" in texts["unadjusted"]
