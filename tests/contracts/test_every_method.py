"""The contract of methods, over all that the registry has with each task that it can learn.

A new method is run by its line of `tests/public/runs.py`, a new task by one of `TASKS`.
"""

from typing import Any

import applications
import jax
import numpy as np
import pytest
import scipy.special
from public.runs import METHODS, classes
from run_parts import validated

from ensemble import registry
from ensemble.fitted import OnDisk
from ensemble.method import PredictingMethod
from ensemble.sharding import transfer
from ensemble.testing import methods

KEY = jax.random.key(5)
SHORT = {
    "num_epochs": 2,
    "sampler.num_warmup": 4,
    "sampler.num_samples": 8,
    "sampler.thin": 1,
    "sgmcmc.num_burn_in": 4,
    "sgmcmc.num_samples": 6,
    "log_every_steps": 4,
}
"""Few steps, which are logged in several chunks; every draw is kept."""

TASKS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "distillation": {"likelihood": "dirichlet", "ensemble_size": 2},
    **applications.examples("OF_TASKS"),
}
"""What a task sets beside its method's line, by name; None: what it leaves out of that."""

OTHERS = applications.examples("METHODS")
"""A few steps of each method that learns no targets, whole."""

CASES = [(method, task) for method in registry.METHODS for task in registry.tasks_of(method)]
LEARN_TARGETS = ("supervised", "distillation")
QUICK = [("sgd", "supervised"), *((name, registry.METHODS[name].tasks[0]) for name in OTHERS)]


def few_steps_of(method: str, task: str, teacher: str = "") -> dict[str, Any]:
    """A few steps of a method."""
    if method in OTHERS:
        return OTHERS[method] | TASKS[task]
    own = METHODS[method]
    short = {key: value for key, value in SHORT.items() if key in own or key == "sampler.thin"}
    found = {**own, **short, **TASKS[task]}
    if not any(key.startswith("sampler.") for key in own):
        found.pop("sampler.thin", None)
    if task == "distillation":
        found["teacher"] = teacher
    return {key: value for key, value in found.items() if value is not None}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(case, id="-".join(case), marks=[] if case in QUICK else pytest.mark.check)
        for case in CASES
    ],
)
def run(request, tmp_path_factory):
    name, task = request.param
    teacher = str(request.getfixturevalue("blobs_run")) if task == "distillation" else ""
    config = few_steps_of(name, task, teacher)
    data = classes() if task in LEARN_TARGETS else None
    return methods.case_of(config, data, tmp_path_factory.mktemp(f"{name}-{task}"))


@pytest.mark.parametrize("promise", methods.PROMISES, ids=str)
def test_it_keeps(run, promise):
    promise.keep(run)


def test_each_method_and_task_of_the_registry_has_a_small_run():
    learns = {name for name, entry in registry.METHODS.items() if "supervised" in entry.tasks}
    assert learns <= METHODS.keys(), "add a line to METHODS of tests/public/runs.py"
    assert {task for _, task in CASES} == registry.TASKS.keys() == TASKS.keys()
    for method, task in CASES:
        found = validated(few_steps_of(method, task, "run"))
        assert (found.method, registry.task_of(found)) == (method, task)


def test_parameters_are_those_of_one_member(run):
    method = run.method
    shapes = jax.tree.map(np.shape, method.parameters(run.state))
    assert jax.tree.leaves(shapes)
    task = method.engine.task if hasattr(method, "engine") else method.task
    if hasattr(task, "params_shapes"):
        expected = jax.tree.map(np.shape, task.params_shapes())
        assert shapes == expected


def test_a_constructor_puts_nothing_on_devices(run, monkeypatch):
    """So that programs can be compiled for devices that are not here."""
    for name in ("put", "put_parts", "place_split"):
        monkeypatch.setattr(transfer, name, lambda *_: pytest.fail("something was placed"))
    type(run.method)(run.method.config, run.method.task)


def mixtures(log_probs, member_of):
    """What each member says, [M, N, C], of its estimators [E, N, C]."""
    of_each = [np.asarray(log_probs, np.float64)[member_of == i] for i in np.unique(member_of)]
    return [scipy.special.logsumexp(one, axis=0, b=1 / len(one)) for one in of_each]


def test_what_predicts_says_what_the_splits_are_told(run):
    """From the state, from a checkpoint, and by the task alone."""
    method, entry = run.method, registry.METHODS[run.method.config.method]
    if not (isinstance(method, PredictingMethod) and registry.predicts(run.method.config)):
        assert not registry.predicts(run.method.config)
        return
    assert method.has_predictions(run.state)
    live = list(method.indices)
    ours = method.fitted(run.state, live, run.draws)
    arrays, counters = run.saved[-1]
    saved = OnDisk(method.config.to_dict(), arrays, counters, live, run.draws)
    theirs = registry.load(entry.fitted)(saved)
    np.testing.assert_array_equal(ours.member_of, theirs.member_of)
    jax.tree.map(np.testing.assert_array_equal, ours.sets, theirs.sets)
    told = method.predict_split(run.state, "test", run.draws)
    if "log_probs" not in told.arrays or registry.task_of(run.method.config) not in LEARN_TARGETS:
        return
    inputs = method.task.dataset.read("test", slice(None)).inputs
    found = jax.jit(lambda seen: ours.all_estimators(method.task, seen))(inputs)["log_probs"]
    of_state = mixtures(told.arrays["log_probs"], told.members_of)
    member_of = np.repeat(ours.member_of, ours.num_passes)
    np.testing.assert_allclose(of_state, mixtures(found, member_of), atol=2e-4)
