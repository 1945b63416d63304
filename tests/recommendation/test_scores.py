"""Scores of draws and simpler models against hand-worked cases."""

import numpy as np
import pytest
import scipy.special
from run_parts import of_classes

from ensemble.data import load_dataset
from ensemble.recommendation import scores
from ensemble.recommendation.factorisation import Factorisation, MatrixFactorisation


def test_recall_of_a_hand_worked_case():
    values = np.array([[9.0, 8, 7, 6, 5], [1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [1, 2, 3, 4, 5]])
    seen = np.zeros((4, 5), bool)
    seen[0, 0] = seen[1, 4] = True
    # User 0 is recommended 1 and 2, user 1 movies 3 and 2, user 2 movies 0 and 1; 3 has nothing.
    relevant = np.zeros((4, 5), bool)
    relevant[[0, 0, 1, 2, 2, 2], [2, 4, 1, 0, 1, 2]] = True
    recalls = scores.recalls(values, seen, relevant, k=2)
    np.testing.assert_allclose(recalls, [1 / 2, 0, 1])  # Three relevant: two found is all of 2.
    np.testing.assert_array_equal(scores.recalls(values, seen, relevant, k=20), 1)
    # Of five that tie, each is among two of them in 2 of 5 orders.
    one = np.eye(4, 5, dtype=bool)
    np.testing.assert_allclose(scores.recalls(0 * values, seen & False, one, k=2), 0.4)


def test_recall_agrees_with_a_loop_over_users():
    rng = np.random.default_rng(1)
    shape = (600, 50)
    values = rng.normal(size=shape)
    seen = rng.random(shape) < 0.3
    relevant = ~seen & (rng.random(shape) < 0.05)
    expected = []
    for user in np.flatnonzero(relevant.any(axis=1)):
        wanted = {*np.flatnonzero(relevant[user])}
        unseen = [movie for movie in np.argsort(-values[user]) if not seen[user, movie]]
        expected.append(len(wanted & set(unseen[:5])) / min(5, len(wanted)))
    np.testing.assert_allclose(scores.recalls(values, seen, relevant, k=5), expected)


def test_models_are_scored_on_what_was_held_out():
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
    first = {name: leaf[0] for name, leaf in draws.items()}
    section = scores.section(task, draws, first)
    held_out = section["held_out"]
    choices = section["first_choices"]
    assert [*held_out] == ["posterior", "map", "biases", "popularity"]
    pairs, labels = dataset.splits["test"]
    p = scipy.special.expit(logits)
    for name, of_model in (("posterior", p.mean(axis=0)), ("map", p[0])):
        of_pairs = of_model[tuple(pairs.T)]
        expected = np.mean(np.log(np.where(labels == 1, of_pairs, 1 - of_pairs)))
        assert held_out[name]["log_likelihood"] == pytest.approx(expected, rel=1e-5)
    # Fitted to the data, and not to noise.
    assert held_out["biases"]["auc"] > held_out["posterior"]["auc"]
    assert held_out["popularity"]["recall_at_20"] == 1  # There are but 20 movies.
    most = dataset.interactions.user_ids.index(choices["most"]["user"])
    seen = dataset.seen(most)
    assert seen.sum() == choices["most"]["num_watched"]
    chosen = np.where(seen, -np.inf, logits[:, most]).argmax(axis=1)
    titles = dataset.interactions.items["title"][chosen]
    assert choices["most"]["titles"] == titles.value_counts().to_dict()
