"""Pictures of predicted numbers."""

import numpy as np

from ensemble.pictures import intervals
from ensemble.pictures.plot_style import figure_to_array

RNG = np.random.default_rng(0)


def test_predictions_show_whether_intervals_hold_their_targets():
    y = RNG.normal(size=500)
    figure = intervals.predictions(0 * y, 0 * y - 1.645, 0 * y + 1.645, y, "noise")
    (axes,) = figure.axes
    held = np.mean(np.abs(y) <= 1.645)
    drawn = len(axes.lines[1].get_xdata()) + len(axes.lines[2].get_xdata())
    assert drawn <= 300
    assert "500 examples" in axes.get_xlabel()
    share = len(axes.lines[1].get_xdata()) / drawn
    assert abs(share - held) < 0.03
    assert figure_to_array(figure).ndim == 3


def test_coverage_is_that_of_central_intervals():
    calibrated = (np.arange(1000) + 0.5) / 1000
    curve, histogram = intervals.coverage_curve(calibrated, "uniform").axes
    nominal, found = curve.lines[-1].get_data()
    np.testing.assert_allclose(found, nominal, atol=2e-3)
    (bars,) = histogram.containers
    np.testing.assert_allclose([bar.get_height() for bar in bars], 100)
    (band,) = set(histogram.patches) - set(bars)
    assert band.get_zorder() < bars[0].get_zorder()
    too_wide = 0.5 + 0.1 * (calibrated - 0.5)
    nominal, found = intervals.coverage_curve(too_wide, "wide").axes[0].lines[-1].get_data()
    assert (found[10:] >= 0.99).all()
