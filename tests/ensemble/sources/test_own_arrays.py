"""The user's own data: what is accepted, what it becomes, and every refusal."""

import io
import zipfile

import numpy as np
import PIL.Image
import pytest
from scipy import sparse

from ensemble import UserError
from ensemble.notes import collected
from ensemble.sources import dataset_from_arrays, folders, own_arrays

IMAGES = np.arange(6 * 4 * 5, dtype=np.uint8).reshape(6, 4, 5)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def _check(**arrays):
    return own_arrays.check_arrays(arrays, "mine")


def _parts(**arrays):
    """(inputs, labels) of each part, as they are kept."""
    checked = _check(**arrays)
    return {
        part: (checked.convert(inputs), checked.targets[part])
        for part, inputs in checked.inputs.items()
    }


def test_types_and_shapes_that_are_kept():
    inputs, labels = _parts(inputs=IMAGES, labels=LABELS)[own_arrays.POOL]
    assert inputs.dtype == np.uint8
    assert inputs.shape == (6, 4, 5, 1)
    assert labels.dtype == np.int32
    np.testing.assert_array_equal(labels, LABELS)

    for integers in (IMAGES.astype(np.int64), IMAGES > 3, IMAGES.astype(np.int64).tolist()):
        inputs, _ = _parts(inputs=integers, labels=LABELS)[own_arrays.POOL]
        assert inputs.dtype == np.uint8
        np.testing.assert_array_equal(inputs[..., 0], np.asarray(integers))
    for numbers in (IMAGES / 255, IMAGES.astype(np.int16) - 1, IMAGES.astype(np.int32) + 200):
        inputs, _ = _parts(inputs=numbers, labels=LABELS)[own_arrays.POOL]
        assert inputs.dtype == np.float32
        np.testing.assert_array_equal(inputs[..., 0], numbers.astype(np.float32))


def test_one_type_for_all_splits():
    """A split whose integers would fit uint8 stays comparable to one whose do not."""
    parts = _parts(
        train_inputs=IMAGES, train_labels=LABELS, test_inputs=IMAGES[:2] - 1.0, test_labels=[0, 1]
    )
    assert list(parts) == ["train", "test"]
    assert {inputs.dtype for inputs, _ in parts.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    "labels",
    [LABELS.astype(np.float64), LABELS.astype(np.uint8), LABELS.astype(np.int8), [0, 2] * 3],
)
def test_whole_numbers_of_any_type_are_labels(labels):
    checked = _check(inputs=IMAGES, labels=labels)
    np.testing.assert_array_equal(checked.targets[own_arrays.POOL], labels)
    assert checked.class_names == ("0", "1", "2")


def test_boolean_labels_are_two_classes():
    assert _check(inputs=IMAGES, labels=LABELS > 0).class_names == ("0", "1")


def test_class_names_set_the_number_of_classes():
    names = np.array(["cat", "dog", "emu", "fox"])
    assert _check(inputs=IMAGES, labels=LABELS, class_names=names).class_names == tuple(names)


def _with(**changes):
    return {"inputs": IMAGES, "labels": LABELS} | changes


def _labels_with(value):
    labels = LABELS.astype(np.float64)
    labels[3] = value
    return _with(labels=labels)


def _inputs_with(value):
    inputs = IMAGES.astype(np.float64)
    inputs[4, 1, 1] = value
    return _with(inputs=inputs)


