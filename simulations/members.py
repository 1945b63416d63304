"""Members that are drawn alike: what one more of them would bring."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from ensemble import metrics
from ensemble.evaluation import next_member
from simulations.statement import Replicate, Statement

NUM_CLASSES = 5


def draw(
    rng: np.random.Generator,
    num_members: int,
    num_examples: int,
    noise: float,
    quality: float,
    signal: float,
) -> tuple[NDArray, NDArray]:
    """Log-probabilities of members [M, N, C], and labels [N].

    Args:
        rng: of the draws.
        num_members: M.
        num_examples: N.
        noise: standard deviation of a member's own errors in its logits.
        quality: standard deviation of the logarithm of that, from member to member.
        signal: what the logit of the right class is above the others.
    """
    labels = rng.integers(NUM_CLASSES, size=num_examples)
    scores = rng.normal(size=(num_examples, NUM_CLASSES))
    scores[np.arange(num_examples), labels] += signal
    scales = noise * np.exp(quality * rng.normal(size=(num_members, 1, 1)))
    noises = scales * rng.normal(size=(num_members, num_examples, NUM_CLASSES))
    return log_softmax(scores + noises, axis=-1), labels


def next_gain(num_members: int, **setting: float) -> Replicate:
    """Whether the interval holds what one further member brings on new examples."""

    def replicate(rng: np.random.Generator) -> Mapping[str, bool | None]:
        log_probs, labels = draw(rng, num_members + 1, **setting)  # type: ignore[arg-type]
        before, after = (
            metrics.nll(metrics.ensemble_log_probs(one), labels)
            for one in (log_probs[:-1], log_probs)
        )
        mixtures = next_member._Mixtures(log_probs[:-1])
        rows = np.arange(len(labels))
        low, high = next_member._gain_interval(
            lambda subset: mixtures.mean(subset)[rows, labels], num_members
        )
        return {"nll": bool(low <= before - after <= high)}

    return replicate


def _setting(num_members: int, num_examples: int, *rest: float) -> dict:
    names = ("noise", "quality", "signal")
    return {
        "num_members": num_members,
        "num_examples": num_examples,
        **dict(zip(names, rest, strict=True)),
    }


STATEMENTS = (
    Statement(
        name="next_member.gain",
        claim="One further member lowers the NLL by [low, high]",
        over="members and examples",
        made_by=("ensemble.evaluation.next_member._gain_interval",),
        settings={
            "M = 4, N = 300, unequal members": _setting(4, 300, 1.0, 0.3, 3.0),
            "M = 2, N = 300": _setting(2, 300, 1.0, 0.0, 3.0),
            "M = 2, N = 2000, noisy": _setting(2, 2000, 2.0, 0.1, 4.0),
            "M = 3, N = 2000, alike": _setting(3, 2000, 0.3, 0.1, 4.0),
            "M = 8, N = 300": _setting(8, 300, 1.0, 0.0, 3.0),
            "M = 8, N = 2000, hard": _setting(8, 2000, 1.0, 0.3, 2.0),
            "M = 16, N = 300, alike, hard": _setting(16, 300, 0.3, 0.1, 2.0),
        },
        prepare=next_gain,
    ),
)
