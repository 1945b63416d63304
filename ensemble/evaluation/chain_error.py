"""How far the scores of a posterior would move with more draws: the Monte Carlo error of its NLL.

Here it is of the whole test split, by the means of the chains alone; a report has that of a hundred
examples, by batches of their draws too.
"""

from typing import Any

from ensemble.draws.diagnostics import MIN_ESS
from ensemble.draws.predictive_error import OVER, error_of_chains
from ensemble.evaluation.subject import Subject
from ensemble.scoring.sections import member_terms


def score_chains(subject: Subject) -> dict[str, Any] | None:
    """Finds where the NLL of infinitely many draws lies.

    Args:
        subject: of the evaluation.

    Returns:
        `nll` of the test split and `nll_interval`, in which that of infinitely many draws lies in
        95% of runs; `error`, the bound of `PredictiveError`, nats; `interval_over`. None of an
        ensemble, of a run in training, whose chains are not told apart, of one chain, of a bulk ESS
        of 100 or less, and where the NLL is infinite.
    """
    posterior = subject.report.get("posterior")
    if posterior is None or not subject.is_finished:
        return None
    if not (posterior.get("ess_bulk_min") or 0) > MIN_ESS:
        return None
    found = error_of_chains(-member_terms(subject.view, subject.likelihood.loss))
    if found is None:
        return None
    return {
        "nll": found.nll,
        "nll_interval": found.nll_interval,
        "error": found.bound,
        "interval_over": OVER,
    }
