"""What a score is: terms of a view, a rule that combines them, and how it is shown.

A file in `ensemble/scoring/scores/` is enough for a new one: whatever it declares by `@score` is
computed wherever such a view is scored. Both JSON files and the tables of an evaluation have it.
A score of a program, or of an installed package, is computed by an evaluation that asks for it.
"""

from __future__ import annotations

import functools
import importlib
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ensemble import registry
from ensemble.errors import UserError, in_own_code
from ensemble.metrics.analytic_intervals import Interval
from ensemble.metrics.checks import Floats
from ensemble.scoring import scores as _folder
from ensemble.scoring.combine import Combine, main, over_groups
from ensemble.scoring.view import View

_SMALL, _LARGE = 5e-5, 1e6  # Beyond these a number has an exponent.


def digits(value: float | None) -> str:
    """A number with four significant digits, of which at most four stand behind the point.

    A dash stands where there is none.
    """
    if value is None or math.isnan(value):
        return "-"
    if 0 < abs(value) < _SMALL or abs(value) >= _LARGE:
        return f"{value:.3g}"
    before = len(f"{abs(value):.0f}") if round(abs(value), 4) >= 1 else 0
    return f"{value:,.{max(4 - before, 0)}f}"


def percent(value: float | None) -> str:
    """A share as percent, with four significant digits, at most two of them behind the point."""
    if value is None or math.isnan(value):
        return "-"
    return "100%" if value == 1 else f"{100 * value:.2f}%"


@dataclass(frozen=True)
class Score:
    """A score of views of one type.

    Attributes:
        name: unique for a type of view.
        title: of a column of a table.
        of: the type of view.
        terms: of a view, [N] or [N, 2], as `combine` takes them; NaN where the target is unknown
            and the score is of known targets.
        combine: the rule.
        unit: of the score.
        better: what a better score is.
        under_shift: whether what a shift changes has an interval, and of what.
        of_members: whether it says something of a member by itself.
        each: settings of a view with which this is a score of its own, such as levels, whose
            percent is then in the name and the title for `{}`. None: it is one score. Of one that
            has `settings` too: those that are told unasked, by name.
        settings: what else it may be told where it is asked for by `NAME:TEXT`: called as
            `settings(text, class_names)`, it returns them, JSON-ready, or raises UserError. None:
            nothing.
        takes: what the text is, such as "FILE".
        setting: that this score has; None: it has none. Else `terms` and `combine` were called with
            it.
    """

    name: str
    title: str
    of: type[View]
    terms: Callable[..., Floats]
    combine: Any
    unit: Literal["none", "nats", "share", "target", "target_squared"] = "none"
    better: Literal["lower", "higher", "nearest", "neither"] = "lower"
    under_shift: Literal["", "difference", "ratio"] = ""
    of_members: bool = True
    each: Callable[[Any], Any] | None = None
    settings: Callable[[str, Sequence[str]], Any] | None = None
    takes: str = ""
    setting: Any = None

    def at(self, view: View) -> list[Score]:
        """The scores of a view that this stands for, unasked."""
        if self.each is None:
            return [] if self.settings else [self]
        if self.settings:
            return [self.having(one, name, self.title) for name, one in self.each(view).items()]
        return [self._at_level(one) for one in self.each(view)]

    def having(self, setting: Any, name: str, title: str) -> Score:
        """The score with one of its settings."""
        return replace(
            self,
            name=name,
            title=title,
            terms=lambda view: self.terms(view, setting),
            combine=self.combine(setting),
            each=None,
            settings=None,
            setting=setting,
        )

    def _at_level(self, level: float) -> Score:
        percent = percent_of(level)
        return self.having(level, self.name.format(percent), self.title.format(percent))

    def shown(self, value: float | None) -> str:
        """A value as tables show it; a dash where there is none."""
        return percent(value) if self.unit == "share" else digits(value)

    def known_terms(self, view: View) -> tuple[Floats, NDArray]:
        """The terms [K] or [K, 2] of the rows that have this score, and which these are, [N]."""
        terms = self.terms(view)
        if view.is_known.all():
            return terms, view.is_known  # The same array: its order may be known.
        is_nan = np.isnan(terms) if terms.ndim == 1 else np.isnan(terms).any(axis=1)
        has_score = view.is_known | ~is_nan  # NaN of a known target is a fault, and is seen.
        return terms[has_score], has_score

    def value(self, view: View) -> float:
        """The score of a view."""
        found: float = self.combine.value(self.known_terms(view)[0])
        return found

    def interval(
        self, view: View, groups: NDArray | None = None, level: float = 0.95
    ) -> Interval | None:
        """Its interval over examples, or over groups [N] of these."""
        terms, has_score = self.known_terms(view)
        rule: Combine = self.combine
        if groups is None:
            return rule.interval(terms, level)
        return over_groups(rule, terms, groups[has_score], level)

    def change(
        self, ours: View, theirs: View, level: float = 0.95, groups: NDArray | None = None
    ) -> Interval | None:
        """Does what `difference` does, for what is made of one ensemble or of its inputs; over
        groups if any."""
        return self._paired(self.combine.change, ours, theirs, level, groups)

    def ratio(
        self, ours: View, theirs: View, level: float = 0.95, groups: NDArray | None = None
    ) -> Interval | None:
        """Does what `change` does, for the second view's score over the first's."""
        return self._paired(self.combine.ratio, ours, theirs, level, groups)

    def _paired(
        self,
        rule: Callable[..., Interval | None],
        ours: View,
        theirs: View,
        level: float,
        groups: NDArray | None,
    ) -> Interval | None:
        first, second, has_score = self._pair(ours, theirs)
        return rule(first, second, level, None if groups is None else groups[has_score])

    def _pair(self, ours: View, theirs: View) -> tuple[Floats, Floats, NDArray]:
        """Terms of two views of the same examples, and which of these have the score."""
        (first, has_score), (second, also) = self.known_terms(ours), self.known_terms(theirs)
        if not np.array_equal(has_score, also):
            raise ValueError(f"{self.name} is of other examples of one view than of the other")
        return first, second, has_score

    def difference(self, ours: View, theirs: View, level: float = 0.95) -> Interval | None:
        """Interval of the second view's score less the first's, both of the same examples."""
        rule: Combine = self.combine
        first, second, _ = self._pair(ours, theirs)
        return rule.difference(first, second, level)


