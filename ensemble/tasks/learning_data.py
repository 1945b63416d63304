"""What tasks that learn from data have in common: how these are loaded, described and restored."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
import ml_collections
import numpy as np

from ensemble import likelihoods, networks, target_rows
from ensemble.errors import UserError, shown
from ensemble.likelihood import Likelihood
from ensemble.network import Backbone
from ensemble.source import Examples, Request, Source, TableKeys
from ensemble.sources.catalogue import load_dataset, models_of, refuse_resize
from ensemble.sources.dataset import Dataset, with_quantiles, with_robust_scaling
from ensemble.task import PredictingTask

if TYPE_CHECKING:
    from ensemble.sources.data_forms import Given

_NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
logger = logging.getLogger("ensemble")


def load_source(config: ml_collections.FrozenConfigDict, data: Given | None) -> Source:
    """Loads what a run learns from.

    Args:
        config: of the run.
        data: what a program has handed over instead of `config.dataset`.

    Raises:
        UserError: the data cannot be had, or not every network can learn them.
    """
    resize = config.get("resize")
    table = table_keys(config)
    if data is not None:
        if resize is not None:
            raise refuse_resize("what a program gave as arrays")
        dataset = data.source(Request(seed=config.seed, hold_out=config.hold_out, table=table))
    else:
        dataset = load_dataset(
            config.dataset,
            config.data_dir or None,
            config.seed,
            config.hold_out,
            resize,
            table=table,
        )
    if dataset.table is not None:
        lines = "\n".join(f"  {line}" for line in dataset.table.lines())
        columns = f"What was made of the columns of {shown(dataset.name)}:\n{lines}"
        logger.info("%s", columns, extra={"stays": True})
    if isinstance(dataset, Dataset):
        if config.get("scaling") == "robust":
            dataset = with_robust_scaling(dataset)
        if networks.takes_quantiles(config.model):
            dataset = with_quantiles(dataset)
    if data is not None:
        return dataset
    models = models_of(config.dataset)
    if models and config.model not in models:
        raise UserError(
            f"config.model={config.model!r} must be {' or '.join(models)} for {dataset.name}"
        )
    return dataset


def table_keys(config: Mapping[str, Any]) -> TableKeys:
    """What a configuration, nested or not, says of tables; some tasks have no such keys."""
    kind = "labels" if likelihoods.named(config["likelihood"]).takes_logits else "targets"
    return TableKeys(
        config.get("target") or "",
        config.get("columns"),
        config.get("split") or "",
        kind,
        config.get("date_format") or "",
        config.get("na_values"),
        config.get("season") or 0,
    )


def make_likelihood(
    dataset: Source, name: str = "categorical", settings: Mapping[str, Any] = _NO_SETTINGS
) -> Likelihood:
    """Makes the likelihood of a data set's targets.

    Args:
        dataset: with training examples.
        name: of `ensemble.likelihoods`.
        settings: of `ensemble.config.likelihood_settings`.

    Raises:
        UserError: the name is unknown, or the targets are none that the likelihood can have.
    """
    targets, class_names = dataset.targets("train"), dataset.class_names or ()
    found = likelihoods.of_data(name, targets, class_names, **settings)
    kind: Any = likelihoods.named(name)
    if hasattr(kind, "check_targets"):
        for split in dataset.sizes:
            kind.check_targets(target_rows.values(dataset.targets(split)), split)
    return found


def describe(dataset: Source) -> dict[str, Any]:
    """Returns what a program that predicts must know of a data set's inputs, JSON-ready."""
    raw, features = dataset.raw, dataset.describe_features()
    return {
        "name": raw.name,
        "input_shape": list(raw.input_shape),
        "dtype": raw.input_dtype.name,
        "shift": np.asarray(raw.shift).tolist(),
        "scale": np.asarray(raw.scale).tolist(),
        **({} if raw.squash is None else {"squash": raw.squash.tolist()}),
        **({} if raw.quantiles is None else {"quantiles": raw.quantiles.tolist()}),
        "num_examples": dict(raw.sizes),
        "fingerprint": raw.fingerprint,
        "test_fingerprint": raw.test_fingerprint,
        **({"table": raw.table.content} if raw.table else {}),
        **({"features": features} if features else {}),
    }


def described_dataset(description: Mapping[str, Any], backbone: Backbone | None = None) -> Source:
    """Returns a data set without examples, from what `Task.describe` has kept of it.

    Args:
        description: that it has kept.
        backbone: of the network, where it has one.

    Raises:
        UserError: the backbone fails, or is not that of the description.
    """
    shape, squash = (0, *description["input_shape"]), description.get("squash")
    raw = Dataset(
        name=description["name"],
        splits={"train": Examples(np.zeros(shape, description["dtype"]), np.zeros(0, np.int32))},
        class_names=tuple(description.get("class_names", ())) or None,
        shift=np.asarray(description["shift"], np.float32),
        scale=np.asarray(description["scale"], np.float32),
        squash=np.asarray(squash, np.float32) if squash else None,
    )
    if "table" in description:
        # Most data are no tables.
        from ensemble.sources.tables.table_form import TableForm
        from ensemble.sources.tables.table_source import of_form

        raw = of_form(raw, TableForm(description["table"]))
    if backbone is None and "features" not in description:
        return raw
    # Few networks have a backbone.
    from ensemble.sources.features import check_same_backbone, described_features

    if backbone is None:
        check_same_backbone(description, {}, "the workdir")
        return raw
    return described_features(raw, backbone, description)


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
        UserError: they are of other shapes or kinds.
    """
    found = jax.tree.map(lambda leaf: (np.shape(leaf)[1:], np.asarray(leaf).dtype.kind), params)
    if found != jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.kind), expected):
        raise UserError(
            f"the checkpoint or the draws have other parameters than "
            f"config.model={config['model']!r} has for inputs {task.dataset.input_shape} and "
            f"{task.likelihood.num_outputs} outputs; give the config file of the run"
        )
