"""Searches within a time."""

import numpy as np
import pytest

import ensemble
from ensemble.config import build
from ensemble.configs import tabular
from ensemble.selection import loss
from ensemble.storage.predictions import read_held_out
from ensemble.storage.workdir import Workdir
from ensemble.tuning import search as module
from ensemble.tuning.search import proposals

CONFIG = {
    "num_epochs": 4,
    "ensemble_size": 4,
    "num_devices": 1,
    "kfold_bagging.folds": 4,
    "mlp.activation": "silu",
    "train_on_all": False,
}
"""The families are those of one network, which compiles fast."""


def table(num_rows=300, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(num_rows, 4)).astype(np.float32)
    targets = 5 + 3 * (inputs[:, 0] + np.sin(2 * inputs[:, 1]) + 0.3 * rng.normal(size=num_rows))
    return inputs, targets.astype(np.float32)


def first(number):
    """The first proposals of a search, which ends after them."""

    def limited(*arguments):
        tries = proposals(*arguments)
        sent = None
        for _ in range(number):
            sent = yield tries.send(sent)

    return limited


def test_every_family_is_a_configuration():
    tries = proposals(0, 8, {})
    sent = None
    for _ in range(60):
        build(tabular.get_config(), {"method": "kfold_bagging", **tries.send(sent)})
        sent = 1.0


@pytest.mark.check
def test_what_is_chosen_predicts_rows_held_out_best(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "proposals", first(3))
    result = ensemble.search(table(), "1h", tmp_path / "best", CONFIG, show_progress=False)
    report = result.report
    selection = result.report["selection"]
    trials = report["search"]["trials"]
    rows = np.stack(
        [read_held_out(Workdir(tmp_path / "best/runs" / name)) for name in ("000", "001", "002")]
    )
    assert np.isfinite(rows).all(), "all rows are held out by some member"
    np.testing.assert_allclose([one["score"] for one in trials], rows.mean(axis=1))
    weights = np.array([one["weight"] for one in trials])
    assert weights.sum() == pytest.approx(1)
    assert selection["nll"] == pytest.approx(loss(-rows, weights))
    assert selection["nll"] <= rows.mean(axis=1).min()
    assert "3 trials took" in repr(result)
