"""What chains predict by the draws that they keep, against averages in float64."""

import types

import numpy as np
import scipy.special
from etils import epath
from run_parts import of_classes

from ensemble import likelihoods
from ensemble.draws import store
from ensemble.draws.store import Draws
from ensemble.runtime.method import KeptReport

NUM_CHAINS = 2
NUM_EXAMPLES = 5
NUM_CLASSES = 3
CLASSES = of_classes("abc")
LABELS = np.array([0, 2, 1, 1, 0])


class Chains(KeptReport):
    """Draws on disk, and chains that predict with them; counts how many draws have predicted."""

    def __init__(self, directory, likelihood, targets, as_arrays, most=100):
        self.draws = Draws(epath.Path(directory))
        self.num_predicted = 0
        self._as_arrays = as_arrays
        source = types.SimpleNamespace(targets=lambda name: targets)
        config = types.SimpleNamespace(max_draws_per_chain=most)
        super().__init__(config, types.SimpleNamespace(likelihood=likelihood, dataset=source), "")

    def predict_set(self, params, split):
        self.num_predicted += 1
        return self._as_arrays(params["outputs"])

    def keep(self, outputs):
        """Appends draws [C, K, N, ...]."""
        first = self.draws.end
        number = outputs.shape[1]
        scalars = {"log_density": np.zeros(outputs.shape[:2])}
        end = first + number
        self.draws.append(end, scalars, {"outputs": outputs}, np.arange(first, end))


def log_probs_of(num_draws, scale=3.0):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, scale, (NUM_CHAINS, num_draws, NUM_EXAMPLES, NUM_CLASSES))
    return scipy.special.log_softmax(logits, axis=-1).astype(np.float32)


def of_chains(directory, log_probs, most=100):
    made = Chains(directory, CLASSES, LABELS, lambda outputs: {"log_probs": outputs}, most)
    made.keep(log_probs)
    return made


def test_draws_of_classes_become_their_mean(tmp_path):
    log_probs = log_probs_of(30)
    chains = of_chains(tmp_path, log_probs)
    predicted = chains.predictions(chains, "test")
    assert predicted.member_of is None
    found = predicted.arrays
    probs = np.exp(log_probs.astype(np.float64))
    assert {one.dtype for one in found.values()} == {np.dtype(np.float32)}
    np.testing.assert_allclose(np.exp(found["log_probs"]), probs.mean(axis=1), rtol=1e-6)
    entropies = -(probs * log_probs).sum(axis=-1)
    np.testing.assert_allclose(found["entropies"], entropies.mean(axis=1), rtol=2e-6)
    scores = chains.average_draw(chains, "test")
    of_label = log_probs[..., np.arange(NUM_EXAMPLES), LABELS]
    np.testing.assert_allclose(scores["nll"], -of_label.mean(axis=(1, 2)), rtol=1e-6)
    hits = log_probs.argmax(axis=-1) == LABELS
    np.testing.assert_allclose(scores["accuracy"], hits.mean(axis=(1, 2)), rtol=1e-6)
    brier = ((probs - np.eye(NUM_CLASSES)[LABELS]) ** 2).sum(axis=-1)
    np.testing.assert_allclose(scores["brier"], brier.mean(axis=(1, 2)), rtol=1e-5)


def test_probabilities_too_small_for_float32_are_averaged_too(tmp_path):
    log_probs = log_probs_of(30, scale=30.0)
    log_probs[..., 0] -= 300
    log_probs = scipy.special.log_softmax(log_probs, axis=-1)
    chains = of_chains(tmp_path, log_probs)
    found = chains.predictions(chains, "test").arrays["log_probs"]
    expected = scipy.special.logsumexp(log_probs.astype(np.float64), axis=1) - np.log(30)
    assert expected.min() < -104  # Below float32's smallest number.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_class_that_never_has_any_probability(tmp_path):
    log_probs = log_probs_of(4)
    log_probs[..., 0] = -np.inf
    chains = of_chains(tmp_path, scipy.special.log_softmax(log_probs, axis=-1))
    found = chains.predictions(chains, "test").arrays
    assert np.isneginf(found["log_probs"][..., 0]).all()
    assert np.isfinite(found["entropies"]).all()


def test_each_draw_predicts_once_and_when_it_does_changes_no_bit(tmp_path):
    log_probs = log_probs_of(12)
    at_once = of_chains(tmp_path / "a", log_probs)
    expected = at_once.predictions(at_once, "test").arrays
    bit_by_bit = of_chains(tmp_path / "b", log_probs[:, :5])
    for count in (0, 4, 3):
        if count:
            first = bit_by_bit.draws.end
            bit_by_bit.keep(log_probs[:, first : first + count])
        found = bit_by_bit.predictions(bit_by_bit, "test").arrays
        assert bit_by_bit.num_predicted == bit_by_bit.draws.end
        bit_by_bit.average_draw(bit_by_bit, "test")
    assert bit_by_bit.num_predicted == 12
    for name, one in expected.items():
        np.testing.assert_array_equal(found[name], one)


def test_of_more_draws_than_are_asked_for_evenly_spaced_ones_predict(tmp_path):
    log_probs = log_probs_of(20)
    chains = of_chains(tmp_path, log_probs[:, :6], most=8)
    chains.predictions(chains, "test")
    chains.keep(log_probs[:, 6:])
    chosen = [1, 4, 6, 9, 11, 14, 16, 19]
    assert chains.draws.predicting(8).tolist() == chosen
    found = chains.predictions(chains, "test").arrays["log_probs"]
    mean = np.exp(log_probs[:, chosen].astype(np.float64)).mean(axis=1)
    np.testing.assert_allclose(np.exp(found), mean, rtol=1e-6)
    assert chains.num_predicted == 6 + 8


def test_draws_of_numbers_stay_estimators(tmp_path):
    targets = np.arange(NUM_EXAMPLES, dtype=np.float32)
    gaussian = likelihoods.from_data("gaussian", targets, ())
    outputs = np.random.default_rng(0).normal(size=(NUM_CHAINS, 3, NUM_EXAMPLES)).astype("float32")
    chains = Chains(
        tmp_path, gaussian, targets, lambda one: {"loc": one, "scale": np.ones_like(one)}
    )
    chains.keep(outputs)
    found = chains.predictions(chains, "test")
    assert found.member_of is not None
    assert found.member_of.tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_array_equal(found.arrays["loc"], outputs.reshape(6, NUM_EXAMPLES))
    squares = chains.average_draw(chains, "test")["squared_error"]
    np.testing.assert_allclose(squares, ((outputs - targets) ** 2).mean(axis=(1, 2)), rtol=1e-5)
    second = found.of([1])
    np.testing.assert_array_equal(second.arrays["loc"], outputs[1])
    assert second.member_of is not None
    assert second.member_of.tolist() == [0, 0, 0]


def test_draws_that_would_take_too_much_memory_are_left_out(tmp_path, monkeypatch):
    log_probs = log_probs_of(10)
    monkeypatch.setattr(store, "MAX_BYTES", 4 * log_probs[:, 0].nbytes)
    chains = of_chains(tmp_path, log_probs)
    assert chains.draws.predicting(100).tolist() == [1, 4, 6, 9]
