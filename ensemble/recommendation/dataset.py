"""The source of interactions: pairs of users and items to learn, and those that are held out."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ensemble.data.data_forms import Given
from ensemble.data.dataset import Dataset
from ensemble.data.source import Examples, Request
from ensemble.data.splitting import POOL
from ensemble.data.tables import is_table
from ensemble.errors import InputError, shown
from ensemble.notes import note
from ensemble.recommendation.interactions import (
    PAIR,
    Interactions,
    check_matrix,
    generate_watches,
    of_frame,
    read_frame,
)

FRAME = "arrays"
"""Name of data that a program hands over."""
RATINGS = "gaussian_homoscedastic"
"""`config.likelihood` of ratings; another learns who has watched what."""
_SHARE = 0.1  # Of the interactions, or of the users, is held out.
_HOLD_OUT_STREAM = 5


@dataclasses.dataclass(frozen=True, eq=False)
class InteractionDataset(Dataset):
    """Pairs of a user and an item in the splits `train` and `test`.

    Targets are ratings; or classes of watches: `train` has the watched pairs, `test` held-out ones
    of both classes, and all others are known not to be watched.

    Attributes:
        interactions: All of them, held-out ones too.
        weights: How often each training pair counts, float32 [R].
    """

    interactions: Interactions
    weights: np.ndarray

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change when pairs, targets or weights do."""
        digest = hashlib.blake2b(super().fingerprint.encode(), digest_size=8)
        digest.update(self.weights.tobytes())
        return digest.hexdigest()

    @functools.cached_property
    def signs(self) -> np.ndarray:
        """Watches [N, M]: 1 where user i has watched item j, -1 if not, 0 where that is held out.

        int8; float32, in which watches are multiplied by their weights, if they have some.
        """
        dtype = np.int8 if (self.weights == 1).all() else np.float32
        signs = np.full(self.interactions.shape, -1, dtype)
        signs[tuple(self.splits["train"].inputs.T)] = self.weights
        signs[tuple(self.splits["test"].inputs.T)] = 0
        return signs

    def seen(self, user: int) -> np.ndarray:
        """Whether a user has watched or rated each item, bool [M], held-out ones too."""
        rows = self.interactions.rows
        items = rows["item"][rows["user"] == user]
        return np.bincount(items, minlength=len(self.interactions.items)) > 0


def load_interactions(name: str, request: Request) -> InteractionDataset:
    """Reads `ratings:FILE` or MovieLens, or generates `watches:`, and holds a tenth out."""
    if name.startswith("watches:"):
        return split(generate_watches(name, request.seed), request)
    return split(of_frame(read_frame(name, request), name, request), request)


def given_interactions(data: Any) -> Given:
    """Takes data of a program: a data frame, or a mapping from columns to their values.

    Raises:
        InputError: They are in another form.
    """
    if not (is_table(data) or isinstance(data, Mapping)):
        raise InputError(
            f"data is a {type(data).__name__}, and config.model='matrix_factorisation' learns who "
            "watched or rated what: give a data frame with columns of users and items"
        )
    return _GivenInteractions({POOL: Examples(data, data)}, is_table=True)


