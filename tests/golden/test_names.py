"""Names that users have written down: a change of them is seen, and meant.

`python -m tests.golden.test_names` renews `names.json`.
"""

import inspect
import json
import pathlib

import ensemble
from ensemble import registry
from ensemble.config import RUN, flatten, likelihood_block, method_block, model_block, task_block

NAMES = pathlib.Path(__file__).resolve().parent / "names.json"


def signature(value):
    """How something is called, without types; of a class, its constructor and public methods."""
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value) and issubclass(value, BaseException):
        return "exception"
    if inspect.isclass(value):
        methods = inspect.getmembers(value, inspect.isfunction)
        own = {name: one for name, one in methods if one.__module__.startswith("ensemble")}
        public = {name: signature(one) for name, one in own.items() if not name.startswith("_")}
        return {"": signature(value.__init__), **public}
    parameters = inspect.signature(value).parameters.values()
    return [str(one.replace(annotation=inspect.Parameter.empty)) for one in parameters]


def names():
    """Public names with their signatures; configuration keys with their defaults and owners."""
    return {
        "ensemble": {name: signature(getattr(ensemble, name)) for name in ensemble.__all__},
        "config": flatten(ensemble.default_config()),
        "keys": {"run": sorted(RUN.keys)}
        | {f"task {name}": sorted(task_block(name).keys) for name in registry.TASKS}
        | {f"method {name}": sorted(method_block(name).keys) for name in registry.METHODS}
        | {
            f"model {name}": sorted(model_block(name).keys)
            for name in registry.NETWORKS.built_in
            if model_block(name).keys
        }
        | {
            f"likelihood {name}": sorted(likelihood_block(name).keys)
            for name in registry.LIKELIHOODS.built_in
            if likelihood_block(name).keys
        },
    }


def test_public_names_and_configuration_keys_are_as_they_were():
    stored = json.loads(NAMES.read_text())
    found = json.loads(json.dumps(names()))
    assert found.keys() == stored.keys()
    for part, entries in stored.items():
        assert found[part] == entries


if __name__ == "__main__":
    NAMES.write_text(json.dumps(names(), indent=1) + "\n")
