"""What the registry names is there, and is what it is said to be."""

import inspect
import runpy

import pytest
from conftest import ROOT

from ensemble import registry
from ensemble.config import task_block
from ensemble.keys import Block
from ensemble.method import Method
from ensemble.priors import parse_prior


@pytest.mark.parametrize("name", registry.METHODS)
def test_a_method_is_a_method_with_a_block_and_tasks(name):
    entry = registry.METHODS[name]
    factory = registry.load(entry.factory)
    assert Method in factory.__mro__
    parameters = inspect.signature(factory).parameters.values()
    assert [one.name for one in parameters if one.default is one.empty] == ["config", "task"]
    assert isinstance(registry.load(entry.block), Block)
    assert entry.tasks
    assert set(entry.tasks) <= registry.TASKS.keys()


@pytest.mark.parametrize("name", registry.METHODS)
def test_a_method_that_requires_a_prior_has_tasks_with_one(name):
    entry = registry.METHODS[name]
    for task in registry.tasks_of(name):
        keys, own = task_block(task).keys, task_block(task).instead.get("prior", "")
        assert not entry.requires_prior or "prior" in keys or "has its priors" in own
        assert parse_prior(registry.TASKS[task].default_prior)


def test_users_tests_run_every_method_and_likelihood_that_learns_targets():
    """What `tests/public` trains, kills, exports and evaluates is said by its own lists."""
    runs = runpy.run_path(str(ROOT / "tests" / "public" / "runs.py"))
    learns = {name for name, entry in registry.METHODS.items() if "supervised" in entry.tasks}
    assert runs["METHODS"].keys() == learns
    likelihoods = {
        name: registry.load(one.likelihood) for name, one in registry.LIKELIHOODS.items()
    }
    of_targets = {
        name for name, kind in likelihoods.items() if not getattr(kind, "needs_teacher", False)
    }
    assert runs["LIKELIHOODS"].keys() == of_targets


def test_a_model_means_one_task():
    models = [model for entry in registry.TASKS.values() for model in entry.models]
    assert len(models) == len(set(models))
    for name, entry in registry.TASKS.items():
        assert {registry.task_of_model(model) for model in entry.models} <= {name}
    assert registry.task_of_model("mlp") is None
