"""Recommendations of a workdir to one user: `ensemble.recommend`, which the command prints."""

import dataclasses
import numbers
import os
from typing import Any

import jax
import numpy as np
import pandas as pd
import scipy.special

from ensemble.config import flatten
from ensemble.data.catalogue import load
from ensemble.data.source import Request, check_same_data
from ensemble.errors import InputError, aligned, shown
from ensemble.predictor import restore
from ensemble.priors import Prior, parse_prior, sample_prior
from ensemble.recommendation.dataset import FRAME, RATINGS, InteractionDataset, given_interactions
from ensemble.recommendation.scores import (
    NUM_RECOMMENDED,
    best_unseen,
    num_of,
    of_users,
    outputs_of,
)
from ensemble.recommendation.watch_likelihood import USERS
from ensemble.sharding import startup
from ensemble.storage.workdir import Workdir

_VERBS = {"probability": "watched", "rating": "rated"}
_TAIL = 0.05  # Of the draws, below and above an interval.
_NEW_STREAM = 2**32 - 3  # The seed is folded with it to draw new users.


@dataclasses.dataclass(frozen=True, eq=False)
class ItemPrediction:
    """Recommendations to a user. As text, it is a table, an item a line.

    Attributes:
        user: Id in the data.
        of: Prediction: the `probability` of watching an item, or its `rating`.
        table: Frame of the best items that the user has not watched or rated, the best first, or of
            the one that was asked for. Its columns are the id `item`, `title`, `genre`, `share`,
            the share of the draws that recommend the item first, `mean` over draws of what is
            predicted, and `low` and `high`, below and above which 5% of the draws are.
        num_seen: Number of items that the user has watched or rated.
        num_draws: Number of draws of the posterior.
        from_prior: `user` if nothing was learned of the user, so that the prior answers.
        notes: A sentence that says so.
    """

    user: str
    of: str
    table: pd.DataFrame
    num_seen: int
    num_draws: int
    from_prior: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def items(self) -> tuple[Any, ...]:
        """Rows of the table, with its columns as attributes."""
        return tuple(self.table.itertuples(index=False, name="Recommendation"))

    def __str__(self) -> str:
        heads = {"title": "title", "genre": "genre", "mean": self.of, "low": "5%", "high": "95%"}
        texts = self.table.map(lambda one: shown(one) if isinstance(one, str) else f"{one:.3f}")
        rows = texts[[*heads, "share"]].itertuples(index=False)
        first, *others = aligned([[*heads.values(), "first"], *rows], (0, 1))
        seen = f"User {shown(self.user)} has {_VERBS[self.of]} {self.num_seen:,} items."
        return "\n".join([*self.notes, seen, "", first, "-" * len(first), *others])

    def document(self) -> dict[str, Any]:
        """The same, JSON-ready."""
        return {
            "user": self.user,
            f"num_{_VERBS[self.of]}": self.num_seen,
            "num_draws": self.num_draws,
            "from_prior": [*self.from_prior],
            "recommendations": self.table.rename(columns={"mean": self.of}).to_dict("records"),
        }


def recommend(
    workdir: str | os.PathLike[str],
    user: str | int,
    *,
    top: int = NUM_RECOMMENDED,
    item: str | int | None = None,
    data: Any = None,
    data_dir: str | None = None,
) -> ItemPrediction:
    """Recommends items to a user, with how sure the posterior is.

    Args:
        workdir: Directory of a run that factorised watches or ratings, finished or with draws.
        user: Id in the data; for another one the prior answers.
        top: Number of items, positive.
        item: Id or title of an item, to answer for it alone, seen or not.
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
    for kind, value in (("user", user), ("item", "" if item is None else item)):
        if not (isinstance(value, str) or _is_whole(value)):
            raise InputError(
                f"{kind}={value!r} must be text or a whole number, as the data name the {kind}"
            )
    if not _is_whole(top) or top < 1:
        raise InputError(f"top={top!r} must be a positive whole number; use {NUM_RECOMMENDED}")
    restored: Any = restore(Workdir(workdir))
    config = restored.config
    draws = restored.fitted.sets["params"]
    if config["task"] != "factorisation":
        raise InputError(
            f"{workdir} has learned {config['dataset']}, which is not who watched or rated what; "
            "give the workdir of a run with config.model='matrix_factorisation'"
        )
    dataset = _dataset(str(workdir), restored, data_dir, data)
    ids = dataset.interactions.user_ids
    of_ratings = config["likelihood"] == RATINGS
    at = ids.index(str(user)) if str(user) in ids else len(ids)
    is_known = at in dataset.splits["train"].inputs[:, 0]
    if at == len(ids):
        one = _new_user(draws, parse_prior(config["prior"]), config["seed"])
    else:
        one = of_users(draws, slice(at, at + 1))
    outputs = outputs_of(one)
    seen = dataset.seen(at)
    likelihood = restored.likelihood
    values = scipy.special.expit(outputs)
    if of_ratings:
        values = likelihood.shift + likelihood.scale * outputs
    low, high = np.quantile(values, [_TAIL, 1 - _TAIL], axis=0)
    first = np.bincount(best_unseen(outputs, seen), minlength=len(seen))
    items = dataset.interactions.items.assign(
        share=first / len(values), mean=values.mean(axis=0), low=low, high=high
    )
    if item is None:
        chosen = items[~seen].sort_values("mean", ascending=False, kind="stable").head(top)
    else:
        chosen = _named(items, str(item))
    note = f"Nothing was learned of user {shown(str(user))}: the answer is the prior's."
    return ItemPrediction(
        user=str(user),
        of="rating" if of_ratings else "probability",
        table=chosen,
        num_seen=int(seen.sum()),
        num_draws=num_of(draws),
        from_prior=() if is_known else ("user",),
        notes=() if is_known else (note,),
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _dataset(path: str, restored: Any, data_dir: str | None, data: Any) -> InteractionDataset:
    """The interactions that a run has learned, as they are now.

    Raises:
        InputError: They are not there, or have changed.
    """
    config = restored.config
    description = restored.description
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


def _named(items: pd.DataFrame, asked: str) -> pd.DataFrame:
    """The item of an id or a title.

    Raises:
        InputError: None has it, or several have this title.
    """
    found = items[items["item"] == asked]
    if found.empty:
        found = items[items["title"] == asked]
    if len(found) != 1:
        raise InputError(
            f"{len(found)} items have the id or the title {shown(repr(asked))}: give the id of one"
        )
    return found


def _new_user(draws: Any, priors: tuple[Prior, ...], seed: int) -> Any:
    """Draws [K, ...] with one user alone, of whom nothing is known but the prior."""
    shapes = {name: jax.ShapeDtypeStruct((1, *draws[name].shape[2:]), np.float32) for name in USERS}
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), _NEW_STREAM), num_of(draws))
    return {**draws, **jax.vmap(lambda key: sample_prior(key, priors, shapes))(keys)}
