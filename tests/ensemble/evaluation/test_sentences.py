"""Sentences that evaluations of classes and of numbers have in common."""

import pytest

from ensemble.evaluation import sentences


def make_detection(auroc, half_width=0.01):
    score = {"auroc": auroc, "fpr95": 0.2}
    score["interval"] = {"auroc": (auroc - half_width, auroc + half_width), "fpr95": (0.1, 0.4)}
    return {"num_examples": 17, "entropy": score}


@pytest.mark.parametrize(
    ("auroc", "words"),
    [
        (1.001, "all unfamiliar inputs tried, worst those of a (17 examples): AUROC 1.000 [0.990"),
        (0.995, "recognises worst are inputs of uniform random noise (17 examples): AUROC 0.995"),
        (0.8, "recognises worst are inputs of uniform random noise (17 examples): AUROC 0.800"),
        (0.8, "; a threshold that catches 95% of them also flags 20.0% [10.0%, 40.0%] of the test"),
        (
            0.3,
            "Its entropy is lower on inputs of uniform random noise (17 examples) than on its",
        ),
    ],
)
def test_detection(auroc, words):
    found = {"a": make_detection(1.0), "uniform": make_detection(auroc)}
    assert words in sentences.detection(found, "entropy", "entropy")


def test_a_constant_is_said_in_words():
    sentence = sentences.detection({"constant": make_detection(0.8)}, "entropy", "entropy")
    assert "worst are inputs whose values are all equal (17 examples): AUROC" in sentence


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {},
            "Its members are chains of 1,000 draws, each averaged; they agree (R-hat up to 1.004, "
            "bulk ESS from 900), but of two equal modes 4 chains all miss one in 12% of runs.",
        ),
        (
            {"num_chains": 6},
            "Its members are chains of 1,000 draws, each averaged; they agree (R-hat up to 1.004, "
            "bulk ESS from 900).",
        ),
        (
            {"rhat_max": 1.02},
            "Its members are chains of 1,000 draws, each averaged; they do not agree (R-hat up to "
            "1.020, bulk ESS from 900).",
        ),
        (
            {"num_chains": 1},
            "Its members are chains of 1,000 draws, each averaged; R-hat of the halves of the only "
            "one is 1.004, bulk ESS 900.",
        ),
        (
            {"ess_bulk_min": 399.0},
            "Its members are chains of 1,000 draws, each averaged; they hold too few independent "
            "draws (R-hat up to 1.004, bulk ESS from 399).",
        ),
        (
            {"ess_tail_min": 399.0},
            "Its members are chains of 1,000 draws, each averaged; they hold too few independent "
            "draws (R-hat up to 1.004, bulk ESS from 900, tail ESS from 399).",
        ),
        (
            {"rhat_max": None},
            "Its members are chains of 1,000 draws, each averaged; too few or degenerate draws to "
            "tell whether the chains agree.",
        ),
    ],
)
def test_convergence(changes, sentence):
    posterior = {"num_samples": 1000, "rhat_max": 1.004, "ess_bulk_min": 900.0, "num_chains": 4}
    assert sentences.convergence({**posterior, **changes}) == sentence


def test_what_intervals_are_over_is_said():
    said = sentences.over({"interval_over": "groups of site; the members stay as they are"})
    assert said.endswith("intervals are 95%, over groups of site; the members stay as they are.")
    assert sentences.over({}) == ""
