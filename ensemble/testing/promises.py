"""What a contract promises, one rule at a time, and how a tenant that breaks one is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ensemble import registry


class BrokenPromise(AssertionError):
    """A tenant does not do what its contract promises: which rule, what to do, what was found."""


class Case(Protocol):
    """A tenant with what it is checked on."""

    @property
    def kind(self) -> str:
        """The kind of the tenant, such as `likelihood`."""

    @property
    def name(self) -> str:
        """The name of the tenant."""


@dataclasses.dataclass(frozen=True)
class Promise:
    """One rule of a contract.

    Attributes:
        name: of the rule, as a test has it.
        rule: what holds of every tenant of the kind, as a sentence without its full stop.
        remedy: what the author of a tenant that breaks it looks at.
        check: called with a case; raises if the rule is broken.
        applies: called with a case; whether the rule is of such a tenant.
    """

    name: str
    rule: str
    remedy: str
    check: Callable[[Any], None]
    applies: Callable[[Any], bool] = lambda _: True

    def keep(self, case: Case) -> None:
        """Checks the rule, if it is of this tenant.

        Raises:
            BrokenPromise: the rule is broken, or the tenant fails where it is tried.
        """
        if not self.applies(case):
            return
        try:
            self.check(case)
        except Exception as error:  # A tenant is a program, and may raise anything.
            told = str(error).strip() or "no further word"
            if not isinstance(error, AssertionError):
                told = f"{type(error).__name__}: {told}"
            who = registry.described(registry.tenants_of(case.kind), case.name)
            raise BrokenPromise(
                f"{who} breaks {self.name}: {self.rule}. Look at {self.remedy}.\n{told}"
            ) from error

    def __str__(self) -> str:
        return self.name


def promise(
    found: list[Promise], remedy: str, applies: Callable[[Any], bool] = lambda _: True
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Adds the function that follows to the rules of a kind; its docstring says the rule.

    Args:
        found: the rules.
        remedy: as of `Promise`.
        applies: likewise.
    """

    def add(check: Callable[[Any], None]) -> Callable[[Any], None]:
        rule = " ".join((check.__doc__ or "").split()).removesuffix(".")
        found.append(Promise(check.__name__, rule, remedy, check, applies))
        return check

    return add


def keep_all(promises: Sequence[Promise], case: Case) -> None:
    """Checks all rules of a kind, up to the first that is broken.

    Raises:
        BrokenPromise: one is broken.
    """
    for one in promises:
        one.keep(case)


def demand(holds: Any, told: str) -> None:
    """Says what was found where a rule does not hold; `python -O` leaves it in."""
    if not holds:
        raise AssertionError(told)


def of_data(said: Mapping[str, Any]) -> dict[str, Any]:
    """The likelihood that data mean, of a configuration that was completed for them."""
    return {key: said[key] for key in ("likelihood",) if key in said}
