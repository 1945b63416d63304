"""Predictions of numbers show themselves as a table, in their own units."""

import numpy as np

from ensemble.likelihoods.number_prediction import LEVELS, NumberPrediction


def predicted(scale):
    count = 3
    mean = scale * np.arange(1, count + 1)
    quantiles = mean[:, None] * np.linspace(0.5, 1.5, len(LEVELS))
    return NumberPrediction(
        mean, scale * np.ones(count), quantiles, (scale * np.ones(count)) ** 2, np.zeros(count),
        np.array(LEVELS), {"mean": np.stack([mean] * 5)}, np.stack([mean] * 5),
        np.ones(count, bool),
    )  # fmt: skip


def test_text_and_html_have_mean_deviation_and_interval():
    heading, titles, _, first, *_ = repr(predicted(1e-7)).splitlines()
    assert heading == "3 predictions of 5 members, in the target's units"
    assert titles.split()[:4] == ["mean", "sd", "5%", "95%"]
    assert first.split()[:3] == ["0", "1e-07", "1e-07"]
    page = predicted(123456.0)._repr_html_()
    assert "<td>246912</td>" in page
    assert page.count("<tr>") == 4
