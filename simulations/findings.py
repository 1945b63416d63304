"""What train.py says against a run: is a constant, or a single member, really as good?"""

import math
import types
from typing import Any

import numpy as np
import scipy.optimize
from numpy.typing import NDArray
from scipy.special import log_softmax

from ensemble.likelihoods.categorical import Categorical
from ensemble.report import distillation
from ensemble.report.advantage import advantage, beaten
from ensemble.report.findings import findings
from ensemble.scoring.sections import values_of
from ensemble.storage.predictions import MemberPredictions
from ensemble.task import Scored
from ensemble.tasks.distillation.beside_teacher import nll_over_mean_member
from simulations.numbers import ERRORS, LIKELIHOOD
from simulations.settings import Settings, named
from simulations.statement import VERDICT, Outcome, Replicate, Statement, replication

CLASSES = Categorical("abc")
_TRAIN = np.linspace(-1.0, 1.0, 1001) * math.sqrt(3)  # Of mean 0 and variance 1.


def _numbers(
    rng: np.random.Generator, num_members: int, num_examples: int, errors: str
) -> tuple[dict[str, NDArray], NDArray]:
    """Predictions whose error is that of the mean: what they know is as much as they err by."""
    law = ERRORS[errors]
    signal = rng.normal(size=num_examples)
    targets = signal + law.ppf(rng.uniform(size=num_examples))
    noise = math.sqrt(0.75) * rng.normal(size=num_examples)  # 1 - (1 - 0.5)^2 of the signal's.
    loc = np.broadcast_to(0.5 * signal + noise, (num_members, num_examples))
    return {"loc": loc, "scale": np.full(loc.shape, math.sqrt(1 + float(law.var())))}, targets


def _labels(
    rng: np.random.Generator, num_members: int, num_examples: int, majority: float
) -> tuple[dict[str, NDArray], NDArray]:
    """Predictions that are right as often as the majority class is, whatever the class."""
    rest = (1 - majority) / 2
    labels = rng.choice(3, num_examples, p=[majority, rest, rest])
    is_right = rng.random(num_examples) < majority
    answers = np.where(is_right, labels, (labels + rng.integers(1, 3, num_examples)) % 3)
    probs = np.full((num_examples, 3), 0.05)
    probs[np.arange(num_examples), answers] = 0.9
    return {"log_probs": np.log(np.broadcast_to(probs, (num_members, num_examples, 3)))}, labels


def constant(num_members: int, num_examples: int, **setting: Any) -> Replicate:
    """Whether predictions that are as good as a constant pass for better or worse.

    Args:
        num_members: M, which are all the same.
        num_examples: N.
        **setting: `errors` of numbers, or the `majority` class's share.
    """
    is_number = "errors" in setting
    likelihood = LIKELIHOOD if is_number else CLASSES
    draw = _numbers if is_number else _labels
    train = _TRAIN if is_number else np.repeat([0, 1, 2], [4, 3, 3])

    def replicate(rng: np.random.Generator) -> Outcome:
        arrays, targets = draw(rng, num_members, num_examples, **setting)
        splits = {"train": train, "test": targets}
        scored = Scored(types.SimpleNamespace(targets=splits.get, train_weights=None), likelihood)  # type: ignore[arg-type]
        # The two scores that findings are about, without those that take long.
        summary = values_of(likelihood.view(arrays, targets), _TOLD)
        scores = {
            name: {"value": value, "members": [value] * num_members}
            for name, value in summary.items()
        }
        report = {
            "num_members": num_members,
            "live_members": list(range(num_members)),
            "failed_members": {},
            "test": {"scores": scores},
        }
        found = findings(report, scored, {"test": MemberPredictions(arrays)}, {}, "")
        low, high = advantage(
            likelihood.view(arrays, targets), beaten(likelihood, train, targets), "nll"
        ).ensemble
        is_said = any("the ensemble is not measurably better" in line for line in found)
        return {"passes for better": not is_said, "worse than it": high < 0 and low < 0}

    return replicate


_TOLD = ("accuracy", "rmse", "nll")


