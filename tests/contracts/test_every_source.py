"""The contract of data, by its implementations: what every one of them has to do alike."""

import dataclasses

import applications
import numpy as np
import pandas as pd
import PIL.Image
import pytest
import tfds_sets
from run_parts import loaded_table, read_in_blocks_of, records_of

from ensemble import UserError, registry
from ensemble.source import (
    Examples,
    MadeInputs,
    Request,
    Source,
    blocks,
    fingerprint,
    in_memory,
)
from ensemble.sources import dataset_from_arrays, image_sets, load_dataset
from ensemble.sources.catalogue import load_test_inputs
from ensemble.testing import sources

RNG = np.random.default_rng(0)
ARRAYS = {"inputs": RNG.normal(size=(50, 3)), "labels": np.arange(50) % 2}


def _npz(folder):
    np.savez(folder / "all.npz", **ARRAYS)
    return f"npz:{folder / 'all.npz'}"


def _npy(folder):
    for name, array in ARRAYS.items():
        np.save(folder / f"{name}.npy", array)
    return f"npy:{folder}"


def _folder(folder):
    for i, pixels in enumerate(RNG.integers(0, 256, (50, 6, 5, 3), np.uint8)):
        (folder / "ab"[i % 2]).mkdir(exist_ok=True)
        PIL.Image.fromarray(pixels).save(folder / "ab"[i % 2] / f"{i:02}.png")
    return f"folder:{folder}"


def _frame():
    a, b, c = ARRAYS["inputs"].T
    return pd.DataFrame({"a": a, "b": b > 0, "c": np.where(c > 0, "x", "y"), "y": np.arange(50.0)})


def _csv(folder):
    _frame().to_csv(folder / "t.csv", index=False)
    return f"csv:{folder / 't.csv'}"


def _parquet(folder):
    _frame().to_parquet(folder / "t.parquet")
    return f"parquet:{folder / 't.parquet'}"


def _prepared(name):
    """A small set as TensorFlow Datasets leaves it, of the shape that the registry says."""

    def write(folder):
        entry = registry.SOURCES.get(name)
        splits = tfds_sets.random_splits(entry.input_shape if entry else (6, 5, 3))
        tfds_sets.write_set(folder, name.removeprefix("tfds:"), splits)
        return name

    return write


IMPLEMENTATIONS = {
    "arrays": lambda folder: None,
    "npz:PATH": _npz,
    "npy:FOLDER": _npy,
    "records:FOLDER": lambda folder: records_of(_npz(folder)),
    "folder:PATH": _folder,
    "csv:PATH": _csv,
    "parquet:PATH": _parquet,
    "tfds:NAME": _prepared("tfds:beans"),
    **{name: _prepared(name) for name in image_sets.TFDS_SIZES},
    **{
        name: lambda folder, name=name: name
        for name in ("digits", "clutter", "grouped_clutter", "diabetes")
    },
    **applications.examples("SOURCES"),
}
"""Writes what a source reads to a folder, where it reads anything; returns the data set's name."""


def test_every_source_is_tested():
    assert IMPLEMENTATIONS.keys() == registry.SOURCES.keys()


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def source(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    name = IMPLEMENTATIONS[request.param](folder)
    with pytest.MonkeyPatch.context() as patch:
        for known in image_sets.TFDS_SIZES:
            patch.setitem(image_sets.TFDS_SIZES, known, (40, 5, 5, 20))  # As `random_splits`.

        def load():
            if name is None:
                return dataset_from_arrays(ARRAYS)
            if name.startswith(("csv:", "parquet:")):
                return loaded_table(name)
            return load_dataset(name, str(folder))

        yield sources.SourceCase(request.param, load(), load)


@pytest.mark.parametrize("rule", sources.PROMISES, ids=str)
def test_a_source_keeps_a_promise(source, rule):
    rule.keep(source)


@pytest.mark.parametrize("sizes", [(20,), (3, 9, 1, 7), (1,) * 20])
def test_made_inputs_are_the_same_however_they_are_cut(sizes):
    whole, calls = np.arange(40).reshape(20, 2), []
    cuts = np.cumsum(sizes)[:-1]

    def make():
        calls.append(None)
        return iter(np.split(whole, cuts))

    inputs = MadeInputs(20, make)
    assert len(inputs) == 20
    for start in range(0, 20, 4):
        np.testing.assert_array_equal(inputs[start : start + 4], whole[start : start + 4])
    assert len(calls) == 1
    doubled = inputs.through(lambda piece: 2 * piece)
    for where in (slice(5, 9), slice(0, 3), slice(18, 30), slice(4, 4), slice(None)):
        np.testing.assert_array_equal(inputs[where], whole[where])
        np.testing.assert_array_equal(doubled[where], 2 * whole[where])


def test_blocks_are_all_examples_in_order(source, monkeypatch):
    source = source.source
    whole, before = in_memory(source, "train"), fingerprint(source, source.sizes)
    assert (source.fingerprint == before) == (source.table is None)  # A table's names count too.
    expected = whole.inputs.min(), whole.inputs.max()
    read_in_blocks_of(monkeypatch, 5 * int(np.prod(source.input_shape)))
    parts = list(blocks(source, "train"))
    assert {len(part.targets) for part in parts[:-1]} == {5}
    np.testing.assert_array_equal(np.concatenate([part.inputs for part in parts]), whole.inputs)
    np.testing.assert_array_equal(np.concatenate([part.targets for part in parts]), whole.targets)
    assert source.value_range("train") == expected
    assert fingerprint(source, source.sizes) == before


@dataclasses.dataclass(frozen=True, eq=False)
class Squares(Source):
    """A source that has no data: example k is k and its square."""

    count: int
    name: str = "squares"
    class_names: tuple[str, ...] | None = None
    shift: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((), np.float32))
    scale: np.ndarray = dataclasses.field(default_factory=lambda: np.ones((), np.float32))
    input_shape = (1,)
    input_dtype = target_dtype = np.dtype(np.float32)

    @property
    def sizes(self):
        return {"train": self.count}

    def read(self, split, indices):
        if isinstance(indices, slice):
            indices = np.arange(*indices.indices(self.count))
        values = indices.astype(np.float32)
        return Examples(values[..., None], values**2)

    def targets(self, split):
        return self.read(split, slice(None)).targets


def test_what_memory_cannot_hold_is_refused_before_it_is_read():
    np.testing.assert_array_equal(in_memory(Squares(4), "train").targets, [0, 1, 4, 9])
    with pytest.raises(UserError, match=r"'train'.*3725290\d\.\d GiB"):
        in_memory(Squares(10**16), "train")


def test_a_fingerprint_depends_on_the_content_alone():
    assert Squares(4).fingerprint == Squares(4, name="other").fingerprint
    assert Squares(4).fingerprint != Squares(5).fingerprint
    assert Squares(4).test_fingerprint is None


@pytest.mark.parametrize("name", registry.SOURCES)
def test_an_entry_names_functions(name):
    entry = registry.SOURCES[name]
    assert callable(registry.load(entry.loader))
    assert not entry.finder or callable(registry.load(entry.finder))
    assert not entry.given or callable(registry.load(entry.given))


def test_test_inputs_are_all_of_data_without_a_test_split(tmp_path):
    inputs = load_test_inputs(_npy(tmp_path))
    assert len(inputs) == 50
    assert len(load_test_inputs("digits")) == 300
    assert Request().hold_out
