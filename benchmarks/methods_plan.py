"""The cells of methods.py: which there are, and in which order."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

import methods_cells as cells
import methods_compare
import methods_data

NUM_SEEDS, POOL = 5, 24
LENGTHS = (1, 0.5, 2, 4)
"""Units of c for which networks of finals train, the first stages first; half a unit is for deep
ensembles at 1c."""
NUM_LARGE, LARGE = 3, 16
"""Entries beside the deep ensemble that have so many c."""


class Group(NamedTuple):
    """Cells that one program makes.

    Attributes:
        data: of `methods_data.SETS`.
        stage: 'guess', 'length', 'price', 'fit' of what SWAG needs beside its steps, 'trial',
            'final', 'large' for finals at 16c, or 'look'.
        family: of `methods_cells.FAMILIES`.
        own: number of the keys of its own, of 'price', 'trial' and 'look'.
        length: of a network, in units of c.
        networks: of an entry, of 'large' and 'look'.
        rate: of 'look'; 0: that of the winner.
    """

    data: str
    stage: str
    family: str = "plain"
    own: int = 0
    length: float = 1
    networks: int = 0
    rate: float = 0.0


HIGH_RATE = 0.0092
"""More than networks have tried on concrete and kin8nm; rates of chains are others."""
LOOKS = (
    Group("concrete", "look", "plain", 0, 1, 4, HIGH_RATE),
    Group("concrete", "look", "packed", 1, 2, 2, HIGH_RATE),
    Group("concrete", "look", "swag", 2, 1, 4, HIGH_RATE),
    Group("kin8nm", "look", "plain", 0, 1, 4, HIGH_RATE),
    Group("kin8nm", "look", "packed", 1, 2, 2, HIGH_RATE),
    Group("kin8nm", "look", "swag", 1, 1, 4, HIGH_RATE),
    Group("fashion_mnist", "look", "dropout", 1, 4, 1),
    Group("fashion_mnist", "look", "dropout", 2, 4, 1),
    Group("fashion_mnist", "look", "dropout", 3, 4, 1),
)
"""Settings that nobody had tried, looked into when the tables were known."""


def looks(data: str, families: Collection[str]) -> list[Group]:
    """Lists the `LOOKS` of a data set that are of some families."""
    return [one for one in LOOKS if one.data == data and one.family in families]


def groups(data: str, families: Collection[str] = tuple(cells.FAMILIES)) -> Iterator[Group]:
    """All of a data set but those with 16c, in their order.

    Args:
        data: as said.
        families: that train, beside plain networks with what is made of them.
    """
    yield Group(data, "guess")
    yield Group(data, "price")
    yield Group(data, "length")
    yield Group(data, "price", "laplace")
    if "swag" in families:
        yield Group(data, "fit", "swag")
    trained = [
        name
        for name, one in cells.FAMILIES.items()
        if name in {"plain", *families}
        and not one.around
        and not (one.of_tables and methods_data.SETS[data].clothes)
    ]
    for family in trained:
        about = cells.FAMILIES[family]
        for own in range(len(about.own) if about.tried else 0):
            if own == 0 or about.own_price:
                yield Group(data, "price", family, own)
            if not methods_data.SETS[data].tuned_on:
                yield Group(data, "trial", family, own)
    for length in LENGTHS:
        for family in trained:
            if size_of(Group(data, "final", family, length=length)):
                yield Group(data, "final", family, length=length)


def size_of(group: Group) -> int:
    """Networks of a group of finals."""
    if group.stage in ("large", "look"):
        return NUM_SEEDS * group.networks
    most = NUM_SEEDS * methods_compare.most_networks(group.family, group.length)
    is_pool = group.family == "plain" and group.length == 1
    return max(most, POOL) if is_pool else most


def key_of_entries(data: str) -> dict[str, str]:
    """The key of the row that compares a data set."""
    return {"data": data, "stage": "entries"}
