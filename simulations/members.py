"""Members that are drawn alike: what one more of them would bring."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from ensemble.evaluation import next_member
from ensemble.evaluation.questions import others
from ensemble.likelihoods.class_view import LOG_PROBS, MeanOfSoftmax
from simulations import real_members
from simulations.settings import named, with_more
from simulations.statement import VERDICT, Outcome, Statement, holds, replication

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


Drawn = Callable[[np.random.Generator], tuple[NDArray, NDArray, float | None]]
"""Draws M + 1 members' log-probabilities [M + 1, N, C] and labels [N]; the gain on new examples by
the last of them, where it is known."""


def _generated(num_members: int, num_examples: int, *kind: float, num_new: int = 0) -> Drawn:
    def drawn(rng: np.random.Generator) -> tuple[NDArray, NDArray, float | None]:
        log_probs, labels = draw(rng, num_members + 1, num_examples + num_new, *kind)
        on_new = _gain(log_probs[:, num_examples:], labels[num_examples:]) if num_new else None
        return log_probs[:, :num_examples], labels[:num_examples], on_new

    return drawn


def _real(num_members: int, num_examples: int) -> Drawn:
    def drawn(rng: np.random.Generator) -> tuple[NDArray, NDArray, float]:
        pool = real_members.digits()
        chosen, _ = real_members.draw_pair(rng, (num_members + 1, 0))
        (found,) = real_members.predicted(rng, pool, [chosen], num_examples)
        gain = _gain(pool["log_probs"][chosen], pool["targets"])
        return found["log_probs"], found["targets"], gain

    return drawn


def _gain(log_probs: NDArray, labels: NDArray) -> float:
    """What the last member brings, nats."""
    of_labels = log_probs[:, np.arange(len(labels)), labels]
    before, after = (
        logsumexp(one, axis=0) - np.log(len(one)) for one in (of_labels[:-1], of_labels)
    )
    return float(np.mean(after - before))


def _stated(log_probs: NDArray, labels: NDArray) -> dict[str, Any]:
    """What is stated of the next member, from those that there are."""
    return next_member.score_sizes(_OnlyNll(arrays={LOG_PROBS: log_probs}, targets=labels))


class _OnlyNll(MeanOfSoftmax):
    """A view of whose scores only the NLL is stated."""

    sizes = ("nll",)


@replication
def next_gain(rng: np.random.Generator, drawn: Drawn, on_new: bool) -> Outcome:
    """Whether the interval holds what one further member brings."""
    log_probs, labels, on_new_examples = drawn(rng)
    gain = on_new_examples if on_new else _gain(log_probs, labels)
    interval = _stated(log_probs[:-1], labels)["gain_interval"]
    return {"nll": None if gain is None else holds(interval, gain)}


@replication
def next_verdict(rng: np.random.Generator, drawn: Drawn) -> Outcome:
    """Whether the sentence says to stop where a member pays, or the other way round."""
    log_probs, labels, _ = drawn(rng)
    gain = _gain(log_probs, labels)
    found = _stated(log_probs[:-1], labels)
    code = others.next_member(found).code
    if code == "next_member.stop_share":
        return {"sentence": gain >= next_member.SMALL_SHARE * found["mean"]["nll"][-1]}
    return {"sentence": gain <= 0 if code == "next_member.pays_share" else None}


_setting = named("drawn")
_NEW = {
    "M = 4, N = 300, unequal members": _setting(_generated(4, 300, 1.0, 0.3, 3.0, num_new=3000)),
}
_GENERATED = {
    "M = 4, N = 300, unequal members": _setting(_generated(4, 300, 1.0, 0.3, 3.0)),
    "M = 2, N = 300": _setting(_generated(2, 300, 1.0, 0.0, 3.0)),
    "M = 3, N = 1000, alike": _setting(_generated(3, 1000, 0.3, 0.1, 4.0)),
    "M = 8, N = 300": _setting(_generated(8, 300, 1.0, 0.0, 3.0)),
    "M = 8, N = 1000, hard": _setting(_generated(8, 1000, 1.0, 0.3, 2.0)),
    "M = 16, N = 300, alike, hard": _setting(_generated(16, 300, 0.3, 0.1, 2.0)),
}
_REAL = {
    "M = 4, N = 300, digits": _setting(_real(4, 300)),
    "M = 2, N = 300, digits": _setting(_real(2, 300)),
    "M = 3, N = 300, digits": _setting(_real(3, 300)),
    "M = 4, N = 1000, digits": _setting(_real(4, 1000)),
    "M = 8, N = 1000, digits": _setting(_real(8, 1000)),
    "M = 16, N = 300, digits": _setting(_real(16, 300)),
}

STATEMENTS = (
    Statement(
        name="next_member.gain",
        claim="One further member lowers the NLL of these test examples by [low, high]",
        over="members",
        made_by=("ensemble.evaluation.next_member._gain_interval",),
        settings=with_more(_GENERATED | _REAL, on_new=False),
        prepare=next_gain,
    ),
    Statement(
        name="next_member.gain_on_new_examples",
        claim="One further member lowers the NLL of all other examples by [low, high]",
        over="members and examples",
        made_by=("ensemble.evaluation.next_member._gain_interval",),
        settings=with_more(_NEW | _REAL, on_new=True),
        prepare=next_gain,
        at_least=True,
    ),
    Statement(
        name="next_member.verdict",
        claim="One further member lowers the NLL of these test examples, or not by 1%",
        over="members",
        made_by=(),
        settings=_GENERATED | _REAL,
        prepare=next_verdict,
        kind=VERDICT,
    ),
)
