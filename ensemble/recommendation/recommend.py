"""Recommendations of a workdir to one user: `ensemble.recommend`, which the command prints."""

import dataclasses
import numbers
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.special

from ensemble.config import flatten
from ensemble.data.catalogue import load
from ensemble.data.source import Request, check_same_data
from ensemble.errors import InputError, aligned, shown
from ensemble.predictor import restore
from ensemble.priors import Prior, parse_prior, sample_prior
from ensemble.recommendation.dataset import FRAME, RATINGS, InteractionDataset, given_interactions
from ensemble.recommendation.interactions import Item
from ensemble.recommendation.scores import NUM_RECOMMENDED, best_unseen, num_of, outputs_of
from ensemble.sharding import startup
from ensemble.storage.workdir import Workdir

_VERBS = {"probability": "watched", "rating": "rated"}
_TAIL = 0.05  # Of the draws, below and above an interval.
_NEW_STREAM = 2**32 - 3  # The seed is folded with it to draw new users; with the one below, items.


class Recommendation(NamedTuple):
    """One item for one user.

    Attributes:
        item: Id in the data.
        title: Title in the data; the id if they have none.
        genre: First genre; empty if the data have none.
        share: Share of the draws that recommend the item first.
        mean: Mean over draws of the probability of watching it, or of the expected rating.
        low: 5% of the draws have a lower one.
        high: 5% have a higher one.
    """

    item: str
    title: str
    genre: str
    share: float
    mean: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Answer:
    """Recommendations to a user. As text, it is a table, an item a line.

    Attributes:
        user: Id in the data.
        of: Prediction: the `probability` of watching an item, or its `rating`.
        items: The best ones that the user has not watched or rated, the best first; or the one that
            was asked for.
        num_seen: Number of items that the user has watched or rated.
        num_draws: Number of draws of the posterior.
        from_prior: `user`, `item`, both or none: those of which nothing was learned, so that the
            prior answers.
        notes: Sentences on these.
    """

    user: str
    of: str
    items: tuple[Recommendation, ...]
    num_seen: int
    num_draws: int
    from_prior: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        heads = (
            "title",
            "genre",
            {"probability": "prob"}.get(self.of, self.of),
            "5%",
            "95%",
            "first",
        )
        rows = []
        for one in self.items:
            values = [f"{value:.3f}" for value in (one.mean, one.low, one.high)]
            rows.append([shown(one.title), shown(one.genre), *values, f"{one.share:.0%}"])
        first, *others = aligned([heads, *rows], (0, 1))
        seen = f"User {shown(self.user)} has {_VERBS[self.of]} {self.num_seen:,} items."
        return "\n".join([*self.notes, seen, "", first, "-" * len(first), *others])

    def document(self) -> dict[str, Any]:
        """The same, JSON-ready."""
        items = [
            {self.of if key == "mean" else key: value for key, value in one._asdict().items()}
            for one in self.items
        ]
        return {
            "user": self.user,
            f"num_{_VERBS[self.of]}": self.num_seen,
            "num_draws": self.num_draws,
            "from_prior": [*self.from_prior],
            "recommendations": items,
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
        workdir: Directory of a run that factorised watches or ratings, finished or with draws.
        user: Id in the data; for another one the prior answers.
        top: Number of items, positive.
        item: Id or title of an item, to answer for it alone, seen or not; for one that the data do
            not have, the prior answers.
        data: Data frame that the run was handed over instead of `config.dataset`.
        data_dir: Directory of TFDS sets; by default the run's.

    Returns:
        The items, each with the mean over draws of the probability of watching it, or of its
        rating, and the range from 5% to 95% of the draws.

    Raises:
        InputError: The workdir is no such run, its data are others now, or an argument cannot be
            used.
    """
    startup.configure(None)
    asked = {"user": user} if item is None else {"user": user, "item": item}
    for kind, value in asked.items():
        if not (isinstance(value, str) or _is_whole(value)):
            raise InputError(
                f"{kind}={value!r} must be text or a whole number, as the data name the {kind}"
            )
    if not _is_whole(top) or top < 1:
        raise InputError(f"top={top!r} must be a positive whole number; use {NUM_RECOMMENDED}")
    restored = restore(Workdir(workdir))
    config, draws = restored.config, restored.fitted.sets["params"]
    if config["task"] != "factorisation":
        raise InputError(
            f"{workdir} has learned {config['dataset']}, which is not who watched or rated what; "
            "give the workdir of a run with config.model='matrix_factorisation'"
        )
    dataset = _dataset(str(workdir), restored, data_dir, data)
    user_ids, items = dataset.interactions.user_ids, dataset.interactions.items
    places = {"user": user_ids.index(str(user)) if str(user) in user_ids else len(user_ids)}
    if item is not None:
        places["item"] = _find(items, str(item))
    from_prior = []
    for (kind, place), known in zip(places.items(), dataset.is_known, strict=False):
        if place == len(known):
            draws = with_new(draws, parse_prior(config["prior"]), kind, config["seed"])
        if not known[place : place + 1].any():
            from_prior.append(kind)
    seen = dataset.seen(places["user"])
    if places.get("item") == len(items):
        items, seen = [*items, Item(str(item), str(item))], np.append(seen, False)
    outputs, of_ratings = outputs_of(draws, places["user"]), config["likelihood"] == RATINGS
    likelihood: Any = restored.likelihood
    values = scipy.special.expit(outputs)
    if of_ratings:
        values = likelihood.shift + likelihood.scale * outputs
    mean, (low, high) = values.mean(axis=0), np.quantile(values, [_TAIL, 1 - _TAIL], axis=0)
    shares = np.bincount(best_unseen(outputs, seen), minlength=len(items)) / len(values)
    chosen = [places["item"]] if item is not None else np.argsort(-mean, kind="stable")
    if item is None:
        chosen = chosen[~seen[chosen]][:top]
    return Answer(
        user=str(user),
        of="rating" if of_ratings else "probability",
        items=tuple(
            Recommendation(*items[one], *map(float, (shares[one], mean[one], low[one], high[one])))
            for one in chosen
        ),
        num_seen=int(seen.sum()),
        num_draws=num_of(draws),
        from_prior=tuple(from_prior),
        notes=tuple(
            f"Nothing was learned of {kind} {shown(str(asked[kind]))}: the answer is the prior's."
            for kind in from_prior
        ),
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _dataset(path: str, restored: Any, data_dir: str | None, data: Any) -> InteractionDataset:
    """The interactions that a run has learned, as they are now.

    Raises:
        InputError: They are not there, or have changed.
    """
    config, description = restored.config, restored.description
    if data is None and description["name"] == FRAME:
        raise InputError(
            f"{path} has learned a data frame, which is not kept: from Python call "
            "ensemble.recommend(WORKDIR, USER, data=FRAME)"
        )
    request = Request(data_dir or config["data_dir"], config["seed"], own=flatten(config))
    dataset: Any = (
        load(config["dataset"], request)
        if data is None
        else given_interactions(data).source(request)
    )
    check_same_data(path, description["fingerprint"], dataset.fingerprint, "restore the data")
    return dataset


def _find(items: list[Item], asked: str) -> int:
    """The number of an item by its id or its title; behind the last one if there is no such.

    Raises:
        InputError: Several have this title.
    """
    found = [k for k, one in enumerate(items) if one.id == asked]
    found = found or [k for k, one in enumerate(items) if one.title == asked]
    if len(found) > 1:
        raise InputError(
            f"{len(found)} items have the title {shown(asked)}: give the id of one as item"
        )
    return found[0] if found else len(items)


def with_new(
    draws: Mapping[str, Any], priors: tuple[Prior, ...], kind: str, seed: int
) -> dict[str, Any]:
    """Puts one more user, or one more item, at the end of draws, drawn from the prior for each.

    Nothing is known of it but what is known of all, so that its posterior is the prior.

    Args:
        draws: Parameters [K, ...].
        priors: Priors of the run.
        kind: `user` or `item`.
        seed: Seed of the run.
    """
    # A new user and a new item are drawn independently.
    name, stream = ("user", _NEW_STREAM) if kind == "user" else ("movie", _NEW_STREAM - 1)
    own = {one: draws[one] for one in (f"{name}_embeddings", f"{name}_bias")}
    shapes = {
        one: jax.ShapeDtypeStruct((1, *leaf.shape[2:]), np.float32) for one, leaf in own.items()
    }
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), stream), num_of(draws))
    new = jax.vmap(lambda key: sample_prior(key, priors, shapes))(keys)
    joined = {one: np.concatenate([leaf, new[one]], axis=1) for one, leaf in own.items()}
    return {**draws, **joined}
