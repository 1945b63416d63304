"""Chains that stay in modes of their own are told from chains that crawl."""

import numpy as np

from ensemble.draws.diagnostics import modes_apart


def test_modes_of_their_own_are_told_from_slow_mixing():
    rng = np.random.default_rng(0)
    same = rng.normal(size=(4, 300))
    apart = same + np.array([[0.0], [9.0], [0.0], [9.0]])
    crawling = np.cumsum(rng.normal(size=(4, 300)), axis=1) + np.array([[0.0], [99], [200], [300]])
    stuck = np.repeat([[0.0], [1.0], [2.0], [3.0]], 300, axis=1)
    assert modes_apart({"crawling": crawling, "stuck": stuck, "same": same}) == (None, None)
    assert modes_apart({"same": same, "x": apart}) == ("x", 2)
