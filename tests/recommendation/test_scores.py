"""Scores of draws and simpler models against hand-worked cases."""

import numpy as np
import pytest
import scipy.special
from run_parts import mesh_of, of_classes

from ensemble.data import load_dataset
from ensemble.recommendation import factorisation
from ensemble.recommendation.factorisation import Factorisation, MatrixFactorisation


def test_recall_of_a_hand_worked_case():
    best = np.array([[1, 2], [3, 2], [0, 1], [4, 3]])
    # User 0 is recommended 1 and 2, user 1 movies 3 and 2, user 2 movies 0 and 1; 3 has nothing.
    relevant = np.zeros((4, 5), bool)
    relevant[[0, 0, 1, 2, 2, 2], [2, 4, 1, 0, 1, 2]] = True
    recalls = factorisation.recalls(best, relevant)
    np.testing.assert_allclose(recalls, [1 / 2, 0, 1])  # Three relevant: two found is all of 2.


def test_models_are_scored_on_what_was_held_out(monkeypatch):
    monkeypatch.setattr(factorisation, "NUM_RECOMMENDED", 5)
    dataset = load_dataset("watches:30x20")
    rng = np.random.default_rng(0)
    network = MatrixFactorisation((30, 20), 3, 2)
    task = Factorisation(dataset, network, of_classes(dataset.class_names))
    shapes = task.params_shapes()
    draws = {
        name: rng.normal(size=(7, *one.shape)).astype(np.float32) for name, one in shapes.items()
    }
    logits = np.einsum("knd,kmd->knm", draws["user_embeddings"], draws["movie_embeddings"])
    logits += draws["user_bias"][:, :, None] + draws["movie_bias"][:, None]
    mesh = mesh_of(1, 2)
    biases = task.biases(mesh)
    maximum = {name: leaf[0] for name, leaf in draws.items()}
    held_out = task.draw_report(mesh)(draws, maximum)["recommendation"]["held_out"]
    assert [*held_out] == ["posterior", "map", "biases", "popularity"]
    pairs, labels = dataset.splits["test"]
    p = scipy.special.expit(logits)
    for name, of_model in (("posterior", p.mean(axis=0)), ("map", p[0])):
        of_pairs = of_model[tuple(pairs.T)]
        expected = np.mean(np.log(np.where(labels == 1, of_pairs, 1 - of_pairs)))
        assert held_out[name]["log_likelihood"] == pytest.approx(expected, rel=1e-5)
        recalled = []
        for user in range(30):
            relevant = {*pairs[(pairs[:, 0] == user) & (labels == 1), 1]}
            unseen = np.flatnonzero(dataset.signs[user] <= 0)
            best = unseen[np.argsort(-of_model[user, unseen])][:5]
            recalled += [len(relevant & {*best}) / min(5, len(relevant))] * bool(relevant)
        assert held_out[name]["recall_at_5"] == pytest.approx(np.mean(recalled), abs=1e-6)
    # Fitted to the data, and not to noise.
    assert held_out["biases"]["auc"] > held_out["posterior"]["auc"]
    slopes = (dataset.signs > 0) - (dataset.signs != 0) * scipy.special.expit(
        biases["user_bias"][:, None] + biases["movie_bias"]
    )
    np.testing.assert_allclose(slopes.sum(axis=1), biases["user_bias"], atol=0.05)
    np.testing.assert_allclose(slopes.sum(axis=0), biases["movie_bias"], atol=0.05)