TRAIN = {"train_inputs": IMAGES, "train_labels": LABELS}
REFUSED = {
    "no arrays": ({}, r"mine has the arrays \(none\); expected are inputs and labels, or train_"),
    "unknown key": (_with(x=IMAGES), "mine has the arrays inputs, labels, x; expected are"),
    "no labels": ({"inputs": IMAGES}, "mine has the arrays inputs; expected are"),
    "both forms": (_with(**TRAIN), "expected are"),
    "half a split": (TRAIN | {"test_inputs": IMAGES}, "test_inputs, train_inputs, train_labels;"),
    "no train": ({"test_inputs": IMAGES, "test_labels": LABELS}, "expected are"),
    "lengths": (_with(labels=LABELS[:5]), "inputs has 6 examples but labels has 5"),
    "empty": (_with(inputs=IMAGES[:0], labels=LABELS[:0]), r"\(0, 4, 5\), which is empty"),
    "no pixels": (_with(inputs=IMAGES[:, :0]), "which is empty"),
    "scalars": (_with(inputs=LABELS), r"shape \(6,\); inputs are feature vectors \[N, F\]"),
    "volumes": (_with(inputs=np.zeros((6, 2, 2, 2, 2))), "inputs are feature vectors"),
    "shapes": (
        TRAIN | {"test_inputs": IMAGES[:, :3], "test_labels": LABELS},
        r"test_inputs has examples of shape \(3, 5\), the first split has \(4, 5\)",
    ),
    "text": (_with(inputs=np.full((6, 2), "a")), "dtype <U1; it must hold integers or"),
    "complex": (_with(inputs=np.ones((6, 2), complex)), "dtype complex128"),
    "objects": (_with(inputs=np.full((6, 2), None)), "dtype object; .*: convert numbers by astype"),
    "sparse": (
        _with(inputs=sparse.csr_matrix(np.eye(6))),
        r"sparse, a csr_matrix; .* toarray\(\) does",
    ),
    "ragged": (_with(inputs=[[1, 2], [1]] * 3), "inputs is ragged"),
    "nan": (_inputs_with(np.nan), "inputs holds nan in example 4; every value must be finite"),
    "inf": (_inputs_with(-np.inf), "inputs holds -inf in example 4"),
    "too large": (_inputs_with(1e39), r"inputs holds 1e\+39 in example 4"),
    "negative label": (_labels_with(-1), r"labels holds -1 in example 3; labels are whole num"),
    "half a label": (_labels_with(0.5), "labels holds 0.5 in example 3"),
    "nan label": (_labels_with(np.nan), "labels holds nan in example 3"),
    "wide label": (
        _with(labels=LABELS + 2**31),
        "labels reaches 2147483650; .* give them as texts",
    ),
    "two-hot": (_with(labels=np.eye(6) * 2), r"labels has shape \(6, 6\); labels are \[N\]"),
    "sparse labels": (_with(labels=LABELS * 50), "labels reach 100 with only 6 examples"),
    "outside": (_with(class_names=["a", "b"]), "labels holds 2, but there are 2 class_names"),
    "outside in test": (
        TRAIN | {"test_inputs": IMAGES, "test_labels": LABELS + 1, "class_names": list("abc")},
        "test_labels holds 3, but there are 3 class_names and labels are 0..2",
    ),
    "one class": (_with(labels=LABELS * 0), "mine has the one class 0"),
    "names twice": (_with(class_names=["a", "b", "a"]), "class_names holds a name twice"),
}


@pytest.mark.parametrize(("arrays", "message"), REFUSED.values(), ids=REFUSED)
def test_arrays_that_are_refused(arrays, message):
    with pytest.raises(UserError, match=message) as error:
        own_arrays.check_arrays(arrays, "mine")
    assert str(error.value).startswith("mine")
    assert "\n" not in str(error.value)


def test_npz_is_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", inputs=IMAGES, labels=LABELS, class_names=list("abc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path / "a.npz"), "~/a.npz", "a.npz"):
        arrays = own_arrays.read_npz(path)
        np.testing.assert_array_equal(arrays["inputs"], IMAGES)
        assert own_arrays.check_arrays(arrays, path).class_names == ("a", "b", "c")


def _npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _damaged_npz(file):
    np.savez(file, inputs=IMAGES, labels=LABELS)
    content = bytearray(file.read_bytes())
    where = content.index(IMAGES.tobytes())
    content[where] ^= 255
    file.write_bytes(content)


def _npz_of_text(file):
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("inputs.npy", "these are not numbers")


BAD_NPZ = {
    "absent": (lambda file: None, "there is no file"),
    "text": (lambda file: file.write_text("inputs"), "is not an npz file; write one with"),
    "npy": (lambda file: file.write_bytes(_npy(IMAGES)), "is not an npz file"),
    "cut": (
        lambda file: (
            np.savez(file, inputs=IMAGES, labels=LABELS),
            file.write_bytes(file.read_bytes()[:200]),
        ),
        "is not an npz file",
    ),
    "damaged": (_damaged_npz, "is damaged"),
    "text inside": (_npz_of_text, r"is damaged \(inputs is not an array\)"),
    "pickled": (
        lambda file: np.savez(file, inputs=np.array([{}, []], object), labels=[0, 1]),
        "inputs holds pickled Python objects, which are never loaded",
    ),
}


