import numpy as np
import pytest
import scipy.special
from run_parts import of_classes

import ensemble
from ensemble.data import load_dataset
from ensemble.priors import parse_prior
from ensemble.recommendation import recommend as recommendation
from ensemble.recommendation.watch_task import Factorisation

NUM_DRAWS = 7


@pytest.fixture(scope="module")
def dataset():
    return load_dataset("watches:30x20")


@pytest.fixture(scope="module")
def draws():
    rng = np.random.default_rng(0)
    shapes = {
        "user_embeddings": (30, 3),
        "user_bias": (30,),
        "movie_embeddings": (20, 3),
        "movie_bias": (20,),
    }
    return {
        name: rng.normal(size=(NUM_DRAWS, *shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


@pytest.fixture(scope="module")
def probabilities(draws):
    """[K, N, M], in float64."""
    wide = {name: leaf.astype(np.float64) for name, leaf in draws.items()}
    logits = wide["user_embeddings"] @ wide["movie_embeddings"].swapaxes(1, 2)
    logits += wide["user_bias"][:, :, None] + wide["movie_bias"][:, None]
    return scipy.special.expit(logits)


def make_task(dataset):
    """The factorisation of a data set by three factors."""
    likelihood = of_classes(dataset.class_names)
    return Factorisation(dataset, likelihood, num_factors=3)


def test_probabilities_are_means_over_draws(draws, probabilities):
    users = np.array([3, 11])
    np.testing.assert_allclose(
        recommendation.watch_probabilities(draws, users), probabilities[:, users].mean(0), rtol=1e-5
    )


def test_each_draw_chooses_its_likeliest_movie_that_was_not_watched(dataset, draws, probabilities):
    watched = dataset.watches.watched[5] == 1
    allowed = np.where(watched, -1, probabilities[:, 5])
    chosen = recommendation.choose_first(draws, dataset, 5)
    np.testing.assert_array_equal(chosen, allowed.argmax(axis=1))
    assert not watched[chosen].any()
    # Watched movies would have been chosen, were they allowed.
    assert watched[probabilities[:, 5].argmax(axis=1)].any()


def test_a_new_user_or_movie_is_drawn_from_the_prior_for_each_draw(draws):
    priors = parse_prior("*bias=normal(0.5), *=normal(2)")
    many = {name: np.repeat(leaf, 200, axis=0) for name, leaf in draws.items()}
    for kind, number in (("user", 30), ("movie", 20)):
        found = recommendation.with_new(many, priors, kind, seed=0)
        again = recommendation.with_new(many, priors, kind, seed=1)
        for part, scale in (("bias", 0.5), ("embeddings", 2)):
            name = f"{kind}_{part}"
            np.testing.assert_array_equal(found[name][:, :-1], many[name])
            new = found[name][:, number]
            assert abs(new.mean()) < 0.15 * scale
            assert new.std() == pytest.approx(scale, rel=0.1)
            assert not np.array_equal(new, again[name][:, number])
        assert found.keys() == draws.keys()


def test_models_are_scored_on_what_was_held_out(dataset, draws, probabilities):
    task = make_task(dataset)
    first = {name: leaf[0] for name, leaf in draws.items()}
    scores = recommendation.score_models(task, draws, first)
    assert scores.keys() == {"posterior", "map", "biases", "popularity"}
    pairs, labels = dataset.splits["test"]
    for name, p in (("posterior", probabilities.mean(axis=0)), ("map", probabilities[0])):
        of_pairs = p[tuple(pairs.T)]
        expected = np.mean(np.log(np.where(labels == 1, of_pairs, 1 - of_pairs)))
        assert scores[name]["log_likelihood"] == pytest.approx(expected, rel=1e-5)
        planted = dataset.watches.truth.probabilities(slice(None))
        error = np.sqrt(np.mean((p - planted) ** 2))
        assert scores[name]["rmse"] == pytest.approx(error, rel=1e-5)
    # Fitted to the data, and not to noise.
    assert scores["biases"]["auc"] > scores["posterior"]["auc"]
    assert scores["biases"]["rmse"] < scores["posterior"]["rmse"]
    assert scores["popularity"]["recall_at_20"] == 1  # There are but 20 movies.


@pytest.mark.check
def test_the_posterior_recovers_the_planted_probabilities_best():
    config = {
        "dataset": "watches:160x80",
        "model": "matrix_factorisation",
        "num_factors": 2,
        "method": "hmc",
        "prior": "normal(1)",
        "num_chains": 2,
        "num_devices": 2,
        "log_every_steps": 100,
        "sampler.step_size": 0.05,
        "sampler.num_leapfrog_steps": 16,
        "sampler.num_warmup": 100,
        "sampler.num_samples": 100,
    }
    report = ensemble.train(config, show_progress=False).report
    held_out = report["recommendation"]["held_out"]
    errors = [held_out[name]["rmse"] for name in ("posterior", "map", "biases", "popularity")]
    assert errors == sorted(errors)
    assert errors[0] < 0.9 * errors[2]
    assert report["posterior"]["rhat_max"] < 1.2
