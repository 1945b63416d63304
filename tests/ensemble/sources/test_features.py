"""Features of a frozen backbone: kept on disk, and known by what is made of a probe."""

import logging
import threading
import time

import numpy as np
import pytest
from run_parts import inputs_of

from ensemble import UserError
from ensemble.networks.backbone import FunctionBackbone
from ensemble.sources import dataset_from_arrays, features
from ensemble.sources.features import check_same_backbone, described_features, features_of
from ensemble.storage.schema import check_description
from ensemble.tasks.learning_data import describe, make_likelihood

WEIGHTS = np.random.default_rng(3).normal(size=(6, 5)).astype(np.float32)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "flax-ensembles" / "features"


@pytest.fixture
def source(blobs):
    return dataset_from_arrays(blobs)


class Counting:
    """A backbone that counts the examples that it was given."""

    def __init__(self, factor=1.0):
        self.factor, self.count = factor, 0

    def __call__(self, inputs):
        self.count += len(inputs)
        return np.tanh(inputs @ WEIGHTS * self.factor)

    def traced(self, inputs):
        raise UserError("it cannot be")


def test_they_are_read_by_indices_and_standardised(source):
    made = features_of(source, Counting())
    assert (made.input_shape, made.input_dtype) == ((5,), np.float32)
    assert (made.sizes, made.fingerprint) == (source.sizes, source.fingerprint)
    assert (made.name, made.class_names) == (source.name, source.class_names)
    for indices in (slice(3, 9), np.array([[4, 2], [0, 4]])):
        found, raw = made.read("test", indices), source.read("test", indices)
        np.testing.assert_allclose(found.inputs, np.tanh(raw.inputs @ WEIGHTS), rtol=1e-5)
        np.testing.assert_array_equal(found.targets, raw.targets)
    whole = (made.read("train", slice(None)).inputs - made.shift) * made.scale
    np.testing.assert_allclose(whole.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(whole.std(axis=0), 1, atol=1e-5)


def test_weights_of_examples_are_the_data_s(blobs):
    weights = np.linspace(1, 2, len(blobs["labels"]))
    source = dataset_from_arrays({**blobs, "sample_weight": weights})
    assert source.train_weights is not None
    np.testing.assert_array_equal(
        features_of(source, Counting()).train_weights, source.train_weights
    )


def test_what_is_kept_is_read_again_and_what_is_damaged_is_not(source, cache, caplog):
    first, second = Counting(), Counting()
    caplog.set_level(logging.INFO, logger="ensemble")
    features_of(source, first)
    assert first.count == 203 + 8 + 3
    assert f"the features of 203 examples; they are kept in {cache}" in caplog.text
    again = features_of(source, second)
    assert second.count == 8 + 3
    (folder,) = cache.glob("[!.]*")
    assert {one.name for one in folder.iterdir()} == {f"{split}.npy" for split in source.sizes}
    whole = again.read("train", slice(None)).inputs.copy()
    damaged = folder / "train.npy"
    damaged.write_bytes(damaged.read_bytes()[:-3])
    fixed = features_of(source, second)
    assert second.count == 203 + 2 * (8 + 3)
    np.testing.assert_array_equal(fixed.read("train", slice(None)).inputs, whole)


def test_other_data_and_other_backbones_have_features_of_their_own(source, blobs, cache):
    features_of(source, Counting())
    features_of(source, Counting(factor=1.0001))
    other = dataset_from_arrays(blobs, seed=1)
    features_of(other, Counting())
    assert len(list(cache.glob("[!.]*"))) == 3


def test_splits_of_the_same_data_are_read_where_they_are_kept(source, blobs):
    backbone = Counting()
    described = described_features(source, backbone, describe(features_of(source, backbone)))
    backbone.count = 0
    kept = described.of_raw(inputs_of(source, "test"))
    expected = np.tanh(source.read("test", slice(None)).inputs @ WEIGHTS)
    np.testing.assert_allclose(kept[:], expected, rtol=1e-5)
    assert backbone.count == 0
    others = dataset_from_arrays(blobs, seed=1)
    for inputs in (inputs_of(others, "test"), others.read("test", slice(None)).inputs):
        made = described.of_raw(inputs)
        np.testing.assert_allclose(made[2:4], np.tanh(inputs[2:4] @ WEIGHTS), rtol=1e-5)
        assert len(made) == len(inputs)
    assert backbone.count == 4


def test_what_depends_on_chance_or_on_the_batch_is_refused(source, cache):
    rng = np.random.default_rng(0)

    def dropout(inputs):
        return np.asarray(inputs) * rng.integers(0, 2, inputs.shape)

    def batch_norm(inputs):
        return (np.asarray(inputs) - np.mean(np.asarray(inputs), axis=0)) @ WEIGHTS

    for function in (dropout, batch_norm):
        with pytest.raises(UserError, match=r"batch statistics.*dropout"):
            features_of(source, FunctionBackbone(function))
    assert not cache.exists()


def test_rounding_is_no_other_backbone_and_a_change_is(source):
    then, rounded, other = (
        describe(features_of(source, Counting(factor))) for factor in (1.0, 1.0005, 1.1)
    )
    check_same_backbone(then, rounded, "runs/mine")
    with pytest.raises(UserError, match=r"runs/mine.*another backbone"):
        check_same_backbone(then, other, "runs/mine")
    with pytest.raises(UserError, match="runs/mine had a backbone"):
        check_same_backbone(then, {}, "runs/mine")


def test_a_cache_that_cannot_be_written_is_told_with_the_way_out(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"kept.*\(Not.*directory\); .*XDG_CACHE_H"):
        features_of(source, Counting())


def test_an_interruption_leaves_no_half_of_them(source, cache):
    class Failing(Counting):
        def __call__(self, inputs):
            if self.count > 100:
                raise KeyboardInterrupt
            return super().__call__(inputs)

    with pytest.raises(KeyboardInterrupt):
        features_of(source, Failing())
    (lock,) = cache.iterdir()
    assert lock.is_file()


def test_what_a_killed_process_has_left_is_removed(source, cache):
    features_of(source, Counting())
    (folder,) = cache.glob("[!.]*")
    folder.rename(cache / f".{folder.name}.abcdefgh")
    features_of(source, Counting())
    assert {one.name for one in cache.iterdir()} == {folder.name, f".{folder.name}.lock"}


def test_of_processes_at_the_same_time_one_computes(source):
    """Threads here: locks are of open files."""
    began = threading.Event()

    class Slow(Counting):
        def __call__(self, inputs):
            if len(inputs) > 8:
                began.set()
                time.sleep(0.1)
            return super().__call__(inputs)

    first, second = Slow(), Counting()
    thread = threading.Thread(target=features_of, args=(source, first))
    thread.start()
    assert began.wait(30)
    made = features_of(source, second)
    thread.join()
    assert (first.count, second.count) == (203 + 8 + 3, 8 + 3)
    assert made.sizes == source.sizes


def test_of_several_processes_the_first_writes(source, monkeypatch):
    on_main, write = [], features._write

    def from_main(value):
        on_main.append(True)
        value()
        on_main.pop()

    def only_there(*arguments):
        assert on_main
        write(*arguments)

    monkeypatch.setattr(features.processes, "from_main", from_main)
    monkeypatch.setattr(features, "_write", only_there)
    assert features_of(source, Counting()).arrays.keys() == source.sizes.keys()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"probe": []}, r"features\.probe must be numbers"),
        ({"shift": [1.0, None]}, r"features\.shift must be numbers"),
        ({"scale": [1e39] * 5}, r"features\.scale must be numbers"),
        ({"scale": [1.0]}, "as many of shift as of scale"),
    ],
)
def test_a_forged_description_is_refused(source, change, line):
    described = make_likelihood(source).describe()
    description = describe(features_of(source, Counting())) | described
    check_description(description, "categorical")
    forged = description | {"features": description["features"] | change}
    with pytest.raises(ValueError, match=line):
        check_description(forged, "categorical")
