"""A network that learns from an ensemble: as a task, and as a whole run."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tfds_sets
from run_parts import config_of, report_of, task_of, validated
from small_runs import small_config
from written_runs import write_run

import ensemble
from ensemble import UserError
from ensemble.likelihoods.dirichlet import Dirichlet
from ensemble.predictor import load
from ensemble.report.text import format_table
from ensemble.run.distill import student_config
from ensemble.scoring.sections import values_in
from ensemble.tasks.distillation import teacher as teachers

KEY = jax.random.key(3)
STUDENT = {"num_epochs": 40, "eval_every_epochs": 20, "log_every_steps": 100}


def make(run, data, **overrides):
    """The task as the loop makes it."""
    config = small_config(teacher=str(run), ensemble_size=1, **overrides)
    return task_of(config, data)


@pytest.mark.soak
def test_members_learn_what_the_teacher_says_and_not_the_targets(blobs_run, blobs):
    task = make(blobs_run, blobs)
    inputs, targets = task.dataset.read("train", np.arange(5))
    variables = task.init_variables(KEY)
    found, aux = task.log_likelihood(variables, task.prepare(jnp.asarray(inputs)), targets)
    same, _ = task.log_likelihood(variables, jnp.asarray(inputs), (targets + 1) % 3)
    np.testing.assert_array_equal(found, same)
    probs = load(blobs_run)(inputs).probs
    log_probs = task.predict(variables, jnp.asarray(inputs))["log_probs"]
    np.testing.assert_allclose(found, (probs * log_probs).sum(axis=-1), rtol=1e-5)
    np.testing.assert_array_equal(aux.predicted["log_probs"], log_probs)


@pytest.mark.check
def test_many_draws_are_represented_by_some(blobs_run, blobs, monkeypatch):
    task = make(blobs_run, blobs)
    inputs = jnp.asarray(task.dataset.read("train", np.arange(5)).inputs)
    members = load(blobs_run)(inputs).member_log_probs
    monkeypatch.setattr(teachers, "MAX_NETWORKS", 2)
    found = task.teacher.function()(inputs)
    assert found["member_log_probs"].shape == (2, 5, 3)
    np.testing.assert_allclose(found["member_log_probs"], members[[0, 3]], rtol=1e-4, atol=1e-5)


def test_a_teacher_that_no_program_can_hold_is_refused(blobs_run, blobs, monkeypatch):
    """A program's constants are below 2 GB; of many networks only some count."""
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(load(blobs_run).fitted.sets))
    monkeypatch.setattr(teachers, "_MAX_BYTES", num_bytes - 1)
    with pytest.raises(UserError, match=r"4 networks.*fewer"):
        make(blobs_run, blobs)
    monkeypatch.setattr(teachers, "MAX_NETWORKS", 3)
    make(blobs_run, blobs)


@pytest.fixture(scope="module")
def student(blobs_run, blobs, tmp_path_factory):
    """The workdir and the result of a Dirichlet that learned from the blobs' ensemble."""
    workdir = str(tmp_path_factory.mktemp("student") / "run")
    config = {**STUDENT, "likelihood": "dirichlet"}
    return workdir, ensemble.distill(blobs_run, workdir, config, blobs, show_progress=False)


@pytest.mark.check
def test_a_student_predicts_as_its_teacher(student, blobs_run, blobs):
    report = student[1].report
    found = report["distillation"]
    of_teacher = report_of(blobs_run)["test"]
    assert found["split"] == "test"
    assert found["teacher"]["num_networks"] == 4
    assert found["teacher"]["scores"]["nll"] == pytest.approx(
        of_teacher["scores"]["nll"]["value"], 1e-5
    )
    assert found["mean_member"]["nll"] == pytest.approx(
        np.mean(of_teacher["scores"]["nll"]["members"]), 1e-5
    )
    assert found["student"]["scores"] == values_in(report["test"])
    low, high = found["nll_over_mean_member"]
    assert low < found["student"]["scores"]["nll"] - found["mean_member"]["nll"] < high
    assert found["speedup"] == pytest.approx(
        found["student"]["examples_per_second"] / found["teacher"]["examples_per_second"]
    )
    inputs = blobs["inputs"]
    difference = load(student[0])(inputs).probs - load(blobs_run)(inputs).probs
    assert np.abs(difference).mean() < 0.03


@pytest.mark.check
def test_a_dirichlet_tells_what_members_disagree_on(student, blobs_run, blobs):
    workdir, result = student
    assert result.report["distillation"]["rank_correlation"]["epistemic"] > 0.5
    taught, learned = load(blobs_run)(blobs["inputs"]), load(workdir)(blobs["inputs"])
    np.testing.assert_allclose(learned.epistemic.mean(), taught.epistemic.mean(), rtol=0.4)
    np.testing.assert_allclose(learned.total, learned.aleatoric + learned.epistemic, rtol=1e-5)
    exported = load(workdir).function(jnp.asarray(blobs["inputs"]))
    np.testing.assert_allclose(exported["epistemic"], learned.epistemic, rtol=1e-3, atol=1e-5)


