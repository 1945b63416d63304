"""Members of several runs, chosen by what they say together, as one ensemble."""

import itertools
import json
import shutil
import types

import jax.export
import numpy as np
import pytest
from conftest import make_blobs, small_config
from public.runs import numbers

import ensemble
from ensemble import UserError
from ensemble.evaluation import greedy
from ensemble.evaluation.greedy import choose, loss
from ensemble.evaluation.subject import Subject
from ensemble.export import export

QUIET = {"show_progress": False}
CONFIGS = {
    "members": small_config(ensemble_size=3),
    "mlp": small_config(model="mlp", ensemble_size=2, seed=0, method="varied")
    | {"mlp.widths": "16", "varied.learning_rate_factor": "0.1,1"},
    "passes": small_config(model="mlp", ensemble_size=1, method="mc_dropout")
    | {"mlp.widths": "8", "mlp.dropout": 0.3, "mc_dropout.num_passes": 3},
    "snapshots": small_config(ensemble_size=1, method="snapshots") | {"snapshots.num_cycles": 2},
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
    return workdir, ensemble.select([runs / name for name in CONFIGS], workdir)


def log_densities_of(num_members, num_rows=40, seed=0):
    rng = np.random.default_rng(seed)
    return np.log(rng.uniform(0.02, 1, (num_members, num_rows)))


def test_the_first_rounds_take_the_member_that_helps_most():
    log_densities = log_densities_of(5)
    counts = choose(log_densities, [5])
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
    found = loss(log_densities, choose(log_densities, sizes))
    starts = np.cumsum([0, *sizes])
    for a, b in [*itertools.pairwise(starts), (0, 6), *((m, m + 1) for m in range(6))]:
        counts = np.zeros(6, int)
        counts[a:b] = 1
        assert found <= loss(log_densities, counts) + 1e-12


def test_densities_too_small_for_floating_point_are_compared_by_their_logarithms():
    log_densities = np.zeros((4, 4)) - 900 * np.eye(4)
    log_densities[0] -= 5
    counts = choose(log_densities, [4])
    assert counts[0] == 0
    assert (counts[1:] > 0).all()


def test_members_that_find_a_target_impossible_are_left_out_where_that_helps():
    with np.errstate(divide="ignore"):
        log_densities = np.log([[0.9, 0.9, 0.0], [0.5, 0.5, 0.5]])
        counts = choose(log_densities, [2])
    assert np.isfinite(loss(log_densities, counts))


@pytest.mark.check
def test_what_is_reported_is_what_the_workdir_predicts(runs, selection):
    workdir, report = selection
    found = report["selection"]
    assert sum(len(one["members"]) for one in found["runs"]) == report["num_members"]
    assert found["nll"] == pytest.approx(report["validation"]["scores"]["nll"]["value"], abs=1e-6)
    assert found["nll"] <= min(one["nll"] for one in found["runs"]) + 1e-9
    assert found["optimism"] == pytest.approx(found["cross_validated_nll"] - found["nll"])
    subject = Subject(str(workdir), data=make_blobs())
    inputs = subject.dataset.read("test", np.arange(subject.view.num_rows)).inputs
    predictor = ensemble.load(workdir)
    prediction = predictor(inputs)
    np.testing.assert_allclose(prediction.probs, np.exp(subject.view.log_probs), atol=1e-6)
    said = subject.predict(inputs)
    view = said.view(subject.likelihood, subject.test.targets)
    np.testing.assert_allclose(view.log_probs, subject.view.log_probs, atol=1e-5)
    nll = -subject.view.log_probs[np.arange(len(inputs)), subject.test.targets].mean()
    assert report["test"]["scores"]["nll"]["value"] == pytest.approx(nll, abs=1e-6)
    model = jax.export.deserialize(bytearray(export(predictor)))
    exported = model.call(inputs)
    np.testing.assert_allclose(exported["probs"], prediction.probs, atol=1e-5)
    np.testing.assert_allclose(exported["epistemic"], prediction.epistemic, atol=1e-5)


@pytest.mark.check
def test_an_evaluation_says_of_it_what_it_says_of_members(selection, runs, tmp_path):
    workdir, report = selection
    evaluation = ensemble.evaluate(
        workdir, tmp_path, "shift", compare=[runs / "members"], data=make_blobs(), **QUIET
    )
    scores = evaluation["test"]["scores"]
    assert scores["nll"]["value"] == pytest.approx(report["test"]["scores"]["nll"]["value"])
    assert len(scores["nll"]["members"]) == report["num_members"]
    codes = {one["code"] for one in evaluation["findings"]}
    assert "next_member.none" in codes  # Members that were chosen are no draw of others.
    assert "comparison.none" in codes


@pytest.mark.check
def test_runs_may_move_together_and_are_named_where_they_are_gone(selection, runs, tmp_path):
    inputs = make_blobs()["inputs"]
    expected = ensemble.load(selection[0])(inputs).probs
    shutil.copytree(runs, tmp_path / "moved")
    moved = tmp_path / "moved" / "selected"
    np.testing.assert_array_equal(ensemble.load(moved)(inputs).probs, expected)
    chosen = json.loads((moved / "selection.json").read_text())["runs"][0]["workdir"]
    shutil.rmtree(moved / chosen)
    with pytest.raises(UserError, match="not there"):
        ensemble.load(moved)
    other = next(name for name in CONFIGS if not chosen.endswith(name))
    shutil.copytree(runs / other, moved / chosen)
    with pytest.raises(UserError, match="another run"):
        ensemble.load(moved)


@pytest.mark.check
def test_a_run_that_goes_on_is_not_what_was_selected(runs, tmp_path):
    shutil.copytree(runs / "members", tmp_path / "run")
    ensemble.select([tmp_path / "run"], tmp_path / "selected")
    longer = CONFIGS["members"] | {"num_epochs": 5}
    ensemble.train(longer, make_blobs(), str(tmp_path / "run"), **QUIET)
    with pytest.raises(UserError, match="has gone on; select again"):
        ensemble.load(tmp_path / "selected")


@pytest.mark.check
def test_rows_that_were_chosen_by_calibrate_nothing(runs, tmp_path):
    workdirs = [runs / "members", runs / "mlp"]
    report = ensemble.select(workdirs, tmp_path / "selected", by="calibration")
    assert report["selection"]["by"] == "calibration"
    with pytest.raises(UserError, match="no calibration split"):
        ensemble.load(tmp_path / "selected", calibrated=True)
    evaluation = ensemble.evaluate(tmp_path / "selected", datasets=[], data=make_blobs(), **QUIET)
    assert "reason" in evaluation["conformal"]["sets"]


@pytest.mark.check
def test_what_runs_have_noted_is_kept_and_what_was_chosen_is_said(runs, selection):
    _, report = selection
    notes = json.loads((runs / "snapshots" / "report.json").read_text())["notes"]
    used = {one["workdir"]: one for one in report["selection"]["runs"] if one["members"]}
    is_used = str(runs / "snapshots") in used
    assert all(any(note in one for one in report["notes"]) for note in notes) or not is_used
    weights = [weight for one in used.values() for weight in one["weights"]]
    assert sum(weights) == pytest.approx(1)
    text = repr(report)
    for workdir, one in used.items():
        line = next(line for line in text.splitlines() if workdir in line)
        assert f"{one['members'][0]} ({one['weights'][0]:.2f})" in line


@pytest.mark.check
def test_members_of_a_posterior_are_members_here(runs, tmp_path):
    few = {"num_chains": 2, "sampler.num_warmup": 10, "sampler.num_samples": 10}
    chains = {"model": "tiny", "method": "hmc", "num_devices": 1, **few}
    ensemble.train(chains, make_blobs(), str(tmp_path / "hmc"), **QUIET)
    workdirs = [tmp_path / "hmc", runs / "members"]
    report = ensemble.select(workdirs, tmp_path / "selected")
    evaluation = ensemble.evaluate(tmp_path / "selected", datasets=[], data=make_blobs(), **QUIET)
    said = " ".join(one["text"] for one in evaluation["findings"])
    assert "chain" not in said
    assert "selected from" in said
    assert evaluation["selection"]["runs"] == report["selection"]["runs"]


@pytest.mark.check
def test_it_is_no_run_to_train_on_or_to_select_from(selection, runs, tmp_path):
    workdir, _ = selection
    with pytest.raises(UserError, match="selects members of other runs"):
        ensemble.train(CONFIGS["members"], make_blobs(), str(workdir), **QUIET)
    with pytest.raises(UserError, match="is a selection itself"):
        ensemble.select([workdir], tmp_path / "out")
    with pytest.raises(UserError, match="has a run already"):
        ensemble.select([runs / "members"], workdir)
    config = small_config(init_from=str(workdir))
    with pytest.raises(UserError, match="name one of these runs"):
        ensemble.train(config, make_blobs(), str(tmp_path / "tuned"), **QUIET)
    damaged = tmp_path / "damaged"
    shutil.copytree(workdir, damaged)
    content = json.loads((damaged / "selection.json").read_text())
    content["runs"][0]["weights"][0] = 0.5
    (damaged / "selection.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="checksum"):
        ensemble.load(damaged)
    (damaged / "selection.json").write_text('{"runs": [{}]}')
    with pytest.raises(UserError, match="select again"):
        ensemble.load(damaged)
    with pytest.raises(UserError, match="cannot be distilled"):
        ensemble.distill(workdir, str(tmp_path / "student"))
    assert not (tmp_path / "student").exists()


@pytest.mark.check
def test_runs_that_are_no_ensemble_are_refused(runs, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match="are one run"):
        ensemble.select([runs / "members", runs / "members"], out)
    with pytest.raises(UserError, match="only members of config"):
        ensemble.select([runs / "members"], out, by="held_out")
    with pytest.raises(UserError, match="must be one of validation, calibration, held_out"):
        ensemble.select([runs / "members"], out, by="test")
    other = small_config(seed=1)
    ensemble.train(other, make_blobs(), str(tmp_path / "other_split"), **QUIET)
    with pytest.raises(UserError, match="other splits"):
        ensemble.select([runs / "members", tmp_path / "other_split"], out)
    without = small_config(hold_out=False)
    ensemble.train(without, make_blobs(), str(tmp_path / "without"), **QUIET)
    with pytest.raises(UserError, match="no validation split"):
        ensemble.select([tmp_path / "without"], out)
    assert not out.exists()


@pytest.mark.check
def test_of_numbers_a_selection_is_the_weighted_mixture(tmp_path):
    for name, rate in (("slow", 0.003), ("fast", 0.03)):
        config = small_config(likelihood="gaussian", optimizer="adam", learning_rate=rate)
        ensemble.train(config, numbers(), str(tmp_path / name), **QUIET)
    report = ensemble.select([tmp_path / "slow", tmp_path / "fast"], tmp_path / "selected")
    subject = Subject(str(tmp_path / "selected"), data=numbers())
    inputs = subject.dataset.read("test", np.arange(subject.view.num_rows)).inputs
    predictor = ensemble.load(tmp_path / "selected")
    prediction = predictor(inputs)
    mean = np.tensordot(predictor.estimator_weights, prediction.member_means, axes=1)
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-5)
    exported = jax.export.deserialize(bytearray(export(predictor))).call(inputs)
    np.testing.assert_allclose(exported["mean"], prediction.mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(exported["quantiles"], prediction.quantiles, rtol=1e-3, atol=1e-3)
    assert report["selection"]["nll"] <= min(one["nll"] for one in report["selection"]["runs"])


def test_what_all_runs_have_noted_is_told_once():
    def run(name, *notes):
        return types.SimpleNamespace(
            work=types.SimpleNamespace(path=name), report={"notes": list(notes)}
        )

    runs = [run("a", "few rows", "own of a"), run("b", "few rows"), run("c", "of one left out")]
    weights = [np.array(one) for one in ([0.5], [0.5], [0.0])]
    assert greedy._notes(runs, weights) == ["few rows", "a: own of a"]
    assert greedy._notes(runs[:1], weights[:1]) == ["a: few rows", "a: own of a"]
