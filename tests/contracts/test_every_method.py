"""The contract of methods, over all that the registry has with each task that it can learn.

A new method is run by its line of `tests/public/runs.py`, a new task by one of `TASKS`.
"""

import copy
import itertools
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import applications
import jax
import numpy as np
import pytest
import scipy.special
from public.runs import METHODS, classes
from run_parts import draws_of, task_of, validated

from ensemble import UserError, registry
from ensemble.fitted import OnDisk
from ensemble.method import PredictingMethod, Recorded, Status

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


def make(config: Mapping[str, Any]):
    """A method as the loop makes it."""
    config = validated(config)
    task = registry.task_of(config)
    data = classes() if task in ("supervised", "distillation") else None
    return registry.load(registry.METHODS[config.method].factory)(config, task_of(config, data))


def kept(method, state) -> tuple[Any, dict[str, int]]:
    """What a checkpoint keeps of a state, as it comes back from one."""
    arrays, counters = method.to_host(state)
    return copy.deepcopy(arrays), json.loads(json.dumps(counters))


def assert_same(found, expected) -> None:
    """To the bit, a NaN for a NaN."""
    assert found[1] == expected[1]
    assert jax.tree.structure(found[0]) == jax.tree.structure(expected[0])
    jax.tree.map(np.testing.assert_array_equal, found[0], expected[0])


class Run(NamedTuple):
    """A run to its end, without the loop."""

    config: dict[str, Any]
    method: Any
    state: Any
    chunks: list[dict[str, Any]]
    saved: list[Any]
    """After each chunk, and before the first."""
    draws: Any


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
    method = make(config)
    draws = draws_of(tmp_path_factory.mktemp(f"{name}-{task}"))
    state, chunks = method.init(KEY), []
    saved = [kept(method, state)]
    assert not method.finished(state)
    while not method.finished(state):
        first = state.step
        state, info = method.advance(state)
        if isinstance(method, Recorded):
            method.record(info, draws)
        chunks.append(
            {
                "before": first,
                "first": info.first,
                "step": info.step,
                "after": state.step,
                "is_cut": info.is_cut,
                "of_info": method.status(info),
                "of_state": method.status(state),
                "scalars": method.scalars(info),
                "examples": method.member_examples(info),
                "rates": method.rate_scalars(1000.0),
            }
        )
        saved.append(kept(method, state))
    return Run(config, method, state, chunks, saved, draws)


def test_each_method_and_task_of_the_registry_has_a_small_run():
    learns = {name for name, entry in registry.METHODS.items() if "supervised" in entry.tasks}
    assert learns <= METHODS.keys(), "add a line to METHODS of tests/public/runs.py"
    assert {task for _, task in CASES} == registry.TASKS.keys() == TASKS.keys()
    for method, task in CASES:
        found = validated(few_steps_of(method, task, "run"))
        assert (found.method, registry.task_of(found)) == (method, task)


def test_chunks_follow_each_other_to_the_goal(run):
    method, chunks = run.method, run.chunks
    assert chunks[0]["before"] == 0
    assert len(chunks) > 1
    assert chunks[-1]["after"] == method.num_steps
    for one, next_one in itertools.pairwise(chunks):
        assert next_one["before"] == one["after"] < method.num_steps
    for one in chunks:
        assert one["before"] == one["first"] < one["step"] == one["after"]
        assert not one["is_cut"]  # Nobody has asked for that.
    assert method.steps_per_epoch > 0


def test_what_a_chunk_shows_is_finite_and_of_the_members_that_there_are(run):
    assert run.method.noun
    assert run.method.remedy
    for one in run.chunks:
        assert one["of_info"].keys() == one["of_state"].keys() == set(run.method.indices)
        found = {*one["of_info"].values(), *one["of_state"].values()}
        assert found == {Status.ACTIVE}
        assert one["examples"] >= 0
        for tag, value in {**one["scalars"], **one["rates"]}.items():
            assert math.isfinite(value), tag


def test_a_state_comes_back_from_a_checkpoint_to_the_bit_and_goes_on_so(run):
    for k in (0, len(run.saved) // 2, len(run.saved) - 1):
        arrays, counters = copy.deepcopy(run.saved[k])
        state = run.method.from_host(KEY, arrays, counters)
        assert_same(kept(run.method, state), run.saved[k])
    k = len(run.saved) // 2
    state = run.method.from_host(KEY, *copy.deepcopy(run.saved[k]))
    while not run.method.finished(state):
        state, _ = run.method.advance(state)
    assert_same(kept(run.method, state), run.saved[-1])


def test_it_comes_back_on_other_devices(run):
    one = make({**run.config, "num_devices": 1})
    k = len(run.saved) // 2
    state = one.from_host(KEY, *copy.deepcopy(run.saved[k]))
    assert_same(kept(one, state), run.saved[k])
    assert state.step == run.chunks[k - 1]["after"]


def test_a_run_that_has_gone_further_is_not_resumed(run):
    _, counters = run.saved[-1]
    run.method.check_resumable(counters, "runs/mine")
    longer = {**counters, "step": run.method.num_steps + 1000}
    with pytest.raises(UserError) as told:
        run.method.check_resumable(longer, "runs/mine")
    assert "runs/mine" in str(told.value)
    assert str(run.method.num_steps) in str(told.value)
    assert "\n" not in str(told.value)


def test_a_limit_cuts_chunks_short_and_changes_nothing(run):
    method, due = run.method, {one["after"] for one in run.chunks}
    state = method.from_host(KEY, *copy.deepcopy(run.saved[0]))
    while not method.finished(state):
        before = state.step
        state, info = method.advance(state, 2)
        assert state.step > before
        assert info.is_cut == (state.step not in due)
    assert_same(kept(method, state), run.saved[-1])


def test_parameters_are_those_of_one_member(run):
    method = run.method
    shapes = jax.tree.map(np.shape, method.parameters(run.state))
    assert jax.tree.leaves(shapes)
    task = method.engine.task if hasattr(method, "engine") else method.task
    if hasattr(task, "params_shapes"):
        expected = jax.tree.map(np.shape, task.params_shapes())
        assert shapes == expected


def test_draws_on_disk_are_those_that_the_state_counts(run):
    if not isinstance(run.method, Recorded):
        assert run.draws.end == 0
        return
    assert run.draws.end == run.method.num_recorded(run.state) > 0
    for array in run.draws.scalars().values():
        assert array.shape[1] == run.draws.end


def mixtures(log_probs, member_of):
    """What each member says, [M, N, C], of its estimators [E, N, C]."""
    of_each = [np.asarray(log_probs, np.float64)[member_of == i] for i in np.unique(member_of)]
    return [scipy.special.logsumexp(one, axis=0, b=1 / len(one)) for one in of_each]


def test_what_predicts_says_what_the_splits_are_told(run):
    """From the state, from a checkpoint, and by the task alone."""
    method, entry = run.method, registry.METHODS[run.method.config.method]
    if not (isinstance(method, PredictingMethod) and registry.predicts(run.config)):
        assert not registry.predicts(run.config)
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
    if "log_probs" not in told.arrays or registry.task_of(run.config) not in LEARN_TARGETS:
        return
    inputs = method.task.dataset.read("test", slice(None)).inputs
    found = jax.jit(lambda seen: ours.all_estimators(method.task, seen))(inputs)["log_probs"]
    of_state = mixtures(told.arrays["log_probs"], told.members_of)
    member_of = np.repeat(ours.member_of, ours.num_passes)
    np.testing.assert_allclose(of_state, mixtures(found, member_of), atol=2e-4)