def _logits(rng: np.random.Generator, number: int, signal: float) -> tuple[NDArray, NDArray]:
    """Logits [N, 3], of which that of the right class is higher, and labels [N]."""
    labels = rng.integers(3, size=number)
    logits = rng.normal(size=(number, 3))
    logits[np.arange(number), labels] += signal
    return logits, labels


def sureness(num_examples: int, signal: float) -> Replicate:
    """Whether probabilities that are worth as much as frequencies are called worse, or pass.

    Args:
        num_examples: N.
        signal: what the logit of the right class is above the others.
    """

    def nll(scale: float, logits: NDArray, labels: NDArray) -> NDArray:
        return -log_softmax(scale * logits, axis=-1)[np.arange(len(labels)), labels]

    # So sure that the NLL is that of the frequencies of three classes that are equally frequent.
    many = _logits(np.random.default_rng(0), 60_000, signal)
    scale = scipy.optimize.brentq(lambda one: nll(one, *many).mean() - math.log(3), 0.5, 100.0)
    train = np.repeat([0, 1, 2], 10**6)

    def replicate(rng: np.random.Generator) -> Outcome:
        logits, labels = _logits(rng, num_examples, signal)
        arrays = {"log_probs": log_softmax(scale * logits, axis=-1)[None]}
        constant = beaten(CLASSES, train, labels)
        low, high = advantage(CLASSES.view(arrays, labels), constant, "nll").loss
        return {"NLL is worse": high < 0, "NLL is better": low > 0}

    return replicate


@replication
def student(rng: np.random.Generator, num_members: int, num_examples: int, noise: float) -> Outcome:
    """Whether a student that is as good as a member is called worse, or passes for better.

    Args:
        rng: of the draws.
        num_members: M of its teacher.
        num_examples: N.
        noise: standard deviation of a member's own errors in its logits.
    """
    logits, labels = _logits(rng, num_examples, 2.0)
    alike = logits + noise * rng.normal(size=(num_members + 1, num_examples, 3))
    log_probs = log_softmax(alike, axis=-1)
    ours, members = (
        CLASSES.view({"log_probs": one}, labels) for one in (log_probs[:1], log_probs[1:])
    )
    interval = nll_over_mean_member(ours, members)
    said = distillation._beside_member(*interval)
    return {
        "a member does better": "a single member does better (" in said,
        "passes for better": not said,
    }


def _of(names: str, *values: tuple) -> Settings:
    """Settings by titles that say their values."""
    made = (named(names)(*each) for each in values)
    return {", ".join(f"{key} = {one}" for key, one in each.items()): each for each in made}


STATEMENTS = (
    Statement(
        name="findings.constant",
        claim="The ensemble is not measurably better than a constant (unsaid: it is better)",
        over="examples",
        made_by=(
            "ensemble.report.advantage.advantage",
            "ensemble.report.advantage._interval",
            "ensemble.report.findings.findings",
        ),
        settings={
            **_of("num_members num_examples errors", (1, 30, "normal"), (4, 300, "t3")),
            **_of("num_members num_examples errors", (16, 100, "log-normal"), (2, 5000, "normal")),
            **_of("num_members num_examples majority", (1, 30, 0.5), (4, 100, 0.8)),
            **_of("num_members num_examples majority", (16, 300, 0.9), (2, 5000, 0.4)),
        },
        prepare=constant,
        kind=VERDICT,
    ),
    Statement(
        name="findings.nll",
        claim="The ensemble's NLL is worse (better) than that of a constant",
        over="examples",
        made_by=("ensemble.report.advantage.advantage",),
        settings=_of(
            "num_examples signal",
            (30, 1.0), (100, 1.0), (100, 3.0), (300, 2.0), (1000, 1.0), (5000, 3.0),
        ),
        prepare=sureness,
        kind=VERDICT,
    ),
    Statement(
        name="findings.student",
        claim="A single member does better than the student (unsaid: the student does)",
        over="examples",
        made_by=("ensemble.tasks.distillation.beside_teacher.nll_over_mean_member",),
        settings=_of(
            "num_members num_examples noise",
            (2, 30, 0.5), (16, 100, 0.3), (4, 100, 2.0), (8, 300, 1.0), (2, 1000, 2.0),
            (16, 5000, 0.5),
        ),
        prepare=student,
        kind=VERDICT,
    ),
)  # fmt: skip
