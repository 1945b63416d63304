"""Recommendations of a workdir to one user: `ensemble.recommend`, which the command prints."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import jax
import numpy as np
import scipy.special
from etils.epath import PathLike
from jax import random
from pandas import DataFrame

from ensemble.config import flatten
from ensemble.data.catalogue import load
from ensemble.data.source import Request, check_same_data
from ensemble.errors import InputError, shown
from ensemble.priors import parse_prior, sample_prior
from ensemble.pytrees import ByName
from ensemble.recommendation.dataset import FRAME, RATINGS, given_interactions
from ensemble.recommendation.factorisation import NUM_RECOMMENDED, of_users
from ensemble.recommendation.likelihood import USERS, outputs_of
from ensemble.runtime.loading import restore
from ensemble.sharding import startup
from ensemble.storage.workdir import Workdir

_NEW_STREAM = 2**32 - 3  # The seed is folded with it to draw new users.


@dataclass(frozen=True, eq=False)
class ItemPrediction:
    """Recommendations to a user. As text, it is a table, an item a line.

    Attributes:
        user: Id in the data.
        of: Prediction: the `probability` of watching an item, or its `rating`.
        table: Frame of the best items that the user has not watched or rated, the best first, or of
            the one that was asked for. Its columns are the id `item`, `title`, `mean` over draws
            of what is predicted, and `low` and `high`, below and above which 5% of the draws are.
        num_seen: Number of items that the user has watched or rated.
        from_prior: `user` if nothing was learned of the user, so that the prior answers.
    """

    user: str
    of: str
    table: DataFrame
    num_seen: int
    from_prior: tuple[str, ...]

    @property
    def items(self) -> tuple[Any, ...]:
        """Rows of the table, with its columns as attributes."""
        return tuple(self.table.itertuples(index=False, name="Recommendation"))

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence if the prior answers."""
        note = f"Nothing was learned of user {shown(self.user)}: the answer is the prior's."
        return (note,) * len(self.from_prior)

    def __str__(self) -> str:
        table = (
            self.table[["title", "mean", "low", "high"]]
            .set_axis(["title", self.of, "5%", "95%"], axis=1)
            .to_string(index=False, float_format="{:.3f}".format, formatters={"title": shown})
        )
        seen = f"User {shown(self.user)} has seen {self.num_seen:,} items."
        return "\n".join([*self.notes, seen, "", table])

    def document(self) -> ByName:
        """The same, JSON-ready."""
        found = {**vars(self), "recommendations": self.table.to_dict("records")}
        del found["table"]
        return found


def recommend(
    workdir: PathLike,
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
    for name, value in (("user", user), ("item", item or "")):
        if not isinstance(value, str | Integral):
            raise InputError(
                f"{name}={value!r} must be text or a whole number, as the data name the {name}"
            )
    if not isinstance(top, Integral) or top < 1:
        raise InputError(f"top={top!r} must be a positive whole number; use {NUM_RECOMMENDED}")
    restored = restore(Workdir(workdir))
    config = restored.config
    learned = restored.description
    if config["task"] != "factorisation":
        raise InputError(
            f"{workdir} has learned {config['dataset']}, which is not who watched or rated what; "
            "give the workdir of a run with config.model='matrix_factorisation'"
        )
    if data is None and learned["name"] == FRAME:
        raise InputError(
            f"{workdir} has learned a data frame, which is not kept: from Python call "
            "ensemble.recommend(WORKDIR, USER, data=FRAME)"
        )
    request = Request(data_dir or config["data_dir"], config["seed"], own=flatten(config))
    dataset: Any = (
        load(config["dataset"], request)
        if data is None
        else given_interactions(data).source(request)
    )
    check_same_data(str(workdir), learned["fingerprint"], dataset.fingerprint, "restore the data")
    ids = dataset.user_ids
    number = ids.index(str(user)) if str(user) in ids else -1
    is_known = number in dataset.splits["train"].inputs[:, 0]
    draws = restored.fitted.sets["params"]
    if is_known:
        draws = of_users(draws, slice(number, number + 1))
    else:
        # As many new users as draws, of whom nothing is known but the prior.
        key = random.fold_in(random.key(config["seed"]), _NEW_STREAM)
        shapes = {one: draws[one][:, 0] for one in USERS}
        new = sample_prior(key, parse_prior(config["prior"]), shapes)
        draws = {**draws, **{one: new[one][:, None] for one in USERS}}
    outputs = np.asarray(jax.vmap(outputs_of)(draws)[:, 0])
    likelihood = restored.task.likelihood
    of_ratings = config["likelihood"] == RATINGS
    values = scipy.special.expit(outputs)
    if of_ratings:
        values = likelihood.shift + likelihood.scale * outputs
    rows = dataset.rows
    seen = np.isin(range(outputs.shape[1]), rows["item"][rows["user"] == number])
    low, high = np.quantile(values, [0.05, 0.95], axis=0)
    items = dataset.items.assign(mean=values.mean(axis=0), low=low, high=high)
    if item is None:
        chosen = items[~seen].sort_values("mean", ascending=False, kind="stable").head(top)
    else:
        chosen = items[(items[["item", "title"]] == str(item)).any(axis=1)]
        if len(chosen) != 1:
            raise InputError(
                f"{len(chosen)} items have the id or the title {shown(repr(item))}: give the id of "
                "one"
            )
    return ItemPrediction(
        user=str(user),
        of="rating" if of_ratings else "probability",
        table=chosen,
        num_seen=int(seen.sum()),
        from_prior=() if is_known else ("user",),
    )
