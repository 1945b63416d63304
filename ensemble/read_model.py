"""Runs an exported ensemble on batches of any size; it needs JAX and flatbuffers alone."""

import os
import pathlib
import threading

import jax
import jax.export
import numpy as np

MAX_ROWS = 256  # Of one pass; more rows take several.
SIZES = tuple(1 << k for k in range(MAX_ROWS.bit_length()))  # 1, 2, 4, ..., 256.


class Model:
    """Runs an exported file; batches are padded to a power of two, which compiles once each.

    Any number of threads may call one model.

    Args:
        path: the file that `ensemble export` wrote.

    Attributes:
        name: says which run the file is of, and which JAX wrote it.
        shape: of one row of inputs.
        dtype: of inputs.
        names: of the outputs, whose first axis is that of rows.
    """

    def __init__(self, path):
        exported = jax.export.deserialize(bytearray(pathlib.Path(path).read_bytes()))
        (inputs,) = exported.in_avals
        self.name = exported.fun_name
        self.shape = inputs.shape[1:]
        self.dtype = inputs.dtype
        self.names = [*jax.tree.unflatten(exported.out_tree, exported.out_avals)]
        self._run = jax.jit(exported.call)
        self._programs = {}
        self._lock = threading.Lock()
        self._process = os.getpid()

    def compile(self):
        """Compiles every size, so that no later call does; else the first call of each does."""
        for size in SIZES:
            self._program(size)
        return self

    def check(self, inputs):
        """Returns inputs as an array.

        Raises:
            ValueError: they have another shape or dtype than the training data, or no rows.
        """
        inputs = np.asarray(inputs)
        if inputs.shape[1:] != self.shape or not inputs.shape or not len(inputs):
            takes = ", ".join(map(str, ("N", *self.shape)))
            raise ValueError(f"inputs of shape {inputs.shape}: the model takes [{takes}], N > 0")
        if inputs.dtype != self.dtype:
            raise ValueError(
                f"inputs of dtype {inputs.dtype}: the model takes {self.dtype}; "
                f"convert them with .astype({self.dtype.name!r})"
            )
        return inputs

    def __call__(self, inputs):
        """Predicts inputs [N, ...]: NumPy arrays by name, as the file's `call` has them.

        A row that holds NaN or an infinity gets NaN, label -1, and is not accepted. It changes no
        other row.

        Raises:
            ValueError: as `check`.
            RuntimeError: the process was forked from the one that loaded the file.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "the model was loaded before this process was forked, and JAX would hang here: "
                "load it in each worker, and nothing of JAX before"
            )
        inputs = self.check(inputs)
        starts = range(0, len(inputs), MAX_ROWS)
        passes = [self._pass(inputs[start : start + MAX_ROWS]) for start in starts]
        found = {name: np.concatenate([one[name] for one in passes]) for name in self.names}
        finite = np.isfinite(inputs).reshape(len(inputs), -1).all(axis=1)
        if not finite.all():  # Networks and quantiles may make finite numbers of them.
            for rows in found.values():
                rows[~finite] = {"f": np.nan, "i": -1}.get(rows.dtype.kind, False)
        return found

    def _pass(self, rows):
        """What at most MAX_ROWS rows predict."""
        number = len(rows)
        size = 1 << (number - 1).bit_length()
        padded = np.concatenate([rows, np.repeat(rows[-1:], size - number, axis=0)])
        outputs = self._program(size)(padded)
        return {name: np.asarray(one)[:number] for name, one in outputs.items()}

    def _program(self, size):
        """The compiled program of so many rows; threads that want the same one compile it once."""
        with self._lock:
            if size not in self._programs:
                inputs = jax.ShapeDtypeStruct((size, *self.shape), self.dtype)
                self._programs[size] = self._run.lower(inputs).compile()
            return self._programs[size]
