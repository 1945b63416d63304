"""What tasks that learn from data have in common: how these are loaded, described and restored."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import ml_collections
import numpy as np

from ensemble import likelihoods, networks
from ensemble.config import settings
from ensemble.data.catalogue import load, models_of
from ensemble.data.dataset import Dataset, with_quantiles, with_robust_scaling
from ensemble.data.image_form import parse_size
from ensemble.data.source import Examples, Request, Source, TableKeys
from ensemble.errors import InputError, shown
from ensemble.likelihoods.likelihood import Likelihood
from ensemble.task import PredictingTask

if TYPE_CHECKING:
    from ensemble.data.data_forms import Given

logger = logging.getLogger("ensemble")


def load_source(config: ml_collections.FrozenConfigDict, data: Given | None) -> Source:
    """Loads what a run learns from.

    Args:
        config: of the run.
        data: what a program has handed over instead of `config.dataset`.

    Raises:
        InputError: the data cannot be had, or not every network can learn them.
    """
    request = Request(
        config.data_dir or None,
        config.seed,
        not config.train_on_all,
        size=parse_size(config.get("resize")),
        table=table_keys(config),
        prepares=True,
    )
    dataset = load(config.dataset, request) if data is None else data.source(request)
    if dataset.table is not None:
        lines = "\n".join(f"  {line}" for line in dataset.table.lines())
        columns = f"What was made of the columns of {shown(dataset.name)}:\n{lines}"
        logger.info("%s", columns, extra={"stays": True})
    if isinstance(dataset, Dataset):
        if config.get("scaler") == "robust":
            dataset = with_robust_scaling(dataset)
        if networks.takes_quantiles(settings("model", config)):
            dataset = with_quantiles(dataset)
    if data is not None:
        return dataset
    models = models_of(config.dataset)
    if models and config.model not in models:
        raise InputError(
            f"config.model={config.model!r} must be {' or '.join(models)} for {dataset.name}"
        )
    return dataset


def table_keys(config: Mapping[str, Any]) -> TableKeys:
    """What a configuration, nested or not, says of tables; some tasks have no such keys."""
    kind = "labels" if likelihoods.named(config["likelihood"]).takes_logits else "targets"
    if "target" not in config:
        return TableKeys(kind=kind)
    return TableKeys(
        config.get("target") or "",
        config.get("column_types"),
        config.get("split_by") or "",
        kind,
        config.get("na_values"),
    )


def make_likelihood(dataset: Source, config: Mapping[str, Any]) -> Likelihood:
    """Makes the likelihood of a data set's targets.

    Args:
        dataset: with training examples.
        config: of the run.

    Raises:
        InputError: the name is unknown, or the targets are none that the likelihood can have.
    """
    targets = dataset.targets("train")
    class_names = dataset.class_names or ()
    own = settings("likelihood", config)
    found = likelihoods.from_data(config["likelihood"], targets, class_names, **own)
    kind: Any = likelihoods.named(config["likelihood"])
    if hasattr(kind, "check_targets"):
        for split in dataset.sizes:
            kind.check_targets(dataset.targets(split), split)
    return found


def describe(dataset: Source) -> dict[str, Any]:
    """Returns what a program that predicts must know of a data set's inputs, JSON-ready."""
    arrays = {name: getattr(dataset, name) for name in ("shift", "scale", "squash", "quantiles")}
    return {
        "name": dataset.name,
        "input_shape": list(dataset.input_shape),
        "dtype": dataset.input_dtype.name,
        **{name: np.asarray(one).tolist() for name, one in arrays.items() if one is not None},
        "num_examples": dict(dataset.sizes),
        "fingerprint": dataset.fingerprint,
        "test_fingerprint": dataset.test_fingerprint,
        **({"table": dataset.table.content} if dataset.table else {}),
    }


def described_dataset(description: Mapping[str, Any]) -> Source:
    """Returns a data set without examples, from what `Task.describe` has kept of it."""
    shape = (0, *description["input_shape"])
    squash = description.get("squash")
    table = None
    if "table" in description:
        from ensemble.data.tables.table_form import TableForm  # Most data are no tables.

        table = TableForm(description["table"])
    return Dataset(
        name=description["name"],
        splits={"train": Examples(np.zeros(shape, description["dtype"]), np.zeros(0, np.int32))},
        class_names=tuple(description.get("class_names", ())) or None,
        shift=np.asarray(description["shift"], np.float32),
        scale=np.asarray(description["scale"], np.float32),
        squash=np.asarray(squash, np.float32) if squash else None,
        table=table,
    )


def check_params(
    params: Any, expected: Any, config: Mapping[str, Any], task: PredictingTask
) -> None:
    """Refuses the parameters of a workdir that are not those of its task.

    Args:
        params: of the members [M, ...].
        expected: the shapes of one member's.
        config: of the run.
        task: that was restored.

    Raises:
        InputError: they are of other shapes or kinds.
    """
    found = jax.tree.map(lambda leaf: (np.shape(leaf)[1:], np.asarray(leaf).dtype.kind), params)
    if found != jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.kind), expected):
        raise InputError(
            f"the checkpoint or the draws have other parameters than "
            f"config.model={config['model']!r} has for inputs {task.dataset.input_shape} and "
            f"{task.likelihood.num_outputs} outputs; give the config file of the run"
        )
