"""Feature vectors with heavy tails, as networks see them."""

import json

import numpy as np
import pytest
from conftest import small_config
from run_parts import task_of

import ensemble

RNG = np.random.default_rng(0)
HEAVY = np.exp(2 * RNG.normal(size=400))
COLUMNS = {
    "normal": 50 + 3 * RNG.normal(size=400),
    "heavy": HEAVY,
    "mostly zero": np.where(RNG.random(400) < 0.8, 0, HEAVY),
    "flag": RNG.integers(0, 2, 400).astype(float),
    "constant": np.full(400, 7.0),
}
INPUTS = np.stack([*COLUMNS.values()], axis=1).astype(np.float32)
LABELS = RNG.integers(0, 2, 400)


def seen():
    task = task_of(
        small_config(scaler="robust", train_on_all=True),
        {"train_inputs": INPUTS, "train_labels": LABELS},
    )
    return task, dict(zip(COLUMNS, np.asarray(task.prepare(INPUTS)).T, strict=True))


def test_light_tails_are_standardised_and_flags_stay():
    _, found = seen()
    values = COLUMNS["normal"]
    expected = (values - values.mean()) / values.std()
    np.testing.assert_allclose(found["normal"], expected, atol=1e-4)
    np.testing.assert_array_equal(found["flag"], COLUMNS["flag"])
    assert (found["constant"] == 0).all()


def test_heavy_tails_come_near_in_their_order():
    _, found = seen()
    first, middle, third = np.quantile(HEAVY, [0.25, 0.5, 0.75])
    expected = np.arcsinh((HEAVY - middle) / ((third - first) / 1.349))
    np.testing.assert_allclose(found["heavy"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(np.argsort(found["heavy"]), np.argsort(INPUTS[:, 1]))
    standardised = (HEAVY - HEAVY.mean()) / HEAVY.std()
    assert found["heavy"].max() < standardised.max() / 2
    assert np.abs(found["mostly zero"]).max() < 5


@pytest.mark.check
def test_what_is_learned_by_it_predicts_by_it(tmp_path):
    config = small_config(scaler="robust", model="mlp") | {"mlp.widths": "8"}
    data = {"inputs": INPUTS, "labels": LABELS}
    result = ensemble.train(config, data, str(tmp_path), show_progress=False)
    found = json.loads((tmp_path / "results.json").read_text())["dataset"]
    assert found["squash"] == [0, 1, 1, 0, 0]
    loaded = ensemble.load(tmp_path)
    np.testing.assert_array_equal(loaded(INPUTS).probs, result.predictor(INPUTS).probs)
    plain = loaded.task.dataset
    assert plain.squash.tolist() == found["squash"]