@pytest.mark.parametrize(("write", "message"), BAD_NPZ.values(), ids=BAD_NPZ)
def test_npz_that_is_refused(tmp_path, write, message):
    write(tmp_path / "bad.npz")
    with pytest.raises(UserError, match=message) as error:
        own_arrays.read_npz(str(tmp_path / "bad.npz"))
    assert str(tmp_path / "bad.npz") in str(error.value)


def _save(file, pixels, mode=None):
    file.parent.mkdir(parents=True, exist_ok=True)
    image = PIL.Image.fromarray(np.asarray(pixels, np.uint8))
    (image.convert(mode) if mode else image).save(file)


def _gray(value, size=(3, 2)):
    return np.full(size, value, np.uint8)


def test_folder_of_gray_images(tmp_path):
    """Sorted folders are the classes; files of several formats, hidden ones ignored."""
    _save(tmp_path / "dog" / "1.png", _gray(10))
    _save(tmp_path / "dog" / "2.bmp", _gray(20))
    _save(tmp_path / "cat" / "a.tiff", _gray(0))
    (tmp_path / "dog" / ".DS_Store").write_text("?")
    (tmp_path / ".git").mkdir()
    (tmp_path / "README").write_text("about")

    arrays = folders.read_folder(str(tmp_path))

    assert list(arrays["class_names"]) == ["cat", "dog"]
    np.testing.assert_array_equal(arrays["labels"], [0, 1, 1])
    np.testing.assert_array_equal(arrays["inputs"][:, 0, 0, 0], [0, 10, 20])
    assert arrays["inputs"].shape == (3, 3, 2, 1)
    assert arrays["inputs"].dtype == np.uint8


def test_one_colour_image_makes_all_rgb(tmp_path):
    colour = np.zeros((3, 2, 3), np.uint8) + np.array([1, 2, 3], np.uint8)
    _save(tmp_path / "a" / "1.png", _gray(7))
    _save(tmp_path / "b" / "1.png", colour)
    _save(tmp_path / "b" / "2.png", colour, "RGBA")
    _save(tmp_path / "b" / "3.gif", colour)

    inputs = folders.read_folder(str(tmp_path))["inputs"]

    assert inputs.shape == (4, 3, 2, 3)
    np.testing.assert_array_equal(inputs[:, 0, 0], [[7, 7, 7], *[[1, 2, 3]] * 3])


@pytest.mark.parametrize("validation", ["validation", "val"])
def test_folder_with_splits(tmp_path, validation):
    for split, count in (("train", 3), ("test", 2), (validation, 1)):
        for index in range(count):
            _save(tmp_path / split / "no" / f"{index}.png", _gray(index))
    _save(tmp_path / "train" / "yes" / "0.png", _gray(9))

    checked = own_arrays.check_arrays(folders.read_folder(str(tmp_path)), "folder")

    assert list(checked.inputs) == ["train", "validation", "test"]
    assert checked.class_names == ("no", "yes")
    np.testing.assert_array_equal(checked.targets["train"], [0, 0, 0, 1])
    np.testing.assert_array_equal(checked.inputs["train"][:, 0, 0, 0], [0, 1, 2, 9])
    assert len(checked.targets["test"]) == 2


def test_a_class_may_be_called_train(tmp_path):
    for name in ("car", "train"):
        _save(tmp_path / name / "1.png", _gray(1))
    assert list(folders.read_folder(str(tmp_path))["class_names"]) == ["car", "train"]


def _two_classes(root):
    for name in ("a", "b"):
        _save(root / name / "1.png", _gray(1))


def _then(damage):
    def write(root):
        _two_classes(root)
        damage(root)

    return write


def _cut_image(root):
    noise = np.random.default_rng(0).integers(0, 256, (3, 2), np.uint8)
    _save(root / "b" / "2.png", noise)
    content = (root / "b" / "2.png").read_bytes()
    # The header stays, the pixels go.
    (root / "b" / "2.png").write_bytes(content[:45])


