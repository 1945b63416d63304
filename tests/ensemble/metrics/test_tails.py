"""How heavy a tail is."""

import numpy as np
import pytest
import scipy.stats

from ensemble.metrics.tails import has_heavy_tail, tail_shape


def test_the_shape_of_a_tail_is_that_of_its_law():
    shares = (np.arange(20_000) + 0.5) / 20_000
    for shape in (0.1, 0.4, 0.8):
        assert tail_shape(scipy.stats.genpareto(shape).ppf(shares)) == pytest.approx(
            shape, abs=0.02
        )
    assert tail_shape(np.ones(1000)) == 0
    assert not has_heavy_tail(scipy.stats.genpareto(0.8).ppf(shares[::100]))  # Too few to tell.
