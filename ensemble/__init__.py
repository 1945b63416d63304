"""Deep ensembles and Bayesian posteriors of Flax networks, across devices.

`train` is the one entry; `load` gives a trained ensemble as a function, `evaluate` its report.
Importing the package imports neither JAX nor anything slow, so that `train` can settle XLA's flags
and the devices first.
"""

import gc
import importlib
from types import ModuleType
from typing import Any

__version__ = "2.0.0"

_EXPORTS = {
    "train": "ensemble.run.loop",
    "search": "ensemble.tuning.search",
    "compare_methods": "ensemble.tuning.compare_methods",
    "distill": "ensemble.run.distill",
    "load": "ensemble.predictor",
    "evaluate": "ensemble.report.evaluate",
    "select_members": "ensemble.selection",
    "EnsembleClassifier": "ensemble.sklearn",
    "EnsembleRegressor": "ensemble.sklearn",
    "default_config": "ensemble.config",
    "recommend": "ensemble.recommendation.recommend",
    "sample": "ensemble.numpyro_models.sample",
    "create_train_state": "ensemble.pmapped",
    "apply_model": "ensemble.pmapped",
    "update_model": "ensemble.pmapped",
    "InputError": "ensemble.errors",
    "TrainingError": "ensemble.errors",
    "Interrupted": "ensemble.errors",
    "networks": "ensemble.networks",
    "densities": "ensemble.random_walk.densities",
}
"""Module of each name; the last two are modules themselves."""

__all__ = [*_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'ensemble' has no attribute {name!r}")
    module = _imported(_EXPORTS[name])
    return getattr(module, name, module)


def _imported(module: str) -> ModuleType:
    """Imports without garbage collection, which looks at all that is imported again and again.

    That takes a fifth of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return sorted(__all__)
