"""A density of one's own as a task."""

import jax
import numpy as np
import pytest
from own_density import Ring
from run_parts import validated

from ensemble.walks.random_walk import RandomWalk

KEY = jax.random.key(5)


@pytest.mark.soak
def test_a_ring_is_walked_on():
    config = validated(
        {
            "method": "rwm",
            "num_chains": 512,
            "num_devices": 2,
            "log_every_steps": 200,
            "rwm": {"num_warmup": 192, "num_samples": 200},
        }
    )
    method = RandomWalk(config, Ring(2.0))
    state, _ = method.advance(method.init(KEY))
    while not method.finished(state):
        state, _ = method.advance(state)
    positions = np.asarray(state.walk.chains.position).transpose(0, 2, 1).reshape(-1, 2)[:512]
    distances = np.linalg.norm(positions, axis=1)
    assert distances.mean() == pytest.approx(2, abs=0.1)
    assert np.abs(positions.mean(axis=0)).max() < 0.3
