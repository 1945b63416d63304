"""Watches as a source: pairs of a user and a movie, held in memory."""

import dataclasses

import numpy as np

from ensemble.source import Examples, Request
from ensemble.sources import movielens
from ensemble.sources.dataset import Dataset
from ensemble.sources.movielens import Watches


@dataclasses.dataclass(frozen=True, eq=False)
class WatchDataset(Dataset):
    """Pairs of a user and a movie, of class 1 if the user watched the movie.

    The split `train` has those that were watched, all others are known not to have been; `test` has
    those that are held out.

    Attributes:
        watches: the users, the movies, and who has watched what.
        observed: [N, M] uint8, 1 where user i has watched movie j, 2 where that is held out.
    """

    watches: Watches
    observed: np.ndarray


def load_movielens(name: str, request: Request) -> WatchDataset:
    """Reads watches of MovieLens, and holds a tenth of each user's out."""
    return _held_out(movielens.read_movielens(name, request.data_dir), request.seed)


def load_generated(name: str, request: Request) -> WatchDataset:
    """Generates watches, and holds a tenth of each user's out."""
    return _held_out(movielens.generate_watches(name, request.seed), request.seed)


def _held_out(watches: Watches, seed: int) -> WatchDataset:
    observed, held_out = movielens.hold_out(watches, seed)
    pairs = np.argwhere(observed == 1).astype(np.int32)
    train = Examples(pairs, np.ones(len(pairs), np.int32))
    return WatchDataset(
        name=watches.name,
        splits={"train": train, "test": Examples(held_out.pairs, held_out.targets)},
        class_names=("not watched", "watched"),
        shift=np.zeros((), np.float32),
        scale=np.ones((), np.float32),
        watches=watches,
        observed=observed,
    )