class _GivenInteractions(Given):
    """Interactions in a data frame."""

    def source(self, request: Request) -> InteractionDataset:
        """Checks the data, and holds a tenth of them out."""
        data: Any = self.parts[POOL].inputs
        frame = data.to_pandas() if hasattr(data, "to_pandas") else pd.DataFrame(data)
        return split(of_frame(frame, FRAME, request), request)

    def defaults(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Suggests nothing: a factorisation has settings of its own."""
        return {}


def split(found: Interactions, request: Request) -> InteractionDataset:
    """Holds out a tenth of each user's interactions, the latest tenth, or a tenth of the users.

    Watches that are repeated become one, whose weight is the sum of its rows'. Unwatched items are
    held out at the rate of each user's watched ones: what is left, and what is held out, both have
    the odds of the whole row, so that a model of one is right for the other. What is drawn of a
    user depends on the user's own row and id, and the seed.

    Args:
        found: The interactions.
        request: Request; `own` is the configuration.

    Raises:
        InputError: There is too little to hold out, or to learn.
    """
    keys = request.own or {}
    rows = found.rows
    class_names = None
    split_by = keys.get("split_by", "random")
    of_ratings = keys.get("likelihood") == RATINGS
    for column, is_needed in (("rating", of_ratings), ("time", split_by == "time")):
        if is_needed and column not in rows:
            raise InputError(
                f"{found.name} has no column {column}, which config.likelihood={RATINGS!r} and "
                "config.split_by='time' need: name it so, or set others"
            )
    if "weight" not in rows:
        rows = rows.assign(weight=1.0)
    rows = _each_pair_once(found, rows, of_ratings)
    if not of_ratings:
        class_names = ("not watched", "watched")
        check_matrix(found.name, found.shape)
    is_held = np.zeros(len(rows), bool)
    if split_by == "time":
        times = rows["time"].to_numpy()
        is_held = times >= np.sort(times)[-max(1, round(_SHARE * len(times)))]
    elif split_by == "user":
        numbers = range(len(found.user_ids))
        order = sorted(numbers, key=lambda k: _hash(f"{request.seed} {found.user_ids[k]}"))
        is_held = np.isin(rows["user"], order[: max(1, round(_SHARE * len(order)))])
    items = rows["item"].to_numpy()
    parts = []
    by_user = rows.groupby("user").indices if split_by == "random" or not of_ratings else {}
    for user, places in by_user.items():
        rng = np.random.default_rng([_HOLD_OUT_STREAM, request.seed, _hash(found.user_ids[user])])
        if split_by == "random":
            size = min(max(1, round(_SHARE * len(places))), len(places) - 1)
            is_held[rng.choice(places, size, replace=False)] = True
        if of_ratings:
            continue
        held = items[places[is_held[places]]]
        unwatched = np.delete(np.arange(found.shape[1]), items[places])
        size = round(len(held) / len(places) * len(unwatched))
        if 0 < len(held) < len(places):
            size = max(0, min(max(1, size), len(unwatched) - 1))
        chosen = np.concatenate([held, np.sort(rng.choice(unwatched, size, replace=False))])
        parts.append([np.full_like(chosen, user), chosen, np.arange(len(chosen)) < len(held)])
    pairs = rows[PAIR].to_numpy(np.int32)
    targets = np.ones(len(rows), np.int32)
    if of_ratings:
        targets = rows["rating"].to_numpy(np.float32)
        test = Examples(pairs[is_held], targets[is_held])
    else:
        *columns, labels = np.concatenate(parts, axis=1).astype(np.int32)
        test = Examples(np.stack(columns, axis=1), labels)
    # Watches are scored on pairs of both classes.
    if is_held.all() or len(np.unique(test.targets)) < 2 - of_ratings:
        raise InputError(
            f"{found.name} has too few interactions, users or times for config.split_by="
            f"{split_by!r}; use more data, or another split"
        )
    splits = {"train": Examples(pairs[~is_held], targets[~is_held]), "test": test}
    weights = rows["weight"].to_numpy(np.float32)[~is_held]
    return InteractionDataset(found.name, splits, class_names, found, weights)


def _each_pair_once(found: Interactions, rows: pd.DataFrame, of_ratings: bool) -> pd.DataFrame:
    """The rows; of watches by users and items, with the sums of the weights of equal pairs.

    Raises:
        InputError: A user rates an item twice.
    """
    repeats = rows[rows.duplicated(PAIR)]
    if of_ratings and len(repeats):
        user, item = repeats[PAIR].iloc[0]
        raise InputError(
            f"{found.name}: user {shown(repr(found.user_ids[user]))} rates "
            f"{shown(repr(found.items['title'][item]))} twice; remove the duplicates, or join them "
            "to one with a weight"
        )
    if of_ratings:
        return rows
    if "rating" in rows and not found.name.startswith("movielens/"):
        note(
            f"{found.name} has ratings, which are not used: who has watched what is learned. Set "
            f"config.likelihood={RATINGS!r} to learn the ratings."
        )
    if len(repeats):
        note(
            f"{found.name}: {len(repeats):,} of {len(rows):,} rows repeat a user and an item; a "
            "pair is learned once, with the sum of its rows' weights."
        )
    how = {one: "sum" if one == "weight" else "first" for one in rows if one not in PAIR}
    return rows.groupby(PAIR, as_index=False).agg(how)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
