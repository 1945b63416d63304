"""The source of interactions: pairs of users and items to learn, and those that are held out."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from ensemble.data.source import Examples, Request, Source
from ensemble.data.tables import is_table
from ensemble.errors import InputError, shown
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
_SHARE = 0.1  # Of the interactions is held out.
_HOLD_OUT_STREAM = 5


@dataclasses.dataclass(frozen=True, eq=False)
class InteractionDataset(Source):
    """Pairs of a user and an item in the splits `train` and `test`.

    Targets are ratings; or classes of watches: `train` has the watched pairs, `test` held-out ones
    of both classes, and all others are known not to be watched.

    Attributes:
        interactions: All of them, held-out ones too.
        weights: How often each training rating counts, float32 [R].
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
        """Watches [N, M] int8: 1 where user i has watched item j, -1 if not, 0 if held out."""
        signs = np.full(self.interactions.shape, -1, np.int8)
        signs[tuple(self.splits["train"].inputs.T)] = 1
        signs[tuple(self.splits["test"].inputs.T)] = 0
        return signs


def load_interactions(name: str, request: Request) -> InteractionDataset:
    """Reads `ratings:FILE` or MovieLens, or generates `watches:`, and holds a tenth out."""
    if name.startswith("watches:"):
        return split(generate_watches(name, request.seed), request)
    return split(of_frame(read_frame(name, request), name, request), request)


def given_interactions(data: Any) -> Any:
    """Takes data of a program: a data frame, or a mapping from columns to their values.

    Returns:
        An object with the method `source(request)`, as `ensemble.data.data_forms.Given` has it.

    Raises:
        InputError: They are in another form.
    """
    if not (is_table(data) or isinstance(data, Mapping)):
        raise InputError(
            f"data is a {type(data).__name__}, and config.model='matrix_factorisation' learns who "
            "watched or rated what: give a data frame with columns of users and items"
        )
    frame = data.to_pandas() if hasattr(data, "to_pandas") else pd.DataFrame(data)
    return SimpleNamespace(source=lambda request: split(of_frame(frame, FRAME, request), request))


def split(found: Interactions, request: Request) -> InteractionDataset:
    """Holds out a tenth of each user's interactions, or the latest tenth.

    Unwatched items are held out at the rate of each user's watched ones: what is left, and what is
    held out, both have the odds of the whole row, so that a model of one is right for the other.
    What is drawn of a user depends on the user's own row and id, and the seed.

    Args:
        found: The interactions.
        request: Request; `own` is the configuration.

    Raises:
        InputError: There is too little to hold out, or to learn.
    """
    keys = request.own or {}
    by_time = keys.get("split_by") == "time"
    of_ratings = keys.get("likelihood") == RATINGS
    rows = _rows(found, of_ratings, by_time)
    is_held = np.zeros(len(rows), bool)
    if by_time:
        times = rows["time"]
        latest = times.nlargest(max(1, round(_SHARE * len(times))))
        is_held = (times >= latest.min()).to_numpy()
    items = rows["item"].to_numpy()
    parts = []
    for user, places in rows.groupby("user").indices.items():
        digest = hashlib.blake2b(found.user_ids[user].encode(), digest_size=8).digest()
        rng = np.random.default_rng([_HOLD_OUT_STREAM, request.seed, int.from_bytes(digest)])
        if not by_time:
            is_held[rng.choice(places, _part(_SHARE, len(places)), replace=False)] = True
        if of_ratings:
            continue
        held = items[places[is_held[places]]]
        others = np.delete(np.arange(found.shape[1]), items[places])
        size = _part(len(held) / len(places), len(others)) if len(held) else 0
        chosen = np.concatenate([held, np.sort(rng.choice(others, size, replace=False))])
        parts.append([np.full_like(chosen, user), chosen, np.arange(len(chosen)) < len(held)])
    pairs = rows[PAIR].to_numpy(np.int32)
    if of_ratings:
        targets = rows["rating"].to_numpy(np.float32)
        test = Examples(pairs[is_held], targets[is_held])
    else:
        targets = np.ones(len(rows), np.int32)
        columns = np.concatenate(parts, axis=1).astype(np.int32)
        test = Examples(columns[:2].T, columns[2])
    # Watches are scored on pairs of both classes.
    if is_held.all() or len(np.unique(test.targets)) < 2 - of_ratings:
        raise InputError(
            f"{found.name} has too few interactions or times to hold a tenth of them out; use more "
            "data, or another config.split_by"
        )
    class_names = None if of_ratings else ("not watched", "watched")
    weights = np.asarray(rows.get("weight", np.ones(len(rows))), np.float32)[~is_held]
    splits = {"train": Examples(pairs[~is_held], targets[~is_held]), "test": test}
    return InteractionDataset(found.name, splits, class_names, found, weights)


def _part(share: float, number: int) -> int:
    """The size of a share of a number of things: at least 1, and leaves 1."""
    return max(0, min(max(1, round(share * number)), number - 1))


def _rows(found: Interactions, of_ratings: bool, by_time: bool) -> pd.DataFrame:
    """The rows; of watches by users and items, each pair once.

    Raises:
        InputError: A column is missing, a user rates an item twice, or memory cannot hold the
            matrix of watches.
    """
    name = found.name
    rows = found.rows
    for column, is_needed in (("rating", of_ratings), ("time", by_time)):
        if is_needed and column not in rows:
            raise InputError(
                f"{name} has no column {column}, which config.likelihood={RATINGS!r} and "
                "config.split_by='time' need: name it so, or set others"
            )
    if of_ratings:
        repeats = rows[rows.duplicated(PAIR)]
        if len(repeats):
            user, item = repeats[PAIR].iloc[0]
            raise InputError(
                f"{name}: user {shown(repr(found.user_ids[user]))} rates "
                f"{shown(repr(found.items['title'][item]))} twice; remove the duplicates, or join "
                "them to one with a weight"
            )
        return rows
    check_matrix(name, found.shape)
    return rows.drop_duplicates(PAIR).sort_values(PAIR, ignore_index=True)
