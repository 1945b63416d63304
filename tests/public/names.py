"""The names that the tests of this folder use, and what the package calls them today.

Tests say what version 3.0 will say: method `deep_ensemble`, key `posterior_temperature`, file
`results.json`. This module, and no other, knows today's names, so that whoever renames something
edits this file alone. To extend it:

- a key, method, likelihood or file that is renamed: one line in a table, 3.0's name first;
- a flag of a command: a line in `FLAGS`, for `flags(max_error=0.05)`;
- an attribute of a prediction, a key in JSON, a function: a small function at the end.

A name that is not in a table stays as it is.
"""

import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from etils import epath

import ensemble
from ensemble.config import pieces
from ensemble.config.build import all_fields
from ensemble.config.pieces import path_of
from ensemble.storage.manifest import Manifest

# Keys of a configuration.


def config(values: Mapping[str, Any] = {}, /, **more: Any) -> dict[str, Any]:
    """A configuration.

    Args:
        values: keys with values, those of blocks with a dot.
        **more: likewise, keys without a dot.
    """
    return {**values, **more}


def key(name: str, **asked: Any) -> str:
    """Today's name of a key."""
    return name


def known_keys() -> set[str]:
    """All keys of what is built in."""
    return set(all_fields())


# Pieces of one's own: the object, or its path.


def model(network: Any) -> Any:
    """The value of `config.model` for a network of one's own, a class or a factory."""
    return network


def piece(kind: str, thing: Any) -> Any:
    """The value of a key for another piece of one's own.

    Args:
        kind: what it is, such as `likelihood`.
        thing: the function or class.
    """
    if kind in ("prior", "score"):  # In a text.
        return path_of(thing)
    return thing


def forge(patch: Any, path: str, thing: Any) -> None:
    """Within a `monkeypatch.context()`, a run may be written whose piece has another's path."""
    patch.setitem(pieces._GIVEN, path, thing)


def on_metrics(function: Callable[[int, Mapping[str, float]], None]) -> dict[str, Any]:
    """The keys of a configuration whose run calls a function of a step and its metrics."""
    return {"on_metrics": function}


# Errors.

InputError = ensemble.InputError
TrainingError = ensemble.TrainingError
Interrupted = ensemble.Interrupted

# Functions.

train = ensemble.train
load = ensemble.load
evaluate = ensemble.evaluate
distill = ensemble.distill
sample = ensemble.sample
compare_methods = ensemble.compare_methods
recommend = ensemble.recommend
default_config = ensemble.default_config


search = ensemble.search
select_members = ensemble.select_members


# Commands and their flags.


def command(name: str) -> tuple[str, str]:
    """The program and first argument of a command, for `run_here`."""
    return "ensemble.__main__", name


def flags(**given: Any) -> list[str]:
    """Flags of a command by 3.0's names: `True` is a flag alone, `config=` has overrides' keys.

    `flags(workdir=path, max_error=0.05, config={"ensemble_size": 3})`.
    """
    found = []
    for name, value in given.items():
        if isinstance(value, Mapping):
            found += [f"--config.{key}={one}" for key, one in config(value).items()]
        else:
            found += [f"--{name}"] if value is True else [f"--{name}={value}"]
    return found


# Files of a run.

FILES = {
    "out_of_fold.npz": "held_out.npz",
    "comparison.json": "trials.json",
}


def file(workdir: str | os.PathLike[str], name: str) -> pathlib.Path:
    """A file of a run by 3.0's name."""
    return pathlib.Path(workdir) / FILES.get(name, name)


def enter(workdir: pathlib.Path, path: pathlib.Path) -> None:
    """Has the manifest of a run say that a file is as its run has written it."""
    Manifest(epath.Path(workdir)).add(epath.Path(path))


def report(workdir: str | os.PathLike[str]) -> dict[str, Any]:
    """The results that a run has left."""
    return json.loads(file(workdir, "results.json").read_text())


def notes(workdir: str | os.PathLike[str]) -> list[str]:
    """The lines that a run has noted."""
    return report(workdir)["notes"]


def evaluation(out: str | os.PathLike[str]) -> dict[str, Any]:
    """What an evaluation has left in its folder."""
    found = json.loads((pathlib.Path(out) / "report.json").read_text())
    return {**found, "metrics": {"test": found["metrics"]}}


def stored(workdir: str | os.PathLike[str], split: str = "test") -> dict[str, np.ndarray]:
    """Predictions of a split that a run has left, by name, as `targets` and `log_probs`."""
    with np.load(file(workdir, f"predictions/{split}.npz")) as arrays:
        return {name: one for name, one in arrays.items() if one.dtype.kind in "biuf"}