def percent_of(level: float) -> str:
    """How much an interval is to hold, as names of scores have it."""
    return f"{100 * level:.4g}"


_declared: list[Score] = []


def score(
    *, of: type[View], title: str, combine: Any, name: str = "", **how: Any
) -> Callable[[Callable[..., Floats]], Callable[..., Floats]]:
    """Declares a score; the function that follows makes its terms.

    Args:
        of: as of `Score`.
        title: likewise.
        combine: likewise.
        name: likewise; empty: the function's.
        **how: further fields of `Score`.
    """

    def declare(terms: Callable[..., Floats]) -> Callable[..., Floats]:
        made = Score(name or terms.__name__, title, of, terms, combine, **how)
        for one in list(_declared):
            is_related = issubclass(one.of, made.of) or issubclass(made.of, one.of)
            if _place(one) == _place(made):  # A cell of a notebook that runs again.
                _declared.remove(one)
            elif one.name == made.name and is_related:
                raise UserError(
                    f"there is a score {one.name!r} of {of.__name__} already, declared in "
                    f"{one.terms.__module__}; give yours another name"
                )
        _declared.append(made)
        return terms

    return declare


def _place(one: Score) -> tuple[str, str, str]:
    return one.terms.__module__, one.terms.__qualname__, one.name


@functools.cache
def declared() -> tuple[Score, ...]:
    """All scores of the folder."""
    for one in pkgutil.iter_modules(_folder.__path__):
        importlib.import_module(f"{_folder.__name__}.{one.name}")
    return tuple(one for one in _declared if one.terms.__module__.startswith(_folder.__name__))


def joined(name: str) -> Score | None:
    """A score that is registered, or of an installed package; None if there is none of that name.

    Raises:
        UserError: it cannot be loaded, or is none.
    """
    if name not in registry.SCORES:
        return None
    declared()  # The names of these are taken.
    terms = registry.load_code(registry.SCORES, name, registry.SCORES[name].terms)
    for one in _declared:
        if one.terms is terms:
            return replace(one, name=name, terms=_guarded(one, name))
    raise UserError(
        f"{registry.described(registry.SCORES, name)} is not declared as one: put "
        "@ensemble.scoring.score.score(...) in front of its function"
    )


