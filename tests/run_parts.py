"""Parts of a run, each made or read in one line, for tests of the inside.

What only asks for `import ensemble` has `public/runs.py`; configurations and data are those of
`small_runs`.
"""

import contextlib
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import jax
import ml_collections
import numpy as np

from ensemble import likelihoods, metrics
from ensemble.config import build, flatten
from ensemble.data import catalogue
from ensemble.data.data_forms import recognise
from ensemble.data.records import write_records
from ensemble.data.source import Request, Strata
from ensemble.draws.store import Draws
from ensemble.likelihoods.classes import Classes
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.run import loop
from ensemble.runtime.loop import Loop, Periods
from ensemble.sharding import mesh
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.workdir import Workdir
from ensemble.tasks.supervised import Supervised, make_likelihood

Path = str | os.PathLike[str]


# A configuration, what is learned, and the devices.


def validated(
    config: Mapping[str, Any], by_hand: Collection[str] | None = None
) -> ml_collections.FrozenConfigDict:
    """A configuration as a run begins with it: completed with defaults and checked."""
    values = flatten(config)
    overrides = {key: values.pop(key) for key in by_hand or ()}
    return build(values, overrides).config


def task_of(config: Mapping[str, Any], data: Any = None) -> Any:
    """What a run of a configuration learns, or samples; data are its own if none are given."""
    return loop.create_task(validated(config), None if data is None else recognise(data))


class Silent:
    """An observer of a loop that does nothing."""

    save_seconds = 0.0

    def __getattr__(self, name: str) -> Callable[..., bool]:
        return lambda *_: False


def classification(dataset: Any, network: Any, priors: Any = ()) -> Supervised:
    """The task of learning classes: with the categorical likelihood."""
    return Supervised(
        dataset, network, make_likelihood(dataset, {"likelihood": "categorical"}), priors
    )


def loop_of(config: Mapping[str, Any], data: Any = None, task: Any = None) -> Loop:
    """The loop that moves the members of a configuration, without a workdir."""
    frozen = validated(config)
    method = loop.create_method(frozen, task_of(config, data) if task is None else task)
    numbers = range(method.num_members)
    devices = method.place(len(numbers))
    algorithm = method.algorithm(devices, numbers)
    periods = Periods(frozen.log_every_steps, 0, 0)
    return Loop(algorithm, devices, numbers, frozen.seed, periods, Silent())


def mesh_of(num_groups: int, num_shards: int = 1) -> jax.sharding.Mesh:
    """The first devices there are: groups of chains by shards of examples."""
    return mesh.create_mesh(num_groups, num_shards, jax.devices())


def over_chains(function: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
    """A function of one chain, mapped over all of them as a mesh has them."""
    return jax.vmap(function, in_axes, spmd_axis_name=mesh.ENSEMBLE)


def of_classes(names: Iterable[str]) -> Any:
    """The likelihood of labels of these classes."""
    return likelihoods.named("categorical")(tuple(names))


# Data.


def examples_of(name: str) -> Any:
    """All examples of a data set, before splits are carved."""
    return catalogue.given_examples(name, Request())


def records_of(npz: str) -> str:
    """Writes the arrays of a file, `npz:PATH`, as records beside it; returns that data set."""
    folder = pathlib.Path(npz.removeprefix("npz:")).with_name("records")
    write_records(examples_of(npz), folder)
    return f"records:{folder}"


def read_in_blocks_of(monkeypatch: Any, num_values: int) -> None:
    """Has whatever reads a whole split read few values at once, as if it were large."""
    monkeypatch.setattr("ensemble.data.source._BLOCK_VALUES", num_values)


def strata_of(values: Any, kind: str = "group", column: str = "column") -> Strata:
    """What rows are told apart by: their groups, or their times."""
    return Strata(column, kind, np.asarray(values))


# What a run has left in its workdir.


def workdir_of(path: Path) -> Workdir:
    """What knows the files of a run, which need not be there yet."""
    return Workdir(path)


def checkpoints_of(workdir: Path) -> Checkpointer:
    """What reads and writes the checkpoints of a run; the caller closes it."""
    return Checkpointer(Workdir(workdir).checkpoints)


def draws_of(workdir: Path) -> Draws:
    """The draws of a run."""
    return Draws(Workdir(workdir).draws)


def config_of(workdir: Path) -> dict[str, Any]:
    """The configuration of a run, as whatever resumes or loads it reads it."""
    found = Workdir(workdir).read_config()
    assert found is not None, f"{workdir} has no config.json"
    return found


def report_of(workdir: Path) -> dict[str, Any]:
    """The report of a run, as whatever evaluates it reads it; empty where there is none."""
    return Workdir(workdir).read_report()


def identity_of(workdir: Path) -> str:
    """What every part of a run says it belongs to."""
    return Workdir(workdir).identity()


def evaluated_run(workdir: Path, *args: Any, **options: Any) -> EvaluatedRun:
    """What an evaluation reads of a run."""
    return EvaluatedRun(str(workdir), *args, **options)


@contextlib.contextmanager
def held(workdir: Path) -> Iterator[None]:
    """Holds a workdir as a run that is under way does."""
    with Workdir(workdir).opened():
        yield


def check_scores(found, log_probs, labels, entropies=None):
    """Compares metrics of classes, JSON by name, with those of the arrays."""
    arrays = {"log_probs": log_probs} | ({} if entropies is None else {"entropies": entropies})
    p = Classes(arrays)
    for name, value in metrics.values(p, labels).items():
        if name in found:
            np.testing.assert_allclose(found[name]["value"], value, rtol=1e-9, err_msg=name)
            each = [metrics.values(one, labels, [name])[name] for one in p.members]
            members = found[name].get("members", each)
            np.testing.assert_allclose(members, each, rtol=1e-9, err_msg=name)


def stored(loop: Loop) -> dict[str, Any]:
    """Members as a checkpoint gives them back: by name, without padding."""
    saved = loop.programs.saved(loop.members)
    return {name: np.asarray(leaf)[: loop.devices.num_members] for name, leaf in saved.items()}
