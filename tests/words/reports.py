"""Sentences of the report at the end of a run: findings, what to tune, the result in a line."""

import pathlib
import runpy
import types
from collections.abc import Iterator

import numpy as np
from run_parts import of_classes, scores_told

from ensemble.report.findings import findings
from ensemble.report.text import agreement, format_table, summary_sentence
from ensemble.report.tuning import too_long, untuned
from ensemble.scoring.sections import score_split, spread
from ensemble.storage.predictions import MemberPredictions
from ensemble.task import Scored

REMEDY = "lower config.learning_rate=0.1"
LABELS = np.repeat([0, 1, 2], [500, 300, 200])
LIKELIHOOD = of_classes("abc")


def scored(likelihood, targets):
    """What findings are scored by, of targets that are those of training too."""
    return Scored(
        types.SimpleNamespace(targets=lambda split: targets, train_weights=None), likelihood
    )


def predicted(accuracies, sure=0.9):
    """Log-probabilities [M, N, C] of members that are so often right, so sure of an answer."""
    rng = np.random.default_rng(1)
    answers = np.array([LABELS] * len(accuracies))
    for answer, accuracy in zip(answers, accuracies, strict=True):
        wrong = rng.permutation(len(LABELS))[: round((1 - accuracy) * len(LABELS))]
        answer[wrong] = (answer[wrong] + 1) % 3
    rest = np.broadcast_to((1 - np.asarray(sure)) / 2, len(accuracies))[:, None, None]
    return np.log(np.where(np.eye(3)[answers] > 0, 1 - 2 * rest, rest))


def found_of(log_probs, losses=(), failed=(), likelihood=LIKELIHOOD, targets=LABELS, **entries):
    """What is found of predictions of the members that have not failed."""
    arrays = log_probs if isinstance(log_probs, dict) else {"log_probs": log_probs}
    num_members = len(next(iter(arrays.values()))) + len(failed)
    report = {
        "num_members": num_members,
        "live_members": [k for k in range(num_members) if k not in failed],
        "failed_members": dict.fromkeys(failed, "non-finite"),
        "test": score_split(likelihood.view(arrays, targets)),
        **entries,
    }
    by_member = dict(enumerate(losses))
    predictions = {"test": MemberPredictions(arrays)}
    return findings(report, scored(likelihood, targets), predictions, by_member, REMEDY)


def found_without_scores(loss, config):
    """What is found where nothing is held out, after such a training loss."""
    report = {"num_members": 2, "live_members": [0, 1], "failed_members": {}, "config": config}
    return findings(report, scored(LIKELIHOOD, LABELS), {}, {0: loss, 1: loss}, REMEDY)


def found_of_chains(rhat, ess, chance):
    """What is found of chains of a network with such an R-hat, bulk ESS (and tail ESS), chance."""
    posterior = {"rhat_max": rhat, "ess_bulk_min": ess, "num_warmup": 30, "num_samples": 50}
    posterior["rhat_chance"] = chance
    if isinstance(ess, tuple):  # Reports of older runs may have no tail ESS.
        posterior |= {"ess_bulk_min": ess[0], "ess_tail_min": ess[1]}
    return found_of(predicted([0.9]), posterior=posterior)


def found_diverged(**posterior):
    """What is found of chains of which three draws diverged."""
    posterior = {"rhat_max": 1.001, "ess_bulk_min": 900, "num_warmup": 30, **posterior}
    config = {"sampler": {"target_acceptance": 0.8, "step_size": 0.1}}
    return found_of(predicted([0.9]), posterior={**posterior, "divergences": 3}, config=config)


def untuned_of(posterior):
    """What is said of a warm-up."""
    given = {"converged": False, "accept": 0.8, "num_warmup": 50, "step_size": [1e-6, 1e-6]}
    config = {"sampler": {"target_acceptance": 0.8}}
    return untuned({"posterior": given | posterior, "live_members": [1, 3], "config": config})


def too_long_of(posterior):
    """What is said of a step size of 0.05 that nothing has tuned."""
    given = {"num_warmup": 0, "divergences": 0} | posterior
    return too_long({"posterior": given, "config": {"sampler": {"step_size": 0.05}}})


def make_report(members=2):
    """The report of a classifier."""
    scores = {
        "accuracy": [0.9, 0.8][:members],
        "nll": [0.2, 0.4][:members],
        "brier": [0.1, 0.3][:members],
        "ece": [0.01, 0.03][:members],
    }
    values = {"accuracy": 0.92, "nll": 0.15, "brier": 0.09, "ece": 0.02}
    spreads = {name: spread(one) for name, one in scores.items()}
    told = scores_told(values, members=scores)
    return {
        "method": "sgd",
        "config": {"likelihood": "categorical"},
        "dataset": {"num_classes": 2, "class_names": ["no", "yes"]},
        "test": {"scores": {name: one | spreads[name] for name, one in told.items()}},
        "live_members": [0, 3][:members],
        "failed_members": {1: "non-finite"},
    }