def _guarded(one: Score, name: str) -> Callable[..., Floats]:
    """The terms of somebody's score, whose faults are said in a line."""
    whose = registry.described(registry.SCORES, name)

    @functools.wraps(one.terms)
    def terms(view: View, *setting: Any) -> Floats:
        try:
            found = np.asarray(one.terms(view, *setting), np.float64)
        except UserError:
            raise
        except Exception as error:  # It is a program, and may raise anything.
            raise UserError(f"{whose} failed {in_own_code(error)}; repair it") from error
        if found.shape[:1] != (view.num_rows,) or found.ndim > 2:
            raise UserError(
                f"{whose} has terms of shape {list(found.shape)}, and must have one for each of "
                f"the {view.num_rows} rows"
            )
        combine = one.combine(*setting) if setting else one.combine
        for end, sign in (("low", -1), ("high", 1)):
            limit = getattr(combine, end, None)
            worst = sign * np.fmax.reduce(sign * main(found), initial=-np.inf)  # Leaves NaN out.
            if limit is not None and sign * (worst - limit) > _ROUNDING * (1 + abs(limit)):
                raise UserError(
                    f"{whose} has the term {worst:.4g}, and says {end}={limit:g}: its interval "
                    f"would be wrong; correct {end}"
                )
        return found

    return terms


_ROUNDING = 1e-6
"""Terms may be beyond a limit by so much."""


def scores_of(view: View) -> Mapping[str, Score]:
    """The scores of a view, by name: those that all such views have, and those asked for."""
    kinds = type(view).__mro__
    found = {one.name: one for made in declared() if made.of in kinds for one in made.at(view)}
    return {**found, **{one.name: one for one in view.asked}}


def named(name: str) -> Score:
    """The declared score that a name in a file stands for, with the title that it has there.

    Raises:
        KeyError: there is none.
    """
    head, _, setting = name.partition(":")
    for one in declared():
        before, hole, _ = one.name.partition("{}")
        if hole and name.startswith(before):
            return replace(one, name=name, title=one.title.format(name.removeprefix(before)))
        if one.name == head:
            title = f"{one.title} ({setting})" if setting else one.title
            return replace(one, name=name, title=title)
    found = joined(head)
    if found is None:
        raise KeyError(name)
    return replace(found, name=name, title=f"{found.title} ({setting})" if setting else found.title)


def asked_for(texts: Iterable[str], view: View, class_names: Sequence[str]) -> tuple[Score, ...]:
    """The scores that a user asks for beside those that all such views have.

    Args:
        texts: `NAME:TEXT` of scores that have settings, as these are then named; or the name alone
            of one that is told anyway, or that has been registered or installed.
        view: that is scored.
        class_names: of its targets; empty where they are no classes.

    Raises:
        UserError: there is no such score of such a view, or it has no such settings.
    """
    for one in declared():
        if one.name in registry.SCORES.registered:
            raise UserError(f"the score {one.name!r} is built in; register yours by another name")
    found, kinds = [], type(view).__mro__
    of_view = {one.name: one for one in declared() if one.of in kinds}
    for text in texts:
        name, _, rest = text.partition(":")
        if text in scores_of(view):
            continue
        other = joined(name) if name not in of_view else None
        if other is not None and other.of in kinds:
            if other.settings is None and not rest:
                found += other.at(view)
                continue
            of_view[name] = other
        if name not in of_view:
            known = sorted(one.name for one in of_view.values() if one.settings)
            known += registry.SCORES.names(installed=True)
            raise UserError(
                f"--scores={text}: {name} is no score of such predictions that could be asked for; "
                f"choose from {', '.join(known) or 'none, there are none of such targets'}; your "
                "own is known once --config=FILE, or an import, has run what registers it"
            )
        score = of_view[name]
        if score.settings is None:
            raise UserError(f"--scores={text}: {name} has no settings; leave :{rest} out")
        if not rest:
            raise UserError(f"--scores={text}: say which; write {name}:{score.takes}")
        setting = score.settings(rest, class_names)
        found.append(score.having(setting, text, f"{score.title} ({rest})"))
    return tuple(found)
