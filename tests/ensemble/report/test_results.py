"""The table and the sentence."""

import pytest

from ensemble.report.text import format_table, summary_sentence


def make_report(members=2):
    scores = {
        "accuracy": [0.9, 0.8][:members],
        "nll": [0.2, 0.4][:members],
        "brier": [0.1, 0.3][:members],
        "ece": [0.01, 0.03][:members],
    }
    ensemble = {"accuracy": 0.92, "nll": 0.15, "brier": 0.09, "ece": 0.02}
    return {
        "method": "sgd",
        "config": {"likelihood": "categorical"},
        "dataset": {"num_classes": 2, "class_names": ["no", "yes"]},
        "test": {"members": scores, "ensemble": ensemble},
        "live_members": [0, 3][:members],
        "failed_members": {1: "non-finite"},
    }


def test_the_table_shows_members_their_mean_and_sd_and_the_ensemble():
    rows = {
        line[:15].strip(): line[15:].split() for line in format_table(make_report()).split("\n")
    }
    assert rows["member 0"] == ["90.00", "0.2000", "0.1000", "0.0100"]
    assert rows["member 3"] == ["80.00", "0.4000", "0.3000", "0.0300"]
    assert rows["mean of members"] == ["85.00", "0.3000", "0.2000", "0.0200"]
    assert rows["sd of members"] == ["7.07", "0.1414", "0.1414", "0.0141"]
    assert rows["ensemble"] == ["92.00", "0.1500", "0.0900", "0.0200"]
    assert "member 1: non-finite" in format_table(make_report())


def test_a_single_member_has_no_spread():
    table = format_table(make_report(members=1))
    (row,) = (line for line in table.split("\n") if line.startswith("sd of members"))
    assert row.split()[3:] == ["0.00", "0.0000", "0.0000", "0.0000"]


def test_the_sentence_says_what_the_ensemble_brings():
    assert summary_sentence(make_report()) == (
        "The ensemble of 2 is right on 92.00% of test examples, +7.00 points from its mean member, "
        "at 50% less NLL."
    )


def test_the_sentence_of_one_member_compares_it_with_nobody():
    report = make_report(members=1)
    assert summary_sentence(report) == (
        "One member is right on 92.00% of test examples, at an NLL of 0.1500 nats."
    )
    del report["test"]
    assert summary_sentence(report) == "1 member is live."


def test_other_splits():
    report = make_report()
    report["validation"] = report.pop("test")
    assert format_table(report).startswith("validation ")
    del report["validation"]
    assert format_table(report) == "There are no scores: every example was learned from."
    assert summary_sentence(report) == "2 members are live."


def test_the_sentence_of_a_posterior_says_its_bias_and_whether_it_converged():
    report = make_report()
    del report["test"]
    report |= {"method": "mclmc", "posterior": {"rhat_max": 1.2, "ess_bulk_min": 50.0}}
    posterior = report["posterior"]
    posterior |= {"rhat_worst": "x", "accept": 1.0, "divergences": 0, "temperature": 1}
    posterior |= {"num_samples": 10, "sd_bias": [0.0103, 0.06], "converged": False}
    assert summary_sentence(report).endswith(
        "unadjusted, so standard deviations are off by about 1.0% and up to 6% in one direction, "
        "0 divergent. The run has not converged."
    )
    posterior |= {"sd_bias": [None, None], "converged": True}
    assert summary_sentence(report).endswith(
        "an amount that cannot be told, 0 divergent. Of two equal modes, 2 chains all miss one in "
        "50% of runs."
    )
    report["live_members"] = [0]
    assert summary_sentence(report).endswith("of modes that it has not seen.")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, " on 25% of 8 test examples; infinitely many draws would bring their NLL from 0.5000 "
             "to between 0.4900 and 0.5200."),
        ({"nll_interval": None}, " on 25% of 8 test examples; their Monte Carlo error cannot be "
                                 "told."),
        ({"rhat_max": None}, ""),
    ],
)  # fmt: skip
def test_the_sentence_of_a_posterior_says_how_far_its_predictions_are_known(changes, said):
    report = make_report()
    del report["test"]
    predictive = {"rhat_max": 1.03, "rhat_above": {"1.01": 0.25, "1.05": 0.0}, "num_examples": 8}
    predictive |= {"nll": 0.5, "nll_interval": (0.49, 0.52), **changes}
    posterior = {"rhat_max": 1.2, "ess_bulk_min": 50.0, "rhat_worst": "x", "accept": 1.0}
    posterior |= {"divergences": 0, "temperature": 1, "num_samples": 10, "converged": False}
    posterior |= {"tracked_split": "test", "predictive": predictive}
    report |= {"method": "hmc", "posterior": posterior}
    said = f" R-hat of predictions is up to 1.030, above 1.01{said}" if said else ""
    assert summary_sentence(report).endswith(f"The run has not converged.{said}")
