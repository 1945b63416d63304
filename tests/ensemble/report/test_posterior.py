"""When a run says that its chains have converged."""

import types

import numpy as np
import pytest

from ensemble.draws import diagnostics
from ensemble.draws.store import LOG_DENSITY
from ensemble.methods.chain_report import convergence_section


@pytest.mark.parametrize(
    ("divergences", "tail", "num_chains", "converged"),
    [
        (0, 900.0, 4, True),
        (1, 900.0, 4, False),
        (0, 400.0, 4, False),
        (0, np.nan, 4, False),
        (0, 900.0, 5, False),  # One is left out.
    ],
)
def test_chains_have_converged_if_nothing_speaks_against_it(
    divergences, tail, num_chains, converged
):
    draws = np.random.default_rng(0).normal(size=(4, 400))
    diverged = np.zeros((4, 400), bool)
    diverged[2, :divergences] = True
    found = diagnostics.summarise({LOG_DENSITY: draws})
    assert found.rhat_max < 1.01
    counted = {LOG_DENSITY: draws, "is_divergent": diverged}
    found = found._replace(ess_tail_min=tail)
    config = types.SimpleNamespace(num_chains=num_chains, posterior_temperature=1.0)
    section = convergence_section(counted, found, config)
    assert section["converged"] is converged
