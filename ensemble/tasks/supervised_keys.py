"""The keys of what is learned from a data set by a network."""

from collections.abc import Mapping
from typing import Any

from ensemble import registry
from ensemble.errors import UserError
from ensemble.keys import TRUE_OR_FALSE, Block, Conflict, Key, Rule, described, named_in, one_of
from ensemble.likelihood_keys import AUTO
from ensemble.storage.table_schema import is_date_format


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


def _has_kinds(value: Any) -> bool:
    # These import much; the keys do not.
    from ensemble.sources.tables.column_kinds import parse_columns

    try:
        parse_columns(value)
    except UserError:
        return False
    return True


def _are_missing(value: Any) -> bool:
    from ensemble.sources.tables.column_kinds import parse_na_values  # As above.

    try:
        parse_na_values(value)
    except UserError:
        return False
    return True


def _is_split(value: str) -> bool:
    return not value or (value.partition(":")[0] in ("group", "time") and value[-1] != ":")


DATA = {
    "dataset": Key(
        "digits",
        "the data to learn from",
        described(
            "must be a known name, csv:PATH, parquet:PATH, npz:PATH, npy:FOLDER, "
            "records:FOLDER, folder:PATH or "
            "tfds:NAME"
        ),
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
        "what the network's outputs say of a target; auto: by the column to learn of a table",
        named_in(registry.LIKELIHOODS, AUTO),
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

TABLE = {
    "target": Key("", "the column of a table to learn", described("must be a column's name")),
    "columns": Key(
        None,
        "kinds of a table's columns; None: by their values",
        Rule(
            _has_kinds,
            "must be kinds of a table's columns, of number, boolean, date, category and drop, such "
            "as 'zip=category, id=drop'",
        ),
        kind=object,
    ),
    "split": Key(
        "",
        "column whose groups are kept in one split, or whose latest rows test; empty: at random",
        Rule(_is_split, "must be group:COLUMN or time:COLUMN of a table, or empty"),
    ),
    "season": Key(
        0,
        "rows of a season: reports have the value of so many rows before beside the ensemble; 0: "
        "none",
        Rule(lambda value: value == 0 or value > 1, "must be 0, or at least 2 rows"),
    ),
    "date_format": Key(
        "",
        "how a table's dates are written; empty, or else: as ISO 8601 has it",
        Rule(
            lambda form: not form or is_date_format(form),
            "must be day, month and year in the words of Python's strptime, such as '%d.%m.%Y'",
        ),
    ),
    "na_values": Key(
        None,
        "texts and numbers that stand for a missing value in a table, beside NA and the like",
        Rule(_are_missing, "must be such as 'unknown, -999'"),
        kind=object,
    ),
    "scaling": Key(
        "standard",
        "what features in memory are scaled by: mean and deviation; or, robust, median and "
        "quartiles where tails are heavy, whose far values come nearer",
        one_of("standard", "robust"),
    ),
}
"""Keys of tasks that learn from tables."""


def _conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    return prior_conflicts(values) + split_conflicts(values)


def split_conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    """A season of rows that have no order, or a column to split by, where nothing is split."""
    if values.get("season") and not values.get("split", "").startswith("time:"):
        line = f"config.season={values['season']} needs config.split=time:COLUMN"
        return [Conflict(("season",), f"{line}; set that, or leave the season out")]
    if not values.get("split") or values.get("hold_out", True):
        return []
    line = f"config.split={values['split']!r} has nothing to split with config.hold_out=False"
    return [Conflict(("split", "hold_out"), f"{line}; leave one of the two out")]


BLOCK = Block(
    {**DATA, **TABLE, **RESIZE},
    _conflicts,
)
