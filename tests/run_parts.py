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
from formulas import summarise

import ensemble
from ensemble import config_rules, likelihoods
from ensemble.draws.store import Draws
from ensemble.evaluation.subject import Subject
from ensemble.export import export
from ensemble.likelihood import Reduce
from ensemble.run import loop
from ensemble.sharding import mesh
from ensemble.source import Request, SplitInputs, Strata, TableKeys
from ensemble.sources import catalogue
from ensemble.sources.data_forms import recognise
from ensemble.sources.records.conversion import write_records
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.workdir import Workdir

Path = str | os.PathLike[str]


# A configuration, what is learned, and the devices.


def validated(
    config: Mapping[str, Any], by_hand: Collection[str] | None = None
) -> ml_collections.FrozenConfigDict:
    """A configuration as a run begins with it: completed with defaults and checked."""
    return config_rules.validate(config, by_hand)


def task_of(config: Mapping[str, Any], data: Any = None) -> Any:
    """What a run of a configuration learns, or samples; data are its own if none are given."""
    return loop.create_task(validated(config), None if data is None else recognise(data))


def mesh_of(num_groups: int, num_shards: int = 1, num_parts: int = 1) -> jax.sharding.Mesh:
    """The first devices there are: groups of chains by shards of examples by parts of a member."""
    return mesh.create_mesh(num_groups, num_shards, jax.devices(), num_parts)


def over_chains(function: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
    """A function of one chain, mapped over all of them as a mesh has them."""
    return jax.vmap(function, in_axes, spmd_axis_name=mesh.ENSEMBLE)


def of_classes(names: Iterable[str]) -> Any:
    """The likelihood of labels of these classes."""
    return likelihoods.named("categorical")(tuple(names))


ALONE = Reduce(sum=lambda value: value, max=lambda value: value)
"""How members are reduced that are all on one device."""


def over_axis(name: str) -> Reduce:
    """How members are reduced that are spread over an axis."""
    return Reduce(
        sum=lambda value: jax.lax.psum(value, name), max=lambda value: jax.lax.pmax(value, name)
    )


# Data.


def loaded_table(name: str, target: str = "y", **keys: Any) -> Any:
    """A table as a run loads it, `csv:PATH` or `parquet:PATH`.

    Args:
        name: of the data set.
        target: the column to learn.
        **keys: of the configuration, such as `split`.
    """
    return catalogue.load_dataset(name, table=TableKeys(target, **keys))


def examples_of(name: str, target: str = "", **keys: Any) -> Any:
    """All examples of a data set, before splits are carved; of a table those of a target."""
    return catalogue.given_examples(name, Request(table=TableKeys(target, **keys)))


def inputs_of(source: Any, split: str) -> SplitInputs:
    """The inputs of a split, which are read when they are asked for."""
    return SplitInputs(source, split)


def records_of(npz: str) -> str:
    """Writes the arrays of a file, `npz:PATH`, as records beside it; returns that data set."""
    folder = pathlib.Path(npz.removeprefix("npz:")).with_name("records")
    write_records(examples_of(npz), folder)
    return f"records:{folder}"


def read_in_blocks_of(monkeypatch: Any, num_values: int) -> None:
    """Has whatever reads a whole split read few values at once, as if it were large."""
    monkeypatch.setattr("ensemble.source._BLOCK_VALUES", num_values)


def strata_of(
    values: Any, kind: str = "group", column: str = "column", has_dates: bool = False
) -> Strata:
    """What rows are told apart by: their groups, or their times."""
    return Strata(column, kind, np.asarray(values), has_dates)


# What a run has left in its workdir.


def workdir_of(path: Path) -> Workdir:
    """What knows the files of a run, which need not be there yet."""
    return Workdir(path)


def checkpoints_of(workdir: Path) -> Checkpointer:
    """What reads and writes the checkpoints of a run; the caller closes it."""
    return Checkpointer(Workdir(workdir).checkpoints)


def restored(workdir: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a run's newest whole checkpoint, and what is said beside them."""
    with checkpoints_of(workdir) as checkpoints:
        found = checkpoints.restore_latest(read_only=True)
    assert found is not None, f"{workdir} has no checkpoint"
    return found


def draws_of(workdir: Path, identity: str | None = None) -> Draws:
    """The draws of a run; with its identity they can be written too."""
    return Draws(Workdir(workdir).draws, identity)


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


def subject_of(workdir: Path, *args: Any, **options: Any) -> Subject:
    """What an evaluation reads of a run, as `Subject`."""
    return Subject(str(workdir), *args, **options)


@contextlib.contextmanager
def held(workdir: Path) -> Iterator[None]:
    """Holds a workdir as a run that is under way does."""
    with Workdir(workdir).opened():
        yield


def evaluated(test, calibration=None, likelihood=None, source=None, **how):
    """What sections of an evaluation are made of: views of two splits, and no other data."""
    from ensemble.evaluation.sections import Evaluated

    return Evaluated(likelihood, test, calibration, {}, source, "", (), **how)


def scores_told(values, **others):
    """The entry `scores` of a section, from values by name, and others by what they are."""
    return {
        name: {"value": value, **{key: one[name] for key, one in others.items() if name in one}}
        for name, value in values.items()
    }


def check_scores(section, log_probs, labels, entropies=None):
    """Compares a section of the scores of classes with what `metrics` says of the arrays."""
    said = summarise(log_probs, labels, entropies)
    scores = section["scores"]
    for name, value in {**said["ensemble"], **said["diversity"]}.items():
        np.testing.assert_allclose(scores[name]["value"], value, rtol=1e-12)
    for name, values in said["members"].items():
        np.testing.assert_allclose(scores[name]["members"], values, rtol=1e-12)


def check_estimators(
    workdir: Path, result: Any, data: Mapping[str, Any], num_estimators: int
) -> None:
    """Checks that two members of several estimators are loaded, evaluated and exported whole."""
    predictor = ensemble.load(workdir)
    assert predictor.description == f"{2 * num_estimators} estimators of 2 members"
    inputs = data["inputs"][:9]
    log_probs = predictor.member_arrays(inputs)["log_probs"]
    assert len(np.unique(log_probs[:, 0, 0])) == 2 * num_estimators
    probs = np.exp(log_probs).mean(axis=0)
    np.testing.assert_allclose(predictor(inputs).probs, probs, atol=1e-6)
    exported = jax.export.deserialize(bytearray(export(predictor)))
    np.testing.assert_allclose(exported.call(inputs)["probs"], probs, atol=2e-6)
    found = ensemble.evaluate(workdir, data=data, show_progress=False)
    assert found["test"]["scores"]["nll"] == result.report["test"]["scores"]["nll"]
    assert len(found["test"]["scores"]["nll"]["members"]) == 2