def _icon(root):
    # Whole, but Pillow would decode it before its size can be checked.
    PIL.Image.fromarray(_gray(1, (16, 16))).save(root / "b" / "2.ico")


def _sixteen_bit(root):
    PIL.Image.fromarray(np.zeros((3, 2), np.uint16)).save(root / "b" / "2.png")


def _unknown_split(root):
    for split in ("train", "vali"):
        _two_classes(root / split)


def _split_twice(root):
    for split in ("train", "val", "validation"):
        _two_classes(root / split)


BAD_FOLDERS = {
    "absent": (lambda root: root.rmdir(), "there is no folder"),
    "empty": (lambda root: None, "holds no class folders"),
    "no folders": (lambda root: _save(root / "1.png", _gray(1)), "holds no class folders"),
    "no images": (lambda root: (root / "a").mkdir(), "hold no images"),
    "text": (_then(lambda root: (root / "b" / "x.txt").write_text("x")), "x.txt is not an image"),
    "deep": (_then(lambda root: (root / "b" / "c").mkdir()), "c is not an image"),
    "icon": (_then(_icon), "2.ico is not an image that Pillow reads as BMP, .*; repair or convert"),
    "cut": (_then(_cut_image), "2.png is damaged"),
    "16 bit": (_then(_sixteen_bit), "2.png has mode I.*, not 8 bits"),
    "size": (
        _then(lambda root: _save(root / "b" / "2.png", _gray(1, (4, 2)))),
        r"b/2.png is 4x2 pixels \(height x width\) but .*a/1.png is 3x2.*config.resize",
    ),
    "vali": (_unknown_split, "vali is beside the split train but none of train, validation"),
    "twice": (_split_twice, "validation is the split validation, and so is val; keep one"),
}


@pytest.mark.parametrize(("write", "message"), BAD_FOLDERS.values(), ids=BAD_FOLDERS)
def test_folders_that_are_refused(tmp_path, write, message):
    root = tmp_path / "images"
    root.mkdir()
    write(root)
    with pytest.raises(UserError, match=message) as error:
        folders.read_folder(str(root))
    assert str(root) in str(error.value)
    assert "\n" not in str(error.value)


def test_png_bytes_with_a_wrong_suffix_are_read(tmp_path):
    """What an image is, its bytes say."""
    _two_classes(tmp_path)
    file = io.BytesIO()
    PIL.Image.fromarray(_gray(5)).save(file, "PNG")
    (tmp_path / "b" / "2.dat").write_bytes(file.getvalue())
    assert folders.read_folder(str(tmp_path))["inputs"].max() == 5


def test_a_folder_of_unlabelled_images(tmp_path):
    """Images of the folder itself and of the folders in it, by sorted relative path."""
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").write_text("ignored")
    for i, name in enumerate(["z.png", "b/x.png", "a.png"]):
        PIL.Image.fromarray(IMAGES[i]).save(tmp_path / name)
    names, images = folders.read_unlabelled([str(tmp_path)])
    assert names == ["a.png", "b/x.png", "z.png"]
    np.testing.assert_array_equal(images[..., 0], IMAGES[[2, 1, 0]])

    (tmp_path / "b" / "empty").mkdir()
    with pytest.raises(UserError, match="holds no images"):
        folders.read_unlabelled([str(tmp_path / "b" / "empty")])


def test_inputs_take_the_type_of_the_training_data():
    for values in (IMAGES, IMAGES.astype(np.int64), IMAGES.astype(np.float64), IMAGES > 3):
        as_uint8 = own_arrays.check_inputs(values, np.dtype(np.uint8), "mine")
        assert as_uint8.dtype == np.uint8
        np.testing.assert_array_equal(as_uint8, values)
        as_float = own_arrays.check_inputs(values, np.dtype(np.float32), "mine")
        assert as_float.dtype == np.float32
        np.testing.assert_array_equal(as_float, values)


