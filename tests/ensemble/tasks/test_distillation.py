"""A network that learns from an ensemble: as a task, and as a whole run."""

import jax.numpy as jnp
import numpy as np
import pytest
from run_parts import task_of, validated
from small_runs import small_config

import ensemble
from ensemble import InputError
from ensemble.predictor import load
from ensemble.tasks import distillation

STUDENT = {"num_epochs": 40, "eval_every_epochs": 20, "log_every_steps": 100}


def make(run, data, **overrides):
    """The task as the loop makes it."""
    config = small_config(teacher=str(run), ensemble_size=1, **overrides)
    return task_of(config, data)


@pytest.mark.check
def test_many_draws_are_represented_by_some(blobs_run, blobs, monkeypatch):
    task = make(blobs_run, blobs)
    inputs = jnp.asarray(task.dataset.read("train", np.arange(5)).inputs)
    members = load(blobs_run)(np.asarray(inputs)).member_log_probs
    monkeypatch.setattr(distillation, "MAX_NETWORKS", 2)
    found = task.teach(inputs).member_log_probs
    assert found.shape == (2, 5, 3)
    np.testing.assert_allclose(found, members[[0, 3]], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def student(blobs_run, blobs, tmp_path_factory):
    """The workdir and the result of a network that learned from the blobs' ensemble."""
    workdir = str(tmp_path_factory.mktemp("student") / "run")
    return workdir, ensemble.distill(blobs_run, workdir, STUDENT, blobs, show_progress=False)


@pytest.mark.check
def test_a_student_predicts_as_its_teacher(student, blobs_run, blobs):
    inputs = blobs["inputs"]
    difference = load(student[0])(inputs).probs - load(blobs_run)(inputs).probs
    assert np.abs(difference).mean() < 0.03


@pytest.mark.check
def test_a_mixture_of_numbers_is_learned(blobs, tmp_path):
    rng = np.random.default_rng(0)
    inputs = blobs["inputs"]
    data = {"inputs": inputs, "targets": inputs @ rng.normal(size=6) + rng.normal(size=len(inputs))}
    config = small_config(likelihood="gaussian", train_on_all=True, optimizer="adam", num_epochs=10)
    teacher = str(tmp_path / "run")
    ensemble.train(config, data, teacher, show_progress=False)
    result = ensemble.distill(teacher, None, {"num_epochs": 40}, data, show_progress=False)
    taught = load(teacher)(inputs)
    learned = result.predictor(inputs)
    assert np.corrcoef(taught.mean, learned.mean)[0, 1] > 0.97
    np.testing.assert_allclose(learned.std.mean(), taught.std.mean(), rtol=0.2)


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
    with pytest.raises(InputError, match=line):
        ensemble.distill(blobs_run, None, overrides, blobs)


def test_steps_and_a_rate_replace_what_is_usual(blobs, tmp_path):
    sampler = {"num_warmup": 5, "num_samples": 5, "num_leapfrog_steps": 1, "thinning": 1}
    config = {"method": "hmc", "model": "logistic_regression", "num_chains": 1, "sampler": sampler}
    ensemble.train(config, blobs, str(tmp_path), show_progress=False)
    own = {"num_steps": 3, "learning_rate": 0.5}
    found = ensemble.distill(tmp_path, None, own, blobs, show_progress=False).report["config"]
    assert (found["num_steps"], found["num_epochs"]) == (3, None)
    assert (found["optimizer"], found["learning_rate"]) == ("sgd", 0.5)


def test_only_sgd_learns_from_a_teacher():
    line = r"config.method='hmc' must be deep_ensemble for config.task='distillation'"
    with pytest.raises(InputError, match=line):
        validated({"method": "hmc", "teacher": "run"})


def test_an_ensemble_is_not_written_over_by_its_student(blobs_run, blobs):
    with pytest.raises(InputError, match="holds a run with another configuration"):
        ensemble.distill(blobs_run, str(blobs_run), {}, blobs)
