"""What is predicted where one column moves."""

import numpy as np

from ensemble.evaluation.profile import NUM_POINTS, profile_inputs, widest_fan
from ensemble.likelihoods.gaussian import Gaussian
from ensemble.sources import dataset_from_arrays


def test_one_column_moves_beyond_its_range_and_the_widest_fan_is_of_what_matters():
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-1, 1, (200, 3)).astype(np.float32)
    source = dataset_from_arrays({"inputs": inputs, "targets": inputs[:, 0]}, "rows")
    rows = profile_inputs(source).reshape(3, NUM_POINTS, 3)
    middle = np.median(source.splits["train"].inputs, axis=0)
    for column in range(3):
        others = [other for other in range(3) if other != column]
        np.testing.assert_array_equal(rows[column][:, others], [middle[others]] * NUM_POINTS)
        assert rows[column, 0, column] < -1.2
        assert rows[column, -1, column] > 1.2
    x = rows.reshape(-1, 3)
    loc = np.stack([5 * x[:, 1] + x[:, 0], 5 * x[:, 1] - x[:, 0]])
    arrays = {"loc": loc, "scale": np.ones_like(loc)}
    likelihood = Gaussian(0.0, 1.0, -1.0, 1.0)
    fan = widest_fan(likelihood.view(arrays, None), source)
    assert fan.name == "input 1"
    np.testing.assert_allclose(fan.quantiles[2], loc.mean(axis=0)[NUM_POINTS : 2 * NUM_POINTS])
    assert fan.low > fan.values[0]
    flat = {name: np.ones_like(one) for name, one in arrays.items()}
    assert widest_fan(likelihood.view(flat, None), source) is None
