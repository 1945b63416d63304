"""What every method promises: chunks up to its goal, and checkpoints that change nothing."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from ensemble import registry
from ensemble.config_rules import validate
from ensemble.draws.store import Draws
from ensemble.errors import UserError
from ensemble.method import FAILURES, Recorded, Status
from ensemble.run.loop import create_task
from ensemble.sources.catalogue import complete
from ensemble.testing.promises import Promise, demand, keep_all, of_data, promise

KEY = jax.random.key(5)


@dataclasses.dataclass(frozen=True)
class Chunk:
    """What a method has said of one chunk.

    Attributes:
        before: the step before it.
        info: its diagnostics.
        after: the step after it.
        status: of the members after it, by the diagnostics and by the state.
        shown: its scalars and its rates.
        examples: that all members have learned in it.
    """

    before: int
    info: Any
    after: int
    status: Sequence[Mapping[int, Status]]
    shown: Mapping[str, float]
    examples: int


@dataclasses.dataclass(frozen=True)
class MethodCase:
    """A method that has run to its end, without the loop.

    Attributes:
        name: of the method.
        create: makes it, with other keys of the configuration.
        method: that has run.
        state: its last one.
        chunks: of the run.
        saved: what a checkpoint holds, before the first chunk and after each.
        draws: that it has recorded.
    """

    name: str
    create: Callable[..., Any]
    method: Any
    state: Any
    chunks: Sequence[Chunk]
    saved: Sequence[tuple[Any, dict[str, int]]]
    draws: Draws
    kind: str = "method"


def check_method(name: str, settings: Mapping[str, Any], data: Any = None) -> None:
    """Checks what every method promises, in a run of a few steps.

    Args:
        name: of a method that is registered or installed.
        settings: of the configuration, so that the run has several short chunks: a small model,
            few steps, and `log_every_steps` less than these.
        data: as of `ensemble.train`; None where the settings name them.

    Raises:
        BrokenPromise: it breaks a rule, which the message names, with what to look at.
        UserError: the settings cannot stand.
    """
    with tempfile.TemporaryDirectory() as folder:
        keep_all(PROMISES, case_of({**settings, "method": name}, data, folder))


def case_of(settings: Mapping[str, Any], data: Any, folder: Any) -> MethodCase:
    """Runs a method to its end; its draws go to a folder."""

    def create(**others: Any) -> Any:
        given, said = complete({**settings, **others}, data)
        config = validate({**of_data(said), **settings, **others})
        task = create_task(config, given)
        factory = registry.load_code(
            registry.METHODS, config.method, registry.METHODS[config.method].factory
        )
        return factory(config, task)

    method = create()
    draws = Draws(epath.Path(folder) / "draws", None)
    state, chunks = method.init(KEY), []
    saved = [kept(method, state)]
    while not method.finished(state):
        first = state.step
        state, info = method.advance(state)
        if isinstance(method, Recorded):
            method.record(info, draws)
        status = method.status(info), method.status(state)
        shown = {**method.scalars(info), **method.rate_scalars(1000.0)}
        chunks.append(Chunk(first, info, state.step, status, shown, method.member_examples(info)))
        saved.append(kept(method, state))
    return MethodCase(settings["method"], create, method, state, chunks, saved, draws)


def kept(method: Any, state: Any) -> tuple[Any, dict[str, int]]:
    """What a checkpoint keeps of a state, as it comes back from one."""
    arrays, counters = method.to_host(state)
    return copy.deepcopy(arrays), json.loads(json.dumps(counters))


def _restored(method: Any, saved: tuple[Any, dict[str, int]]) -> Any:
    return method.from_host(KEY, *copy.deepcopy(saved))


def _same(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    """To the bit, a NaN for a NaN."""
    demand(found[1] == expected[1], f"counters are {found[1]}, not {expected[1]}")
    first, second = (str(jax.tree.structure(one[0])) for one in (found, expected))
    demand(first == second, f"the arrays are {first}, not {second}")
    jax.tree.map(np.testing.assert_array_equal, found[0], expected[0])


_FOUND: list[Promise] = []


@promise(_FOUND, "advance, finished and num_steps; and log_every_steps of the settings")
def chunks_follow_each_other_to_the_goal(case: MethodCase) -> None:
    """Chunks follow each other to num_steps, or end before it where members may stop early."""
    method, chunks = case.method, case.chunks
    demand(len(chunks) > 1, f"{len(chunks)} chunks; let the settings give several")
    demand(chunks[0].before == 0, f"the first chunk begins at step {chunks[0].before}")
    last = chunks[-1].after
    is_early = method.may_end_early and last < method.num_steps
    demand(is_early or last == method.num_steps, f"it ends at step {last} of {method.num_steps}")
    for one, after in itertools.pairwise(chunks):
        demand(after.before == one.after < method.num_steps, f"{after.before} follows {one.after}")
    for one in chunks:
        info = one.info
        told = f"steps {info.first} to {info.step} of {one.before} to {one.after}"
        demand(one.before == info.first < info.step == one.after, told)
        demand(not info.is_cut, f"the chunk to step {one.after} says is_cut, and nobody asked")
    demand(method.steps_per_epoch > 0, f"steps_per_epoch is {method.steps_per_epoch}")


@promise(_FOUND, "status, scalars, rate_scalars and member_examples")
def what_a_chunk_shows_is_finite_and_of_its_members(case: MethodCase) -> None:
    """Each chunk tells the status of every member, and finite numbers."""
    method = case.method
    demand(method.noun and method.remedy, "it has no noun, or no remedy")
    for one in case.chunks:
        for status in one.status:
            told = f"{dict(status)} is told of members {method.indices}"
            demand(status.keys() == set(method.indices), told)
            demand(not set(status.values()) & FAILURES.keys(), told)
        demand(one.examples >= 0, f"member_examples is {one.examples}")
        wrong = [tag for tag, value in one.shown.items() if not math.isfinite(value)]
        demand(not wrong, f"{', '.join(wrong)} are not finite")


@promise(_FOUND, "to_host, from_host and random numbers, which depend on key and step alone")
def a_checkpoint_goes_on_to_the_same_bits(case: MethodCase) -> None:
    """A state comes back from a checkpoint to the bit, and goes on from it to the same end."""
    method, middle = case.method, len(case.saved) // 2
    for saved in (case.saved[0], case.saved[middle], case.saved[-1]):
        _same(kept(method, _restored(method, saved)), saved)
    state = _restored(method, case.saved[middle])
    while not method.finished(state):
        state, _ = method.advance(state)
    _same(kept(method, state), case.saved[-1])


@promise(_FOUND, "from_host, whose arrays are of all devices")
def a_checkpoint_comes_back_on_other_devices(case: MethodCase) -> None:
    """What some devices have saved is restored on one device, to the bit."""
    one, middle = case.create(num_devices=1), len(case.saved) // 2
    state = _restored(one, case.saved[middle])
    _same(kept(one, state), case.saved[middle])
    step = case.chunks[middle - 1].after
    demand(state.step == step, f"it is at step {state.step}, not {step}")


@promise(_FOUND, "check_resumable")
def a_run_that_has_gone_further_is_not_resumed(case: MethodCase) -> None:
    """A run that has taken more steps is refused in one line, which names it and the goal."""
    method, counters = case.method, case.saved[-1][1]
    method.check_resumable(counters, "runs/mine")
    longer = {**counters, "step": method.num_steps + 1000}
    try:
        method.check_resumable(longer, "runs/mine")
    except UserError as error:
        line = str(error)
        told = "\n" not in line and "runs/mine" in line and str(method.num_steps) in line
        demand(told, f"the line is {line!r}")
    else:
        raise AssertionError(f"a run at step {longer['step']} of {method.num_steps} is taken")


@promise(_FOUND, "the argument limit of advance, and is_cut of its diagnostics")
def a_limit_cuts_chunks_short_and_changes_nothing(case: MethodCase) -> None:
    """Chunks of at most two steps lead to the same state, and say that they are cut."""
    method, due = case.method, {one.after for one in case.chunks}
    state, num_cut = _restored(method, case.saved[0]), 0
    while not method.finished(state):
        before = state.step
        state, info = method.advance(state, 2)
        demand(state.step > before, f"it stays at step {before}")
        told = f"is_cut is {info.is_cut} at step {state.step}; chunks end at {sorted(due)}"
        demand(info.is_cut == (state.step not in due), told)
        num_cut += info.is_cut
    demand(num_cut, "no chunk was cut; let the settings give chunks of more than two steps")
    _same(kept(method, state), case.saved[-1])


@promise(_FOUND, "record and num_recorded")
def draws_on_disk_are_those_that_the_state_counts(case: MethodCase) -> None:
    """The state says how many draws are recorded."""
    method, draws = case.method, case.draws
    if not isinstance(method, Recorded):
        demand(draws.end == 0, f"{draws.end} draws are recorded by a method without record")
        return
    counted = method.num_recorded(case.state)
    demand(draws.end == counted > 0, f"{draws.end} draws are recorded, {counted} are counted")
    for name, array in draws.scalars().items():
        demand(array.shape[1] == draws.end, f"{name} has {array.shape[1]} of {draws.end} draws")


PROMISES: tuple[Promise, ...] = tuple(_FOUND)
"""All rules of methods, in order."""
