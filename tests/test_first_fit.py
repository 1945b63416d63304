"""XLA compiles few programs before an estimator has been fitted: a first fit is mostly that."""

import pytest
from test_imports import imported

COUNTED = """
import json
import jax
import numpy as np
import ensemble

count = 0

def counted(event, seconds, **_):
    global count
    count += event == "/jax/core/compile/backend_compile_duration"

jax.monitoring.register_event_duration_secs_listener(counted)
rng = np.random.default_rng(0)
inputs, targets = rng.normal(size=(300, 5)), rng.normal(size=300)
ensemble.EnsembleRegressor(random_state=0).fit(inputs, targets)
print(json.dumps(count))
"""


@pytest.mark.check
def test_the_first_fit_of_a_regressor_compiles_few_programs():
    assert 10 < imported(COUNTED) <= MOST


MOST = 26
"""Tiny programs, such as of one `jnp.where` outside `jax.jit`, take 25 ms each."""
