"""The source for frozen backbones: features of another source, computed once and kept on disk.

They lie in `flax-ensembles/features` in the user's cache folder, in a folder for each pair of data
and backbone, and are mapped into memory. Whoever has the same data and backbone reads them from
there. A backbone is known by what it makes of a probe: inputs of noise, the same for all data of
one shape and scale.
"""

import dataclasses
import functools
import hashlib
import logging
import pathlib
import shutil
import tempfile
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from ensemble.errors import UserError
from ensemble.network import Backbone
from ensemble.sharding import processes, signals, startup
from ensemble.source import Examples, Inputs, Source, SplitInputs
from ensemble.sources import own_arrays
from ensemble.storage.files import locked
from ensemble.storage.npz import map_array

logger = logging.getLogger("ensemble")


_BATCH_SIZE = 256
_PROBE_SIZE = 8
_NUM_PROJECTIONS = 4
_TOLERANCE = 0.01
"""The tolerance as a share of the probe's size: other devices round differently, in bfloat16 or
TF32 by as much."""
_STREAM = 5  # Of random numbers; ensemble.sources has others.


class Probe(NamedTuple):
    """What a backbone makes of the probe.

    Attributes:
        num_features: F.
        digest: of the features, to the bit.
        projections: of each example's features along a few directions, float32 [P * D].
    """

    num_features: int
    digest: str
    projections: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Features(Source):
    """What a backbone makes of a source.

    Attributes:
        source: of the raw inputs.
        backbone: from raw inputs to features.
        probe: of the backbone.
        data: the fingerprint of the source, which may be here without its examples.
        name: of the source.
        class_names: of the source.
        shift: float32 [F], mean of the training examples.
        scale: float32 [F], their inverse standard deviation.
        arrays: features [N, F] of the splits, on disk; empty where there are no examples.
        train_weights: of the source.
    """

    source: Source
    backbone: Backbone
    probe: Probe
    data: str
    name: str
    class_names: tuple[str, ...] | None
    shift: np.ndarray
    scale: np.ndarray
    arrays: Mapping[str, np.ndarray]
    train_weights: np.ndarray | None = None

    @property
    def raw(self) -> Source:
        """The source of the raw inputs."""
        return self.source

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(F,)."""
        return (self.probe.num_features,)

    @property
    def input_dtype(self) -> np.dtype:
        """Float32."""
        return np.dtype(np.float32)

    @property
    def target_dtype(self) -> np.dtype:
        """The type of targets."""
        return self.source.target_dtype

    @property
    def sizes(self) -> Mapping[str, int]:
        """Examples of each split."""
        return self.source.sizes

    @functools.cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the source."""
        return self.data

    def read(self, split: str, indices: np.ndarray | slice) -> Examples:
        """Reads features where they are kept."""
        return Examples(self.arrays[split][indices], self.source.targets(split)[indices])

    def targets(self, split: str) -> np.ndarray:
        """All targets [N] of a split."""
        return self.source.targets(split)

    def describe_features(self) -> dict[str, Any]:
        """What a program that predicts must know of the features, JSON-ready."""
        return {
            "shift": self.shift.tolist(),
            "scale": self.scale.tolist(),
            "probe": self.probe.projections.tolist(),
        }

    def of_raw(self, inputs: Inputs) -> Inputs:
        """Makes features of raw inputs; those of this source's splits are read where they are kept.

        Raises:
            UserError: when they are asked for: the backbone fails.
        """
        if isinstance(inputs, SplitInputs) and inputs.source.fingerprint == self.fingerprint:
            kept = _find(_folder(self.fingerprint, self.probe), inputs.source, self.probe)
            if kept is not None:
                return kept[inputs.split]
        return _Made(inputs, self.backbone)

    def of_raw_traced(self, inputs: jax.Array) -> jax.Array:
        """Makes features of raw inputs [B, ...] in a program of JAX.

        Raises:
            UserError: the backbone is no function of JAX.
        """
        return self.backbone.traced(inputs)


@dataclasses.dataclass(frozen=True)
class _Made:
    """Features that are made of inputs when a slice of them is asked for."""

    inputs: Inputs
    backbone: Backbone

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, where: slice, /) -> np.ndarray:
        return self.backbone(self.inputs[where])


def features_of(source: Source, backbone: Backbone) -> Features:
    """Makes a source of features; all processes call it.

    Args:
        source: with raw training examples.
        backbone: from its inputs to features.

    Raises:
        UserError: the backbone fails, or the features cannot be kept.
    """
    probe = run_probe(source, backbone)
    folder = _folder(source.fingerprint, probe)

    def write() -> None:
        if _find(folder, source, probe) is None:
            _write(folder, source, backbone, probe)

    processes.from_main(write)
    write()  # Of a process with a disk of its own.
    arrays = _find(folder, source, probe)
    if arrays is None:
        raise UserError(f"the features in {folder} cannot be read back; look after the disk")
    names, zero, one = (source.name, source.class_names), np.zeros(()), np.ones(())
    made = Features(source, backbone, probe, source.fingerprint, *names, zero, one, arrays)
    shift, scale = own_arrays.shift_and_scale(made)
    weights = source.train_weights
    return dataclasses.replace(made, shift=shift, scale=scale, train_weights=weights)


