"""Scores made in the simplest way, for tests of those that are made fast."""

import numpy as np

from ensemble import metrics


def summarise(log_probs, labels, member_entropies=None):
    """The scores of an ensemble of classifiers and its members, by the formulas alone.

    Args:
        log_probs: `[M, N, C]` log-probabilities of the members.
        labels: `[N]` integer labels.
        member_entropies: as for `uncertainty`.

    Returns:
        `ensemble`: the `scores` of the members' mean; `members`: the same names, a list of M values
        each; `diversity`: `disagreement`, and `total`, `aleatoric` and `epistemic` uncertainty in
        nats, means over the examples.
    """
    member_scores = [metrics.scores(member, labels) for member in log_probs]
    return {
        "ensemble": metrics.scores(metrics.ensemble_log_probs(log_probs), labels),
        "members": {name: [one[name] for one in member_scores] for name in member_scores[0]},
        "diversity": {
            "disagreement": metrics.disagreement(log_probs),
            **{
                name: float(np.mean(each))
                for name, each in metrics.uncertainty(log_probs, member_entropies).items()
            },
        },
    }
