"""Sentences that evaluations of classes and of numbers have in common."""

import statistics
from collections.abc import Mapping
from typing import Any

from ensemble.draws.diagnostics import AGREE, GOOD_ESS, MIN_CHAINS, judge_chains, least_ess
from ensemble.evaluation import chain_error, recipe
from ensemble.pictures.plot_style import plural
from ensemble.report.text import agreement

FEW_EXAMPLES = 30
"""With fewer test examples nothing is concluded of calibration."""

_TOLD = 0.99
_quantile = statistics.NormalDist().inv_cdf
_KINDS = {
    "constant": "inputs whose values are all equal",
    "uniform": "inputs of uniform random noise",
    "box": "rows whose columns are drawn from their ranges one by one",
    "outside": "rows beyond the training range",
}
"""What inputs that are made for an evaluation are, in words."""


def is_available(section: Mapping[str, Any]) -> bool:
    """Whether a section of something fitted has numbers."""
    return "reason" not in section


def posterior(evaluation: Mapping[str, Any]) -> list[str]:
    """Whether it is Bayes, whether chains agree, and whether it is better than what it starts from.

    There are none of an ensemble.

    Args:
        evaluation: the content of evaluation.json so far.
    """
    sentences = []
    if evaluation["temperature"] != 1:
        sentences.append(
            f"The likelihood's temperature is {evaluation['temperature']:g}: this is not Bayes."
        )
    if evaluation["posterior"] is not None:
        sentences.append(convergence(evaluation["posterior"]))
        if line := chain_error.sentence(evaluation.get("chain_error")):
            sentences.append(line)
    return sentences + _compared(evaluation, is_start=True)


def _compared(evaluation: Mapping[str, Any], is_start: bool) -> list[str]:
    """Sentences on each comparison: with what a posterior starts from, or with all others."""
    return [
        recipe.sentence(one)
        for one in evaluation["compare"]
        if one.get("is_start", False) == is_start and recipe.deciding(one)
    ]


def convergence(posterior: Mapping[str, Any]) -> str:
    """What the members of a posterior are, and whether its chains agree.

    Args:
        posterior: the entry of report.json; its R-hat and ESS may be unknown.
    """
    text = f"Its members are chains of {posterior['num_samples']:,} draws, each averaged"
    rhat, ess = posterior["rhat_max"], posterior["ess_bulk_min"]
    if rhat is None or ess is None:
        return f"{text}; too few or degenerate draws to tell whether the chains agree."
    num_chains = posterior["num_chains"]
    if num_chains == 1:
        return f"{text}; R-hat of the halves of the only one is {rhat:.3f}, bulk ESS {ess:.0f}."
    least = least_ess(posterior)
    told = judge_chains(rhat, least, posterior.get("rhat_chance"))
    of_tails = "" if least > GOOD_ESS or ess <= GOOD_ESS else f", tail ESS from {least:.0f}"
    text += f"; they {told} ({agreement(rhat, ess)}{of_tails})"
    if told == AGREE and num_chains < MIN_CHAINS:
        missed = 2.0 ** (1 - num_chains)
        text += f", but of two equal modes {num_chains} chains all miss one in {missed:.0%} of runs"
    return f"{text}."


def effect(section: Mapping[str, Any]) -> int:
    """-1 where a calibration lowers the NLL, 1 where it raises it, 0 where it cannot be told.

    Args:
        section: without numbers, or with `nll_change_interval` of the test split. Where there is
            `on_folds`, the interval of the change on parts of the calibration split that have not
            fitted it, it decides what is to be used: then the test split has not decided on what it
            scores. What it finds worse is left out.
    """
    if not is_available(section):
        return 0
    low, high = section["nll_change_interval"] or (0.0, 0.0)
    if low > 0:
        return 1
    low, high = section.get("on_folds", (low, high)) or (0.0, 0.0)
    return -1 if high < 0 else 0


def detection(sections: Mapping[str, Any], score: str, what_tells: str) -> str:
    """The unfamiliar inputs that are told worst from the test split; empty where there are none.

    Args:
        sections: by set, with `num_examples` and the detection by a score.
        score: by which they are told.
        what_tells: that score in words.
    """
    if not sections:
        return ""
    name, section = min(sections.items(), key=lambda item: item[1][score]["auroc"])
    found = section[score]
    low, high = found["interval"]["auroc"]
    fpr_low, fpr_high = found["interval"]["fpr95"]
    # The worst of several is below 1/2 by chance more often than one is (Bonferroni).
    wider = _quantile(0.025 / len(sections)) / _quantile(0.025)
    what = f"{_KINDS.get(name, f'those of {name}')} ({plural(section['num_examples'], 'example')})"
    auroc = f"AUROC {found['auroc']:.3f} [{low:.3f}, {high:.3f}]"
    if all(one[score]["interval"]["auroc"][0] >= _TOLD for one in sections.values()):
        return f"Its {what_tells} recognises all unfamiliar inputs tried, worst {what}: {auroc}."
    if found["auroc"] + (high - found["auroc"]) * wider < 0.5:
        return f"Its {what_tells} is lower on {what} than on its own test data: {auroc}."
    return (
        f"The unfamiliar inputs that its {what_tells} recognises worst are {what}: {auroc}; a "
        f"threshold that catches 95% of them also flags {found['fpr95']:.1%} [{fpr_low:.1%}, "
        f"{fpr_high:.1%}] of the test examples."
    )


def over(test: Mapping[str, Any]) -> str:
    """What intervals are over, in a sentence; empty where there is none.

    Args:
        test: of an evaluation, with `interval_over`.
    """
    if "interval_over" not in test:
        return ""
    return f"Unless it is said otherwise, intervals are 95%, over {test['interval_over']}."


def closing(evaluation: Mapping[str, Any]) -> list[str]:
    """Comparisons, what one more member would bring, what intervals are over, and notes.

    Args:
        evaluation: the content of evaluation.json so far.
    """
    notes = [f"Note: {line}" for line in evaluation.get("notes", ())]
    next_member = evaluation["next_member"]["sentence"]
    compared = _compared(evaluation, is_start=False)
    lines = [*compared, next_member, over(evaluation["test"]), *notes]
    return [one for one in lines if one]
