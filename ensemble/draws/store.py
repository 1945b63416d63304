"""The draws of a run on disk: `draws/FIRST.npz`, appended in whole chunks, read with care."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import jax
import numpy as np
from etils.epath import Path
from flax.traverse_util import flatten_dict, unflatten_dict
from numpy.typing import NDArray

from ensemble import pytrees
from ensemble.errors import InputError
from ensemble.storage.files import Content, make_folder, write_file
from ensemble.storage.manifest import Manifest, damaged

_JOINED = "joined.npz"
"""File of the draws of more chains, until the checkpoint has them."""
MAX_BYTES = 1 << 28
"""Size of the variables of all draws that predict, at most."""
LOG_DENSITY = "log_density"
LOG_PROB = "log_prob_"
VALUE = "value:"
"""The scalars whose convergence counts: this one, and those whose names begin so."""
NUM_TRACKED = 100
"""Examples whose target's log-probability is recorded at every draw."""
Arrays = dict[str, NDArray]


class Draws:
    """Scalars of every draw and positions of some, of C chains; draws are numbered from 0.

    A file `NNNNNNNNN.npz` has the draws from that number on: `range`, its first draw and the one
    after its last; `scalars/NAME`, [C, T]; `positions/NAME`, [C, K, ...], of the draws `numbers`,
    [K]. All but positions are read once and then kept in memory.

    Args:
        directory: Local or remote directory, which the first `append` creates.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self._manifest = Manifest(directory.parent)
        self._known: dict[Path, Arrays] | None = None

    @property
    def end(self) -> int:
        """Draws of a chain: the number of the next one."""
        return _end(self._chunks())

    def append(
        self, end: int, scalars: Mapping, positions: Mapping, numbers: Sequence[int] | np.ndarray
    ) -> None:
        """Writes the draws up to end - 1 that follow those before, whole or not at all.

        Args:
            end: Number after the last draw.
            scalars: Arrays [C, T] of the T > 0 draws; the same names in every chunk.
            positions: Nested dict of parameters [C, K, ...] at some of these draws.
            numbers: Numbers [K] of those draws, ascending; K may be 0.

        Raises:
            InputError: The draws before cannot be read.
            OSError: The file cannot be written.
        """
        first = self.end
        chunk = {"range": np.array([first, end]), "numbers": np.array(numbers, np.int64)}
        chunk |= flatten_dict({"scalars": dict(scalars)}, sep="/")
        make_folder(self.directory)
        path = self._path(first)
        arrays = chunk | flatten_dict({"positions": positions}, sep="/")
        self._manifest.write(path, _packed(arrays))
        self._chunks()[path] = chunk

    def truncate(self, end: int) -> None:
        """Removes the files of draws `end` and later, which a resumed run takes again.

        Args:
            end: Number of draws that the checkpoint knows of.

        Raises:
            InputError: Draws before `end` are missing, damaged or of another run; nothing is
                removed then.
            OSError: A file cannot be removed.
        """
        self._known = self._read_chunks(end)
        if self.end != end:
            raise InputError(
                f"{self.directory} has chunks of {self.end} draws, and the checkpoint is at "
                f"draw {end}, which must end a chunk; start the run again in a new --workdir"
            )
        for path in self._files():
            if int(path.stem) >= end:
                self._manifest.remove(path)

    def joined(self, others: "Draws") -> None:
        """Writes these draws, if any, and those of other chains to a file, which `join` takes.

        Args:
            others: As many draws of other chains.

        Raises:
            InputError: Draws cannot be read.
        """
        if not self.end:
            return
        each = (
            {"scalars": one.scalars(), "positions": one.positions()[0]} for one in (self, others)
        )
        both = jax.tree.map(lambda *leaves: np.concatenate(leaves), *each)
        arrays = {"range": np.array([0, self.end]), "numbers": self.kept}
        write_file(self.directory / _JOINED, _packed(arrays | flatten_dict(both, sep="/")))

    def join(self, takes: bool) -> None:
        """Takes what `joined` has written in place of what was, or removes it.

        Args:
            takes: If True, the checkpoint has all chains.
        """
        joined = self.directory / _JOINED
        if not joined.exists():
            return
        if takes:  # After a kill, this is done once more.
            for path in self._files():
                self._manifest.remove(path)
            self._manifest.add(self._path(0), joined)
            joined.replace(self._path(0))
        else:
            joined.unlink()
        self._known = None

    def scalars(self, first: int = 0) -> Arrays:
        """Returns scalars [C, T] of the draws `first` and later; an empty dict if no draw is there.

        Raises:
            InputError: A file is missing, damaged or not of this program.
        """
        return pytrees.at(_joined("scalars/", [*self._chunks().values()]), np.s_[:, first:])

    @property
    def kept(self) -> NDArray:
        """Numbers [K] of the draws whose positions are stored, ascending."""
        each = [one["numbers"] for one in self._chunks().values()]
        return np.concatenate([np.zeros(0, int), *each])

    def predicting(self, most: int) -> NDArray:
        """Returns numbers of the draws that predict: evenly spaced ones of those that are kept.

        As draws are added, the spacing grows by a quarter of a power of two, 1, 1.25, 1.5, ..., 2,
        2.5, ..., and until it does the earlier ones stay.

        Args:
            most: Most draws of a chain. Of many draws at least four fifths of `most` predict,
                fewer if the variables of all chains would take more than `MAX_BYTES`.
        """
        kept = self.kept
        if not len(kept):
            return kept
        ratio = max(1.0, len(kept) / min(most, self._num_that_fit))
        power = 2.0 ** math.floor(math.log2(ratio))
        spacing = power * math.ceil(4 * ratio / power) / 4
        places = np.arange(1, int(len(kept) / spacing) + 1) * spacing
        return kept[places.astype(int) - 1]

    @cached_property
    def _num_that_fit(self):
        """Draws of all chains whose positions take no more than `MAX_BYTES`, from 1."""
        one = self.positions(self.kept[:1])[0]
        return max(1, MAX_BYTES // sum(leaf.nbytes for leaf in jax.tree.leaves(one)))

    def positions(self, numbers: NDArray | None = None) -> tuple[dict, NDArray]:
        """Reads stored positions.

        Args:
            numbers: Numbers of the draws; None: all that are kept.

        Returns:
            Nested dict of [C, K, ...] and the numbers [K] of their draws; an empty dict if there
            are none.

        Raises:
            InputError: A file is missing, damaged or not of this program.
        """
        numbers = self.kept if numbers is None else numbers
        parts = []
        for path, chunk in self._chunks().items():
            chosen = np.isin(chunk["numbers"], numbers)
            if chosen.any():
                arrays = self._manifest.read_npz(path, ("positions/",))
                if not arrays:
                    raise damaged(path)
                parts.append(pytrees.at(arrays, np.s_[:, chosen]))
        return unflatten_dict(_joined("positions/", parts), sep="/"), numbers

    def _path(self, first: int) -> Path:
        return self.directory / f"{first:09d}.npz"

    def _files(self) -> list[Path]:
        found = self.directory.glob("*.npz") if self.directory.exists() else ()
        return sorted(path for path in found if path.stem.isdigit())

    def _chunks(self) -> dict[Path, Arrays]:
        if self._known is None:
            self._known = self._read_chunks()
        return self._known

    def _read_chunks(self, end: int | None = None) -> dict[Path, Arrays]:
        """Reads all but the positions of the files that follow each other from draw 0.

        Args:
            end: Number of a draw from which on files are left alone; None: read all files.
        """
        chunks: dict = {}
        for path in self._files():
            first = int(path.stem)
            if first == end:
                break
            if first != _end(chunks):
                raise InputError(
                    f"{path.parent}: draws {_end(chunks)} to {first - 1} are missing, their file "
                    "was removed; start the run again in a new --workdir"
                )
            arrays = self._manifest.read_npz(path, ("range", "numbers", "scalars/"))
            if not arrays:  # Unfinished, and so later than any checkpoint.
                break
            chunks[path] = arrays
        return chunks


def _end(chunks: Mapping[Path, Arrays]) -> int:
    return max((int(one["range"][1]) for one in chunks.values()), default=0)


def _joined(prefix: str, parts: Sequence[Arrays]) -> Arrays:
    """Joins arrays [C, T, ...] of draws that follow each other, of names that begin so."""
    return {
        name.removeprefix(prefix): np.concatenate([part[name] for part in parts], axis=1)
        for name in (parts[0] if parts else ())
        if name.startswith(prefix)
    }


def _packed(arrays: dict) -> Content:
    """Returns the content of a file, uncompressed: draws are mostly noise."""
    return lambda file: np.savez(file, **arrays)


def tracked_examples(num_examples: int) -> NDArray:
    """Returns numbers of the examples whose log-probability is recorded, evenly spread."""
    return np.linspace(0, num_examples - 1, min(NUM_TRACKED, num_examples)).astype(int)


def is_diagnostic(name: str) -> bool:
    """Returns whether a scalar says how a draw was made, and not what was drawn."""
    return not name.startswith((LOG_PROB, VALUE))


def tracked_scalars(scalars: Arrays) -> Arrays:
    """Returns the scalars whose convergence counts."""
    return {
        name.removeprefix(VALUE): values
        for name, values in scalars.items()
        if name == LOG_DENSITY or not is_diagnostic(name)
    }