def described_features(
    source: Source, backbone: Backbone, description: Mapping[str, Any]
) -> Features:
    """Makes a source of features without examples, for predictions.

    Args:
        source: without examples, of the raw inputs.
        backbone: from raw inputs to features.
        description: of `ensemble.task.Task.describe`, with `features`.

    Raises:
        UserError: the backbone fails, or is not that of the description.
    """
    probe, found = run_probe(source, backbone), description.get("features", {})
    shift, scale = (np.asarray(found.get(key, 0), np.float32) for key in ("shift", "scale"))
    if found and shift.shape != (probe.num_features,):
        raise UserError(
            f"the backbone makes {probe.num_features} features of an example, and made "
            f"{shift.size} in the run; give the config file of the run"
        )
    names = source.name, source.class_names
    made = Features(source, backbone, probe, description["fingerprint"], *names, shift, scale, {})
    check_same_backbone(description, {"features": made.describe_features()}, "the workdir")
    return made


def run_probe(source: Source, backbone: Backbone) -> Probe:
    """Asks a backbone for the features of the probe.

    Args:
        source: whose shape and scale the probe has.
        backbone: to ask.

    Raises:
        UserError: it fails, or the features of an example depend on others or on chance.
    """
    rng = np.random.Generator(np.random.Philox(_STREAM))
    noise = rng.random((_PROBE_SIZE, *source.input_shape))  # What is normalised is about as large.
    inputs = noise / source.scale + source.shift
    if source.input_dtype.kind != "f":
        inputs = np.rint(inputs)
    inputs = inputs.astype(np.float32)
    features = backbone(inputs)
    if _differ(features[:3], backbone(inputs[:3])):
        raise UserError(
            "the backbone makes other features of an example when others are beside it, or when it "
            "is called again; switch its batch statistics and its dropout to prediction"
        )
    signs = rng.choice([-1.0, 1.0], (features.shape[1], _NUM_PROJECTIONS))
    projections = (features @ signs / np.sqrt(features.shape[1])).astype(np.float32)
    digest = hashlib.blake2b(np.ascontiguousarray(features).data, digest_size=16).hexdigest()
    return Probe(features.shape[1], digest, projections.ravel())


def check_same_backbone(then: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    """Refuses another backbone than that of a run.

    Args:
        then: what the run has kept of its task's `describe`.
        now: of the task here.
        where: the run is, for the message.

    Raises:
        UserError: as said.
    """
    before, after = then.get("features"), now.get("features")
    if (before is None) != (after is None):
        raise UserError(
            f"the network of {where} {'had no' if before is None else 'had a'} backbone, unlike "
            "the one here; give the config file of the run"
        )
    if before is None or after is None:
        return
    if _differ(np.asarray(before["probe"]), np.asarray(after["probe"])):
        raise UserError(
            f"{where} has learned from another backbone than the one here, which makes other "
            "features of the same inputs; restore it, or choose another --workdir"
        )


def _differ(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether features differ by more than devices do."""
    if one.shape != other.shape:
        return True
    return bool(np.linalg.norm(one - other) > _TOLERANCE * np.linalg.norm(one))


# On disk.


def _folder(fingerprint: str, probe: Probe) -> pathlib.Path:
    """The folder where the features of data are, or would be."""
    key = hashlib.blake2b(f"{fingerprint} {probe.digest}".encode(), digest_size=16).hexdigest()
    return startup.cache_folder() / "features" / key


def _find(folder: pathlib.Path, source: Source, probe: Probe) -> dict[str, np.ndarray] | None:
    """The features [N, F] of all splits that are kept; None where they are not, or are damaged."""
    arrays = {}
    for split, size in source.sizes.items():
        try:
            array = map_array(folder / f"{split}.npy")
        except ValueError:
            return None
        if array.shape != (size, probe.num_features) or array.dtype != np.float32:
            return None
        arrays[split] = array
    return arrays


def _write(folder: pathlib.Path, source: Source, backbone: Backbone, probe: Probe) -> None:
    """Computes the features of all splits, and keeps them, whole or not at all.

    Of the processes of a machine one does, and the others wait for it.

    Raises:
        UserError: the backbone fails, or the disk is full or closed.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(f".{folder.name}.lock")):
            if _find(folder, source, probe) is None:
                _write_locked(folder, source, backbone, probe)
    except OSError as error:
        raise UserError(
            f"features cannot be kept in {folder.parent} ({error.strerror or error}); free space "
            "there, or set $XDG_CACHE_HOME to another folder"
        ) from error


def _write_locked(folder: pathlib.Path, source: Source, backbone: Backbone, probe: Probe) -> None:
    logger.info(
        "Computing the features of %d examples; they are kept in %s.",
        sum(source.sizes.values()),
        folder,
    )
    began = time.monotonic()
    for left in folder.parent.glob(f".{folder.name}.*"):  # By a process that was killed.
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
        part = pathlib.Path(name) / "whole"
        part.mkdir()
        for split in source.sizes:
            _write_split(part / f"{split}.npy", SplitInputs(source, split), backbone, probe)
        shutil.rmtree(folder, ignore_errors=True)  # What is damaged.
        part.rename(folder)
    logger.info("Computed the features in %.1f s.", time.monotonic() - began)


def _write_split(path: pathlib.Path, inputs: SplitInputs, backbone: Backbone, probe: Probe) -> None:
    shape = len(inputs), probe.num_features
    array = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    for start in range(0, len(inputs), _BATCH_SIZE):
        if processes.count() == 1:
            signals.check()
        features = backbone(inputs[start : start + _BATCH_SIZE])
        if features.shape[1] != probe.num_features:
            raise UserError(
                f"the backbone makes {features.shape[1]} features of some examples and "
                f"{probe.num_features} of others; their number must be the same"
            )
        array[start : start + len(features)] = features
    array.flush()
