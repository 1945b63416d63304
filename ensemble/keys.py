"""What a key of the configuration is: its default, its meaning and its rule, in one place.

Keys come in blocks. `ensemble.config` has the block of every run; each method and each task has a
block of its own beside its code, which `ensemble.registry` names. Modules with blocks import
nothing slow, for they are read before JAX starts.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ml_collections import config_dict

from ensemble.tenants import Tenants

MAX_STEPS = 2**31 - 1
"""The most steps of a run, or draws of a chain: they are numbered in 32 bits on the devices."""

MAX_MEMBERS = 2**20
"""The most members of an ensemble or a posterior: each has its own scalars and report entries."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a value must be, in words too, which may be asked for when they are needed."""

    holds: Callable[[Any], bool]
    words: str | Callable[[], str]

    @property
    def text(self) -> str:
        """The words."""
        return self.words if isinstance(self.words, str) else self.words()


def one_of(*values: str | int) -> Rule:
    """The rule of a key that takes one of these values."""
    return Rule(lambda value: value in values, f"must be one of {', '.join(map(str, values))}")


def named_in(tenants: Tenants[Any], *others: str) -> Rule:
    """The rule of a key that takes the name of a tenant, which anybody may add, or another."""
    return Rule(
        lambda value: value in others or value in tenants,
        lambda: f"must be one of {', '.join([*others, *tenants.names(installed=True)])}",
    )


def described(text: str) -> Rule:
    """The rule of a key whose type says enough here, or whose values are checked where they are
    used."""
    return Rule(lambda value: True, text)


POSITIVE = Rule(lambda value: value > 0, "must be positive")
NOT_NEGATIVE = Rule(lambda value: value >= 0, "must not be negative")
BELOW_ONE = Rule(lambda value: 0 <= value < 1, "must be at least 0 and below 1")
TRUE_OR_FALSE = Rule(lambda value: isinstance(value, bool), "must be True or False")


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of the configuration.

    Attributes:
        default: its value where nobody sets it; its type is the key's.
        meaning: in a few words.
        rule: that a value must keep.
        may_change: whether it may differ between two runs of one workdir.
        most: the largest whole number.
        kind: type of a key that may be left out, whose default is None.
    """

    default: Any
    meaning: str
    rule: Rule
    may_change: bool = False
    most: int = MAX_STEPS
    kind: type | None = None

    @property
    def blank(self) -> Any:
        """The default as a `ConfigDict` takes it."""
        return self.default if self.kind is None else config_dict.placeholder(self.kind)

    def is_off(self, value: Any) -> bool:
        """Whether a value says no more than that the key is not used."""
        return value in (None, 0, "", "none") and self.default in (None, 0, "", "none")


class Conflict(NamedTuple):
    """Values that cannot stand together.

    Attributes:
        keys: that the line speaks of.
        line: the values, the rule, the remedy.
    """

    keys: tuple[str, ...]
    line: str


def no_conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    """The conflicts of a block whose values can stand together whatever they are."""
    return []


@dataclasses.dataclass(frozen=True)
class Block:
    """The keys of a method, of a task, or of every run.

    Attributes:
        keys: by name, such as `sampler.step_size`.
        conflicts: called with the flat values of the whole configuration, each of which keeps its
            own rule; returns those that cannot stand together.
        instead: what to use in place of keys of other methods or tasks, by their names.
        rules: texts of rules, by key, that say more of this owner than `Key.rule` does of all.
        empty: what an empty value of a key stands for, by key.
        leaves_out: by key, whether a value is of other methods alone. Where the method was set by
            hand and the key was not, it is then left out, as keys are that only those methods have.
    """

    keys: Mapping[str, Key]
    conflicts: Callable[[Mapping[str, Any]], list[Conflict]] = no_conflicts
    instead: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    empty: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    leaves_out: Mapping[str, Callable[[Any], bool]] = dataclasses.field(default_factory=dict)