@pytest.mark.parametrize("bad", [0.5, -1, 256, np.nan, np.inf])
def test_inputs_that_are_no_raw_pixels(bad):
    values = np.array([[0.0, 255.0], [3.0, bad]])
    with pytest.raises(UserError, match=rf"mine holds {bad}.*whole numbers 0\.\.255"):
        own_arrays.check_inputs(values, np.dtype(np.uint8), "mine")


def test_targets_are_numbers_and_have_no_classes():
    numbers = np.array([1.5, -2, 3, 4, 5, 1e6])
    checked = _check(inputs=IMAGES, targets=numbers)
    assert checked.class_names is None
    assert checked.targets[own_arrays.POOL].dtype == np.float32
    np.testing.assert_array_equal(checked.targets[own_arrays.POOL], numbers.astype(np.float32))
    column = _check(inputs=IMAGES, targets=numbers[:, None]).targets[own_arrays.POOL]
    np.testing.assert_array_equal(column, checked.targets[own_arrays.POOL])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": IMAGES, "targets": np.full(6, np.nan)}, "targets holds nan in example 0"),
        ({"inputs": IMAGES, "targets": np.ones((6, 2, 1))}, r"targets are \[N\]"),
        ({"inputs": IMAGES, "targets": np.ones(5)}, "6 examples.*targets.*5"),
        ({"inputs": IMAGES, "targets": list("abcdef")}, "targets has dtype <U1"),
        ({"inputs": IMAGES, "targets": LABELS, "labels": LABELS}, "expected are"),
        ({"inputs": IMAGES, "targets": LABELS, "class_names": list("ab")}, "expected are"),
    ],
)
def test_targets_that_are_no_numbers_are_refused(arrays, message):
    with pytest.raises(UserError, match=message):
        own_arrays.check_arrays(arrays, "mine")


# Annotations on targets.

INPUTS = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
DATA = {"inputs": INPUTS, "targets": np.arange(30.0)}
FLAGS = np.arange(30) % 3 == 0


def test_remarks_stay_with_their_targets_in_every_split():
    with collected() as notes:
        source = dataset_from_arrays({**DATA, "censored": FLAGS, "target_errors": np.arange(30)})
    assert "10 of 30 targets are censored" in notes[0]
    assert "errors of measurement" in notes[1]
    for split in source.sizes:
        rows = source.read(split, slice(None)).targets
        np.testing.assert_array_equal(rows["censored"], rows["targets"] % 3 == 0)
        np.testing.assert_array_equal(rows["target_errors"], rows["targets"])
    changed = dataset_from_arrays({**DATA, "censored": ~FLAGS})
    same = dataset_from_arrays({**DATA, "censored": ~FLAGS})
    assert source.fingerprint != changed.fingerprint == same.fingerprint


def test_y_of_whole_numbers_is_targets_where_it_has_remarks():
    whole = {"X_train": INPUTS, "y_train": np.arange(30), "censored_train": FLAGS}
    source = dataset_from_arrays(whole)
    assert source.class_names is None
    assert source.targets("train").dtype.names == ("targets", "censored")


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"censored": FLAGS[:5]}, r"censored.*\(5,\).*\[N\]"),
        ({"censored": FLAGS + 1}, "censored.*2.*0.*True"),
        ({"censored": ["yes"] * 30}, "one bool for each"),
        ({"target_errors": [[1], [1, 2]]}, "target_errors is ragged"),
        ({"target_errors": np.full(30, -1.0)}, "-1.0.*0.*standard"),
        ({"target_errors": np.full(30, np.nan)}, "holds nan"),
        ({"target_errors": np.full((30, 2), 1.0)}, "one number for each"),
        ({"censored": FLAGS, "class_names": ["a", "b"]}, "censored or target_errors beside each"),
        ({"targets": np.ones((30, 2)), "censored": FLAGS}, "one|single target"),
    ],
)
def test_bad_annotations_are_one_line(annotations, message):
    with pytest.raises(UserError, match=message) as refused:
        dataset_from_arrays({**DATA, **annotations})
    assert "\n" not in str(refused.value)


def test_every_split_has_the_remarks_or_none():
    data = {f"{split}_{key}": one for split in ("train", "test") for key, one in DATA.items()}
    with pytest.raises(UserError, match="target_errors beside"):
        dataset_from_arrays({**data, "train_censored": FLAGS})
