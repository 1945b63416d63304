"""Members of several runs, chosen by what they say together, as one ensemble."""

import itertools
import json
import shutil

import numpy as np
import pytest
from conftest import make_blobs, small_config

import ensemble
from ensemble import InputError
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.selection import loss, select

QUIET = {"show_progress": False}
CONFIGS = {
    "members": small_config(ensemble_size=3),
    "mlp": small_config(model="mlp", ensemble_size=2, seed=0, method="hyper_ensemble")
    | {"mlp.widths": "16", "hyper_ensemble.learning_rate_factor": "0.1,1"},
    "passes": small_config(model="mlp", ensemble_size=1, method="mc_dropout")
    | {"mlp.widths": "8", "dropout": 0.3, "num_draws": 3},
    "snapshots": small_config(ensemble_size=1, method="snapshot_ensemble")
    | {"snapshot_ensemble.num_cycles": 2},
}
CONFIGS["passes"] |= {"num_devices": 1}
CONFIGS["snapshots"] |= {"num_devices": 1}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of finished runs, unlike in network and method, on the same data."""
    folder = tmp_path_factory.mktemp("runs")
    for name, config in CONFIGS.items():
        ensemble.train(config, make_blobs(), str(folder / name), **QUIET)
    return folder


@pytest.fixture(scope="module")
def selection(runs):
    """A workdir that selects from all of them, and its report."""
    workdir = runs / "selected"
    return workdir, ensemble.select_members([runs / name for name in CONFIGS], workdir)


def log_densities_of(num_members, num_rows=40, seed=0):
    rng = np.random.default_rng(seed)
    return np.log(rng.uniform(0.02, 1, (num_members, num_rows)))


def test_the_first_rounds_take_the_member_that_helps_most():
    log_densities = log_densities_of(5)
    counts = select(log_densities, [5])
    rounds = np.zeros(5, int)
    found = []
    for _ in range(100):
        candidates = [rounds + np.eye(5, dtype=int)[m] for m in range(5)]
        losses = [-np.log(one @ np.exp(log_densities) / one.sum()).mean() for one in candidates]
        rounds = candidates[int(np.argmin(losses))]
        found.append((min(losses), rounds.sum(), rounds))
    best = min(found, key=lambda one: one[:2])
    assert loss(log_densities, counts) <= best[0] + 1e-12
    np.testing.assert_array_equal(counts, best[2])


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_is_given_is_better_on_the_rows_that_decide(seed):
    sizes = [1, 3, 2]
    log_densities = log_densities_of(6, num_rows=7, seed=seed)
    found = loss(log_densities, select(log_densities, sizes))
    starts = np.cumsum([0, *sizes])
    for a, b in [*itertools.pairwise(starts), (0, 6), *((m, m + 1) for m in range(6))]:
        counts = np.zeros(6, int)
        counts[a:b] = 1
        assert found <= loss(log_densities, counts) + 1e-12


def test_densities_too_small_for_floating_point_are_compared_by_their_logarithms():
    log_densities = np.zeros((4, 4)) - 900 * np.eye(4)
    log_densities[0] -= 5
    counts = select(log_densities, [4])
    assert counts[0] == 0
    assert (counts[1:] > 0).all()


def test_members_that_find_a_target_impossible_are_left_out_where_that_helps():
    with np.errstate(divide="ignore"):
        log_densities = np.log([[0.9, 0.9, 0.0], [0.5, 0.5, 0.5]])
        counts = select(log_densities, [2])
    assert np.isfinite(loss(log_densities, counts))


@pytest.mark.check
def test_the_workdir_predicts_what_is_reported(runs, selection):
    workdir, report = selection
    found = report["selection"]
    assert sum(len(one["members"]) for one in found["runs"]) == report["num_members"]
    nll = report["metrics"]["validation"]["nll"]["value"]
    assert found["nll"] == pytest.approx(nll, abs=1e-6)
    assert found["nll"] <= min(one["nll"] for one in found["runs"]) + 1e-9
    run = EvaluatedRun(str(workdir), data=make_blobs())
    inputs = run.dataset.read("test", np.arange(len(run.test.targets))).inputs
    stored = run.test.predictive.probs
    np.testing.assert_allclose(ensemble.load(workdir)(inputs).probs, stored, atol=1e-5)
    weights = [one for entry in found["runs"] for one in entry["weights"]]
    assert sum(weights) == pytest.approx(1)


@pytest.mark.check
def test_runs_may_move_together_and_are_named_if_missing(selection, runs, tmp_path):
    inputs = make_blobs()["inputs"]
    expected = ensemble.load(selection[0])(inputs).probs
    shutil.copytree(runs, tmp_path / "moved")
    moved = tmp_path / "moved" / "selected"
    np.testing.assert_array_equal(ensemble.load(moved)(inputs).probs, expected)
    report = json.loads((moved / "results.json").read_text())
    chosen = next(one for one in report["selection"]["runs"] if one["members"])["workdir"]
    shutil.rmtree(moved / chosen)
    with pytest.raises(InputError, match="not there"):
        ensemble.load(moved)
    other = next(name for name in CONFIGS if not chosen.endswith(name))
    shutil.copytree(runs / other, moved / chosen)
    with pytest.raises(InputError, match="was replaced"):
        ensemble.load(moved)


@pytest.mark.check
def test_a_selection_is_no_run_to_train_or_to_select_from(selection, runs, tmp_path):
    workdir, _ = selection
    with pytest.raises(InputError, match="holds a selection of members"):
        ensemble.train(CONFIGS["members"], make_blobs(), str(workdir), **QUIET)
    with pytest.raises(InputError, match="is a selection, or still in training"):
        ensemble.select_members([workdir], tmp_path / "out")
    with pytest.raises(InputError, match="has a run already"):
        ensemble.select_members([runs / "members"], workdir)
    with pytest.raises(InputError, match="selects members of several runs"):
        ensemble.distill(workdir, str(tmp_path / "student"), {}, make_blobs())


@pytest.mark.check
def test_runs_that_are_no_ensemble_are_refused(runs, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(InputError, match="only members of config"):
        ensemble.select_members([runs / "members"], out, by="held_out")
    with pytest.raises(InputError, match="must be one of validation, held_out"):
        ensemble.select_members([runs / "members"], out, by="test")
    ensemble.train(small_config(seed=1), make_blobs(), str(tmp_path / "other_split"), **QUIET)
    with pytest.raises(InputError, match="other splits"):
        ensemble.select_members([runs / "members", tmp_path / "other_split"], out)
    assert not out.exists()
