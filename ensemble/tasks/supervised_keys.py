"""The keys of what is learned from a data set by a network."""

from collections.abc import Mapping
from typing import Any

from ensemble import registry
from ensemble.errors import UserError
from ensemble.keys import TRUE_OR_FALSE, Block, Conflict, Key, Rule, described, one_of


def prior_conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    """A prior that cannot be read."""
    from ensemble.priors import parse_prior  # It imports JAX; the keys do not.

    try:
        parse_prior(values["prior"])
    except UserError as error:
        return [Conflict(("prior",), str(error))]
    return []


def _is_size(value: Any) -> bool:
    from ensemble.sources.image_form import parse_size  # It imports JAX; the keys do not.

    try:
        parse_size(value)
    except UserError:
        return False
    return True


DATA = {
    "dataset": Key(
        "digits",
        "the data to learn from",
        described("must be a known name, npz:PATH, npy:FOLDER, folder:PATH or tfds:NAME"),
    ),
    "data_dir": Key(
        "",
        "folder of prepared TFDS sets; empty: $TFDS_DATA_DIR or ~/tensorflow_datasets",
        described("must be a path, or empty"),
        may_change=True,
    ),
    "hold_out": Key(
        True,
        "whether validation and calibration data are carved off, or learned too",
        TRUE_OR_FALSE,
    ),
    "model": Key("cnn", "the network, by its name", described("must be a registered name")),
    "likelihood": Key(
        "categorical",
        "what the network's outputs say of a target",
        one_of(*registry.LIKELIHOODS),
    ),
    "prior": Key(
        "none",
        "the prior of the parameters, by group; samplers have a default one",
        described("must be none, or terms such as *bias=normal(1), *=laplace(0.1)"),
    ),
}
"""Keys of every task that has a data set, a model and a prior."""

RESIZE = {
    "resize": Key(
        None,
        "size that pictures from files get; None: all must have one",
        Rule(_is_size, "must be None, a side such as 64, or '64x48' (height x width)"),
        kind=object,
    )
}

BLOCK = Block(
    {**DATA, **RESIZE},
    prior_conflicts,
    instead={"density": "config.dataset says what is learned"},
)