def make_posterior(method="hmc", members=2, **posterior):
    """The report of chains, without scores."""
    report = make_report(members)
    del report["test"]
    given = {"rhat_max": 1.2, "ess_bulk_min": 50.0, "rhat_worst": "x", "accept": 1.0}
    given |= {"divergences": 0, "temperature": 1, "num_samples": 10, "converged": False}
    return report | {"method": method, "posterior": given | posterior}


TOLD = np.log([[0.9, 0.05, 0.05], [0.5, 0.45, 0.05], [0.5, 0.05, 0.45]])
FOUND = {
    "diverged": lambda: found_of(predicted([0.5], 0.4), [6e13]),
    "at_chance": lambda: found_of(predicted([0.5], 0.4), [1.04]),
    "by_heart": lambda: found_of(predicted([0.5], 0.4), [0.01]),
    "no_loss": lambda: found_of(predicted([0.5], 0.4), [np.nan]),
    "nothing_held_out": lambda: found_without_scores(1.1, {}),
    "nothing_held_out_and_diverged": lambda: found_without_scores(9.0, {}),
    "only_probabilities_tell": lambda: found_of(TOLD[None, LABELS], [0.5]),
    "weights": lambda: found_of(predicted([0.5], 0.4), config={"class_weights": "balanced"}),
    "a_member": lambda: found_of(predicted([0.9, 0.5, 0.9]), [0.2, 1.2, 0.2]),
    "a_member_diverged": lambda: found_of(predicted([0.9, 0.9], [0.9, 1 - 1e-10]), [0.2, 1e9]),
    "too_sure": lambda: found_of(predicted([0.8], 1 - 2 * np.exp(-7.5)), [0.01]),
    "failed": lambda: found_of(predicted([0.9]), failed=[1, 2]),
    "few_draws_of_tails": lambda: found_of_chains(1.002, (900, 350), 1.01),
    "few_draws": lambda: found_of_chains(1.02, 350, 1.03),
    "disagree": lambda: found_of_chains(2.9, 6, 1.4),
    "disagree_in_an_old_run": lambda: found_of_chains(2.9, 6, None),
    "stand_still": lambda: found_of_chains(np.inf, 4, np.nan),
    "divergent": found_diverged,
    "divergent_without_tests": lambda: found_diverged(energy_variance=1e-3),
    **{
        name: one
        for path in sorted(pathlib.Path(__file__).parents[1].glob("*/words_of_*.py"))
        for name, one in runpy.run_path(str(path))["FOUND"].items()
    },
}
UNTUNED = {
    "accepts_all": {"accept": 1.0},
    "no_step_size": {"step_size": [0.1, None]},
    "low_variance": {"energy_variance": 1e-9},
}
TOO_LONG = {
    "variance": {"energy_variance": 82.0},
    "variance_and_divergences": {"energy_variance": 82.0, "divergences": 30},
    "infinite": {"energy_variance": np.inf},
    "barely": {"energy_variance": 2.3},
    "divergences": {"divergences": 1},
}


def cases() -> Iterator[tuple[str, str | list[str]]]:
    """Every case, and what is said in it."""
    for case, find in FOUND.items():
        yield f"finding.{case}", find()
    ladder = {
        "failed_members": {},
        "live_members": [1],
        "posterior": {"num_samples": 100},
        "config": {"ladder": {"num_replicas": 3}},
        "ladder": {"swap_rates": [[0.5, 0.4], [0.6, 0.02]]},
    }
    yield "finding.coarse_ladder", findings(ladder, None, {}, {}, REMEDY)
    for case, posterior in UNTUNED.items():
        yield f"untuned.{case}", untuned_of(posterior)
    for case, posterior in TOO_LONG.items():
        yield f"too_long.{case}", too_long_of(posterior)
    yield from _summaries()


def _summaries() -> Iterator[tuple[str, str]]:
    yield "summary.several", summary_sentence(make_report())
    yield "summary.one", summary_sentence(make_report(1))
    unscored = {name: one for name, one in make_report().items() if name != "test"}
    yield "summary.no_scores", summary_sentence(unscored)
    yield "table.no_scores", format_table(unscored)
    yield "agreement", agreement(1.005, 208, "mu", "log_density")
    biased = make_posterior("mclmc", sd_bias=[0.0103, 0.06])
    yield "summary.biased", summary_sentence(biased)
    unknown = {"sd_bias": [None, None], "converged": True}
    yield "summary.unknown_bias", summary_sentence(make_posterior("mclmc", **unknown))
    yield "summary.one_chain", summary_sentence(make_posterior("mclmc", 1, **unknown))
    yield "summary.not_bayes", summary_sentence(make_posterior(temperature=0.5))
    predictive = {"rhat_max": 1.03, "rhat_above": {"1.01": 0.25, "1.05": 0.0}, "num_examples": 8}
    predictive |= {"nll": 0.5, "nll_interval": (0.49, 0.52)}
    for case, changes in {
        "known": {},
        "error_unknown": {"nll_interval": None},
        "degenerate": {"rhat_max": None},
    }.items():
        tracked = {"tracked_split": "test", "predictive": {**predictive, **changes}}
        yield f"summary.predictions_{case}", summary_sentence(make_posterior(**tracked))
