"""Snapshots: cycles of the learning rate, and the sets that they leave."""

import jax
import numpy as np
import pytest
from conftest import small_config

import ensemble
from ensemble import UserError
from ensemble.fitted import OnDisk
from ensemble.methods.members.snapshots import cycle_ends, cyclical_cosine, fitted

CONFIG = small_config(method="snapshots", ensemble_size=3, num_epochs=4) | {
    "snapshots.num_cycles": 2
}
QUIET = {"show_progress": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run: its workdir, and its result."""
    from small_runs import make_blobs

    workdir = tmp_path_factory.mktemp("snapshots")
    return workdir, ensemble.train(CONFIG, make_blobs(), str(workdir), **QUIET)


@pytest.mark.parametrize(("num_steps", "num_cycles"), [(10, 2), (10, 3), (7, 7), (1000, 6)])
def test_cycles_are_as_long_as_each_other_to_a_step(num_steps, num_cycles):
    ends = cycle_ends(num_steps, num_cycles)
    lengths = np.diff([0, *ends])
    assert ends[-1] == num_steps
    assert lengths.max() - lengths.min() <= 1
    rates = np.array([*map(cyclical_cosine(0.1, num_steps, num_cycles), range(num_steps))])
    starts = [0, *ends[:-1]]
    for start, length in zip(starts, lengths, strict=True):
        expected = 0.05 * (1 + np.cos(np.pi * np.arange(length) / length))
        np.testing.assert_allclose(rates[start : start + length], expected, rtol=1e-5, atol=1e-8)


@pytest.mark.check
def test_a_member_predicts_with_the_mean_of_its_sets(run, blobs):
    workdir, result = run
    predictor = ensemble.load(workdir)
    assert predictor.description == "6 snapshots of 3 members"
    np.testing.assert_array_equal(predictor.fitted.member_of, [0, 0, 1, 1, 2, 2])
    of_sets = np.exp(predictor.member_arrays(blobs["inputs"])["log_probs"])
    of_members = predictor.predict_members(blobs["inputs"])
    assert of_members.num_members == 3
    expected = of_sets.reshape(3, 2, *of_sets.shape[1:]).mean(axis=1)
    np.testing.assert_allclose(np.exp(of_members.arrays["log_probs"]), expected, atol=1e-6)
    np.testing.assert_allclose(predictor(blobs["inputs"]).probs, expected.mean(axis=0), atol=1e-6)
    assert len(result.report["test"]["scores"]["nll"]["members"]) == 3


def test_the_last_set_is_where_training_ended_and_the_first_is_not(run):
    _, result = run
    sets = result.predictor.fitted.sets["params"]["Dense_0"]["kernel"]
    assert not np.allclose(sets[0], sets[1])
    last = result.predictor.fitted.last_variables()["params"]["Dense_0"]["kernel"]
    np.testing.assert_array_equal(last, sets[1::2])


@pytest.mark.check
def test_an_evaluation_counts_members_and_not_sets(run, blobs):
    workdir, result = run
    found = ensemble.evaluate(workdir, data=blobs, datasets=["uniform"], **QUIET)
    assert found["test"] == result.report["test"]
    assert found["members"] == [0, 1, 2]
    assert len(found["next_member"]["sizes"]) == 3
    assert any("ensemble of 3" in one["text"] for one in found["findings"])


@pytest.mark.check
def test_other_members_join_with_as_many_sets(blobs, tmp_path):
    ensemble.train(CONFIG, blobs, str(tmp_path), **QUIET)
    before = ensemble.load(tmp_path).fitted
    ensemble.train({**CONFIG, "ensemble_size": 5}, blobs, str(tmp_path), **QUIET)
    after = ensemble.load(tmp_path).fitted
    assert (after.num_sets, after.num_members) == (10, 5)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[:6]), before.sets, after.sets)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"num_epochs": 8}, "the cycles of the run in"),
        ({"snapshots.num_cycles": 4}, "snapshots.num_cycles: 2 -> 4"),
    ],
)
def test_a_run_keeps_its_cycles(run, blobs, changes, part):
    with pytest.raises(UserError) as error:
        ensemble.train({**CONFIG, **changes}, blobs, str(run[0]), **QUIET)
    assert part in str(error.value)


def test_nothing_predicts_before_the_first_cycle_has_ended():
    with pytest.raises(UserError, match="have left no snapshot yet"):
        fitted(OnDisk({}, {"status": np.zeros(3)}, {"step": 4}, [0, 1, 2], None))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"num_epochs": 0, "num_steps": 1}, "config.snapshots.num_cycles=2"),
        ({"schedule": "cosine"}, "config.schedule='cosine'"),
        ({"early_stopping_epochs": 3}, "config.early_stopping_epochs=3"),
        ({"snapshots.num_cycles": 1}, "config.snapshots.num_cycles=1"),
    ],
)
def test_what_does_not_suit_cycles_is_refused(blobs, changes, part):
    with pytest.raises(UserError) as error:
        ensemble.train({**CONFIG, **changes}, blobs, **QUIET)
    assert part in str(error.value)
    assert "\n" not in str(error.value)