def metrics(workdir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    lines = file(workdir, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


# Results: of `train`, of `report` and of `evaluation`.


def number(results: Any, name: str, split: str = "test") -> float:
    """A metric of the ensemble, such as `nll`."""
    return _metrics(results, split)[name]["value"]


def of_members(results: Any, name: str, split: str = "test") -> list[float]:
    """A metric of each member that is alive."""
    return _metrics(results, split)[name]["members"]


def numbers(results: Any, split: str = "test") -> dict[str, float]:
    """All metrics of the ensemble."""
    return {name: one["value"] for name, one in _metrics(results, split).items()}


def _metrics(results: Any, split: str) -> Any:
    return getattr(results, "report", results)["metrics"][split]


def active_members(results: Any) -> list[int]:
    """Numbers of the members that are alive."""
    return list(getattr(results, "report", results)["active_members"])


def failed_members(results: Any) -> list[int]:
    """Numbers of the members that are not."""
    return sorted(map(int, getattr(results, "report", results)["failed_members"]))


# Predictions.


def probs(prediction: Any) -> np.ndarray:
    """[N, C]."""
    return prediction.probs


def labels(prediction: Any) -> np.ndarray:
    """[N], the most probable classes."""
    return prediction.labels


def label_names(prediction: Any) -> np.ndarray:
    """[N], their names."""
    return prediction.label_names


def member_log_probs(prediction: Any) -> np.ndarray:
    """[M, N, C]."""
    return prediction.member_log_probs


def uncertainties(prediction: Any) -> dict[str, np.ndarray]:
    """Of classes: `total`, `aleatoric` and `epistemic` [N], nats."""
    names = ("total", "aleatoric", "epistemic")
    return {name: getattr(prediction, f"{name}_uncertainty") for name in names}


def accepted(prediction: Any) -> np.ndarray:
    """[N] bool: the predictions that are given where the ensemble may abstain."""
    return prediction.accepted


def point(prediction: Any) -> np.ndarray:
    """[N] of numbers: what is predicted."""
    return prediction.point


def quantiles(prediction: Any) -> np.ndarray:
    """[N, levels]."""
    return prediction.quantiles()


def arrays(prediction: Any) -> dict[str, np.ndarray]:
    """All numbers of a prediction by name, whatever it is of: [N, ...], and of members [M, N]."""
    found = {**prediction.columns(), **prediction.arrays}
    return {name: one for name, one in found.items() if one.dtype.kind in "biuf"}


def floats(document: Any, left_out: Iterable[str] = ()) -> dict[str, float]:
    """Every number in a JSON document by its path, but below keys that are left out.

    Of lists of more than 12 numbers, such as curves, there are the mean and the root mean square.
    """
    found: dict[str, float] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Mapping):
            for key, one in value.items():
                if key not in left_out:
                    walk(one, f"{path}.{key}" if path else key)
        elif isinstance(value, list) and len(value) > 12 and set(map(type, value)) <= {int, float}:
            found[f"{path}.mean"] = float(np.mean(value))
            found[f"{path}.rms"] = float(np.sqrt(np.mean(np.square(value))))
        elif isinstance(value, list):
            for i, one in enumerate(value):
                walk(one, f"{path}.{i}")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[path] = value

    walk(document, "")
    return found


def of_target(prediction: Any, number: int) -> Any:
    """The prediction of one of several targets."""
    return prediction.of_target(number)


def of_targets(workdir: str | os.PathLike[str], split: str = "test") -> list[dict[str, Any]]:
    """What a run's report says of each of several targets."""
    return report(workdir)["targets"][split]


def version() -> str:
    """Of the package."""
    return ensemble.__version__


# Posteriors of models and densities.


def posterior(results: Any) -> Mapping[str, Any]:
    """What a run of chains or walks has left of its posterior: `rhat_max`, `mean`, ..."""
    return getattr(results, "report", results)["posterior"]


def ranking(results: Any) -> dict[str, Mapping[str, float]]:
    """Scores of held-out watches or ratings, by `posterior`, `map`, `biases` and `popularity`."""
    return getattr(results, "report", results)["recommendation"]["held_out"]


def density(log_density: Callable[[Any], Any], num_dims: int) -> Any:
    """The value of `config.density` for a function from positions [C, D] to [C] nats."""
    return ensemble.densities.Density(log_density, num_dims)


def sharding() -> Any:
    """The module that has `create_mesh`, `sharded_plate`, `Sharded` and `make_model`."""
    from types import SimpleNamespace

    from ensemble.numpyro_models.sharded_distributions import Sharded, sharded_plate
    from ensemble.numpyro_models.sharded_model import make_model
    from ensemble.sharding.mesh import create_mesh

    return SimpleNamespace(
        create_mesh=create_mesh,
        sharded_plate=sharded_plate,
        Sharded=Sharded,
        make_model=make_model,
    )


def sites(workdir: str | os.PathLike[str]) -> dict[str, Mapping[str, float]]:
    """The table of a model's variables that a run has left."""
    return report(workdir)["sites"]


def std(prediction: Any) -> np.ndarray:
    """[N] of numbers: standard deviations."""
    return prediction.std


def members(predictor: Any) -> list[int]:
    """Numbers of the members of a loaded ensemble."""
    return list(predictor.members)
