"""Recommendations of a workdir to one user: `ensemble.recommend`, which the command prints."""

import dataclasses
import numbers
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.special

from ensemble.data.catalogue import load
from ensemble.data.source import Request, check_same_data
from ensemble.errors import InputError, shown
from ensemble.predictor import restore
from ensemble.priors import parse_prior
from ensemble.recommendation.datasets import (
    Names,
    RatingDataset,
    WatchDataset,
    given_interactions,
)
from ensemble.recommendation.ratings import FRAME
from ensemble.recommendation.recommend import (
    NUM_RECOMMENDED,
    Link,
    Recommendation,
    num_of,
    recommended,
    with_new,
)
from ensemble.recommendation.watch_task import RATINGS, ratings_keys, restore_of_size
from ensemble.sharding import startup
from ensemble.storage.workdir import Workdir

_VERBS = {"probability": "watched", "rating": "rated"}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the draws of a run recommend to a user. As text, it is a table, an item a line.

    Attributes:
        user: as the data name the user.
        of: what is predicted: the `probability` of watching an item, or its `rating`.
        items: the best ones that the user has not watched or rated, the best first; or the one that
            was asked for.
        num_seen: how many items the user has watched or rated.
        num_draws: of the posterior.
        from_prior: `user`, `item`, both or none: those of whom nothing was learned, so that the
            answer is the prior's.
        notes: this in sentences.
    """

    user: str
    of: str
    items: tuple[Recommendation, ...]
    num_seen: int
    num_draws: int
    from_prior: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        seen = f"User {shown(self.user)} has {_VERBS[self.of]} {self.num_seen:,} items."
        return "\n".join([*self.notes, seen, "", format_table(self.items, self.of)])

    def document(self) -> dict[str, Any]:
        """The same, JSON-ready."""
        found = [one._asdict() for one in self.items]
        return {
            "user": self.user,
            f"num_{_VERBS[self.of]}": self.num_seen,
            "num_draws": self.num_draws,
            "from_prior": [*self.from_prior],
            "recommendations": [
                {self.of if key == "mean" else key: value for key, value in one.items()}
                for one in found
            ],
        }


def recommend(
    workdir: str | os.PathLike[str],
    user: str | int,
    *,
    top: int = NUM_RECOMMENDED,
    item: str | int | None = None,
    data: Any = None,
    data_dir: str | None = None,
) -> Answer:
    """Recommends items to a user, with how sure the posterior is.

    Args:
        workdir: of a run that factorised watches or ratings, finished or with draws.
        user: as the data have it; of another one the answer is the prior's.
        top: how many items, positive.
        item: the id or the title of an item, to answer for it alone, seen or not; of one that the
            data do not have, the answer is the prior's.
        data: the data frame that the run was handed over instead of `config.dataset`.
        data_dir: of TFDS sets; by default the run's, if they lie there.

    Returns:
        The items, each with the mean over draws of the probability of watching it, or of its
        rating, and the range from 5% to 95% of the draws.

    Raises:
        InputError: the workdir is no such run, its data are others now, or an argument cannot be
            used.
    """
    startup.configure(None)
    user_id, item_id = (
        _identifier("user", user),
        None if item is None else _identifier("item", item),
    )
    if isinstance(top, bool) or not isinstance(top, numbers.Integral) or top < 1:
        raise InputError(f"top={top!r} must be a positive whole number; use {NUM_RECOMMENDED}")

    restored = restore(Workdir(workdir))
    config, params = restored.config, restored.fitted.sets["params"]
    if config["task"] != "factorisation":
        raise InputError(
            f"{workdir} has learned {config['dataset']}, which is not who watched or rated what; "
            "give the workdir of a run with config.model='matrix_factorisation'"
        )
    dataset = _dataset(workdir, restored, data_dir, data)
    names, priors = dataset.names, parse_prior(config["prior"])
    num_users, num_items = len(names.user_ids), len(names.titles)
    restore_of_size(config, restored.description, params, num_users, num_items)
    at = _find(names.user_ids, user_id)
    seen = np.zeros(num_items, bool) if at == num_users else dataset.seen(at)
    asked, is_known = {"user": user_id}, {"user": dataset.is_known(0, at)}
    if at == num_users:
        params = with_new(params, priors, "user", config["seed"])
    number = None
    if item_id is not None:
        number = _find_item(names, item_id)
        asked["item"], is_known["item"] = item_id, dataset.is_known(1, number)
    if number == num_items:
        params = with_new(params, priors, "movie", config["seed"])
        names = names.with_item(item_id or "")
        seen = np.append(seen, False)
    of_ratings = config["likelihood"] == RATINGS
    link = _rating(restored.likelihood) if of_ratings else scipy.special.expit
    from_prior = tuple(kind for kind, known in is_known.items() if not known)
    return Answer(
        user=user_id,
        of="rating" if of_ratings else "probability",
        items=tuple(recommended(params, names, seen, at, int(top), link, number)),
        num_seen=int(seen.sum()),
        num_draws=num_of(params),
        from_prior=from_prior,
        notes=tuple(
            f"Nothing was learned of {kind} {shown(asked[kind])}: the answer is the prior's."
            for kind in from_prior
        ),
    )


def _identifier(kind: str, value: Any) -> str:
    """What names a user or an item, as text; data frames often have whole numbers."""
    is_number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not (isinstance(value, str) or is_number):
        raise InputError(
            f"{kind}={value!r} must be text or a whole number, as the data name the {kind}"
        )
    return str(value)


def _dataset(
    workdir: str | os.PathLike[str], restored: Any, data_dir: str | None, data: Any
) -> WatchDataset | RatingDataset:
    """What a run has learned, as it is now.

    Raises:
        InputError: it cannot be had, or is something else.
    """
    config, description = restored.config, restored.description
    name, keys = config["dataset"], ratings_keys(config)
    if data is None and description["name"] == FRAME:
        raise InputError(
            f"{workdir} has learned a data frame, which is not kept: from Python call "
            "ensemble.recommend(WORKDIR, USER, data=FRAME)"
        )
    request = Request(data_dir or config["data_dir"], config["seed"], own=keys)
    dataset: Any = load(name, request) if data is None else given_interactions(data).source(request)
    learned = description["fingerprint"]
    check_same_data(str(workdir), learned, dataset.fingerprint, "restore the data")
    return dataset


def _find(ids: Sequence[str], asked: str) -> int:
    """The number of a user or an item; behind the last one if there is no such."""
    return ids.index(asked) if asked in ids else len(ids)


def _find_item(names: Names, asked: str) -> int:
    """The number of an item by its id or its title; behind the last one if there is no such.

    Raises:
        InputError: several have this title.
    """
    found = _find(names.item_ids, asked)
    count = names.titles.count(asked)
    if found == len(names.item_ids) and count > 1:
        raise InputError(f"{count} items have the title {shown(asked)}: give the id of one as item")
    return found if found < len(names.item_ids) else _find(names.titles, asked)


def _rating(likelihood: Any) -> Link:
    """From the outputs of draws to ratings."""
    return lambda outputs: likelihood.shift + likelihood.scale * outputs


def format_table(items: Sequence[Recommendation], of: str) -> str:
    """Returns an aligned table, an item per line, whose numbers are probabilities or ratings."""
    items = [one._replace(title=shown(one.title), genre=shown(one.genre)) for one in items]
    width = max([5, *(len(one.title) for one in items)])
    genre_width = max([5, *(len(one.genre) for one in items)])
    of = {"probability": "prob"}.get(of, of)
    header = f"{'title':<{width}}  {'genre':<{genre_width}}  {of:>6}  {'5%':>6}  {'95%':>6}  first"
    rows = [
        f"{one.title:<{width}}  {one.genre:<{genre_width}}  {one.mean:6.3f}  "
        f"{one.low:6.3f}  {one.high:6.3f}  {one.share:5.0%}"
        for one in items
    ]
    return "\n".join([header, "-" * len(header), *rows])