@pytest.mark.soak
def test_a_student_s_workdir_is_as_any_other(student, blobs_run, blobs):
    workdir, result = student
    assert load(workdir).likelihood.name == Dirichlet.name
    assert report_of(workdir)["distillation"]["student"]["num_networks"] == 1
    again = ensemble.distill(
        blobs_run, workdir, {**STUDENT, "likelihood": "dirichlet"}, blobs, show_progress=False
    )
    assert again.report["test"] == result.report["test"]
    evaluation = ensemble.evaluate(workdir, datasets=[], data=blobs)
    found, report = values_in(evaluation["test"]), result.report["test"]
    assert found["nll"] == pytest.approx(report["scores"]["nll"]["value"], 1e-5)
    assert found["epistemic"] == pytest.approx(report["scores"]["epistemic"]["value"], 1e-5)
    assert found["epistemic"] > 0


@pytest.mark.soak
def test_another_teacher_is_noticed(student, blobs, tmp_path):
    shutil.copytree(student[0], tmp_path / "run")
    ensemble.train(small_config(seed=0, num_epochs=1), data=blobs, workdir=str(tmp_path / "other"))
    for teacher in (str(tmp_path / "other"), ""):
        config = config_of(student[0]) | {"teacher": teacher}
        config["likelihood"] = config["likelihood"] if teacher else "categorical"
        with pytest.raises(UserError, match=r"another (ensemble|configuration)"):
            ensemble.train(config, data=blobs, workdir=str(tmp_path / "run"))


@pytest.mark.soak
def test_the_number_of_devices_changes_no_result(blobs_run, blobs):
    reports = [
        ensemble.distill(
            blobs_run, None, {"num_epochs": 2, "num_devices": number}, blobs, show_progress=False
        ).report
        for number in (1, 3)
    ]
    one, three = (report["test"]["scores"]["nll"]["value"] for report in reports)
    assert one == pytest.approx(three, rel=1e-4)


@pytest.mark.check
def test_a_mixture_of_numbers_is_learned(blobs, tmp_path):
    """Without a held-out split there are no scores to lay beside each other."""
    rng = np.random.default_rng(0)
    inputs = blobs["inputs"]
    data = {"inputs": inputs, "targets": inputs @ rng.normal(size=6) + rng.normal(size=len(inputs))}
    config = small_config(likelihood="gaussian", hold_out=False, optimizer="adam", num_epochs=10)
    teacher = str(tmp_path / "run")
    ensemble.train(config, data, teacher, show_progress=False)
    result = ensemble.distill(teacher, None, {"num_epochs": 40}, data, show_progress=False)
    found = result.report["distillation"]
    assert found.keys() == {"teacher_identity", "teacher", "student", "speedup"}
    table = format_table(result.report)
    assert "times as fast" in table
    taught, learned = load(teacher)(inputs), result.predictor(inputs)
    assert np.corrcoef(taught.mean, learned.mean)[0, 1] > 0.97
    np.testing.assert_allclose(
        learned.standard_deviation.mean(), taught.standard_deviation.mean(), rtol=0.2
    )


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({"seed": 1}, "has learned other data"),
        ({"likelihood": "student_t"}, "is for numbers"),
        ({"teacher": "/nowhere"}, r"config.teacher='/nowhere': /nowhere"),
        ({"label_smoothing": 0.1}, "labels.*config.teacher"),
    ],
)
def test_what_cannot_be_learned_is_refused(overrides, line, blobs_run, blobs):
    with pytest.raises(UserError, match=line):
        ensemble.distill(blobs_run, None, overrides, blobs)


@pytest.mark.soak
@pytest.mark.soak
def test_the_student_of_a_posterior_is_trained_as_strangers_data_are(blobs, tmp_path):
    config = {"model": "logistic_regression", "method": "hmc", "num_chains": 1}
    config |= {"sampler.num_warmup": 2, "sampler.num_samples": 10}
    ensemble.train(config, blobs, str(tmp_path), show_progress=False)
    found = student_config(tmp_path, {})
    assert (found["model"], found["method"]) == ("logistic_regression", "sgd")
    assert (found["optimizer"], found["learning_rate"], found["num_epochs"]) == ("adam", 1e-3, 100)
    found = student_config(tmp_path, {"learning_rate": 0.1, "num_steps": 3})
    assert found.keys().isdisjoint({"optimizer", "num_epochs"})
    report = ensemble.distill(tmp_path, None, {"num_epochs": 1}, blobs, show_progress=False).report
    assert report["distillation"]["teacher"]["num_networks"] == 1  # By config.sampler.thin.
    assert "a single member does better (the difference is" in format_table(report)


def test_no_set_is_prepared_where_a_teacher_says(tmp_path):
    theirs, mine = str(tmp_path / "theirs"), str(tmp_path / "mine")
    write_run(tmp_path / "run", {"num_epochs": 1, "dataset": "mnist", "data_dir": theirs})
    assert student_config(tmp_path / "run", {})["data_dir"] == ""
    assert student_config(tmp_path / "run", {"data_dir": mine})["data_dir"] == mine
    tfds_sets.write_set(tmp_path / "theirs", "mnist", tfds_sets.random_splits())
    assert student_config(tmp_path / "run", {})["data_dir"] == theirs


def test_only_sgd_learns_from_a_teacher():
    line = r"config.method='hmc' must be sgd for config.teacher='run'; or leave it out"
    with pytest.raises(UserError, match=line):
        validated({"method": "hmc", "teacher": "run"})


def test_an_ensemble_is_not_written_over_by_its_student(blobs_run, blobs):
    with pytest.raises(UserError, match="holds the ensemble to learn from"):
        ensemble.distill(blobs_run, str(blobs_run), {}, blobs)
