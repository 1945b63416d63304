"""The keys of a probabilistic model that is sampled."""

from collections.abc import Mapping
from typing import Any

from ensemble.keys import Block, Conflict, Key, described
from ensemble.tasks.supervised_keys import DATA


def _conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    """What a posterior of a model cannot be."""
    found = []
    if values.get("temperature", 1) != 1:
        line = (
            f"config.temperature={values['temperature']} divides the likelihood of networks; "
            f"config.model={values['model']!r} has its own: leave it out, and write it there with "
            "numpyro.handlers.scale"
        )
        found.append(Conflict(("temperature",), line))
    if values.get("sampler.mass") == "kronecker":
        line = (
            "config.sampler.mass='kronecker' is for logistic regression; with "
            f"config.model={values['model']!r} use 'diagonal' or 'dense'"
        )
        found.append(Conflict(("sampler.mass",), line))
    return found


BLOCK = Block(
    {
        "model": DATA["model"],
        "data": Key(
            "",
            "file with the arguments of the model, by name; empty: it takes none",
            described("must be a path that ends in .json or .npz, or empty"),
        ),
    },
    _conflicts,
    instead={
        "dataset": "config.data names the file with the model's arguments",
        "prior": "the model has its priors",
        "likelihood": "the model has its likelihood",
    },
)
