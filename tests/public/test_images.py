"""Folders of pictures come out right, whatever cameras, formats and systems have done to them."""

import json
import shutil

import names
import numpy as np
import PIL.Image
import pytest
from small import files_in, refused, run_command, train

ONE = {"ensemble_size": 1, "num_epochs": 1}
ORIENTATION = 0x0112
CLASSES = ("left", "right")


def pixels(num_pictures=24, shape=(6, 5, 3)):
    """Pictures uint8 [N, 6, 5, 3], no two alike, and labels of two classes in turn."""
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, (num_pictures, *shape)).astype(np.uint8), np.arange(
        num_pictures
    ) % 2


def saved(folder, images, labels, suffix="png", **options):
    """A folder for each class."""
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / CLASSES[label] / f"{i:02d}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(image.squeeze()).save(path, **options)
    return folder


def learned(folder, workdir, **values):
    """What a run says of its data."""
    train({**ONE, "dataset": f"folder:{folder}", **values}, None, workdir)
    return names.report(workdir)["dataset"]


def of_arrays(images, labels, workdir):
    """The same of arrays, in the order of the files."""
    order = np.argsort(labels, kind="stable")
    data = {"inputs": images[order], "labels": labels[order], "class_names": CLASSES}
    train(ONE, data, workdir)
    return names.report(workdir)["dataset"]


def predicted(workdir, *inputs):
    """The rows that `predict` writes."""
    out = workdir / f"{inputs[0].name}.jsonl"
    run_command("predict", f"--workdir={workdir}", *inputs, f"--out={out}")
    return [json.loads(line) for line in out.read_text().splitlines()]


def stored(image, orientation):
    """The picture that a viewer shows as `image` if it turns it by its EXIF orientation."""
    kinds = PIL.Image.Transpose
    steps = {2: kinds.FLIP_LEFT_RIGHT, 3: kinds.ROTATE_180, 4: kinds.FLIP_TOP_BOTTOM}
    steps |= {5: kinds.TRANSPOSE, 6: kinds.ROTATE_90, 7: kinds.TRANSVERSE, 8: kinds.ROTATE_270}
    exif = PIL.Image.Exif()
    exif[ORIENTATION] = orientation
    return PIL.Image.fromarray(image).transpose(steps[orientation]), exif


def test_pictures_stand_as_their_orientation_says(tmp_path):
    """Of all orientations and three formats without loss: the same bits as upright ones."""
    images, labels = pixels()
    expected = of_arrays(images, labels, tmp_path / "arrays")
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        turned, exif = stored(image, 2 + i % 7)
        suffix, options = [("png", {}), ("tiff", {}), ("webp", {"lossless": True})][i % 3]
        path = tmp_path / "pictures" / CLASSES[label] / f"{i:02d}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        turned.save(path, exif=exif, **options)
    found = learned(tmp_path / "pictures", tmp_path / "run")
    assert found["fingerprint"] == expected["fingerprint"]
    np.savez(tmp_path / "upright.npz", inputs=images[np.argsort(labels, kind="stable")])
    rows, upright = (
        predicted(tmp_path / "run", tmp_path / name) for name in ("pictures", "upright.npz")
    )
    assert len(rows) == len(images)
    for row, one in zip(rows, upright, strict=True):
        assert {**row, "input": ""} == {**one, "input": ""}


@pytest.mark.check
def test_an_upright_and_a_turned_photograph_are_the_same_when_resized(tmp_path):
    images, labels = pixels()
    saved(tmp_path / "upright", images, labels)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        turned, exif = stored(image, 2 + i % 7)
        path = tmp_path / "turned" / CLASSES[label] / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        turned.save(path, exif=exif)
    found = [
        learned(tmp_path / one, tmp_path / f"run {one}", resize="8x4")
        for one in ("upright", "turned")
    ]
    assert found[0]["fingerprint"] == found[1]["fingerprint"]
    assert found[0]["input_shape"] == [8, 4, 3]


def test_a_line_about_sizes_names_them_upright(tmp_path):
    saved(tmp_path / "pictures", *pixels())
    image, exif = stored(np.zeros((9, 4, 3), np.uint8), 6)
    image.save(tmp_path / "pictures" / "right" / "99.jpg", exif=exif)
    source = {**ONE, "dataset": f"folder:{tmp_path / 'pictures'}"}
    refused(lambda: train(source, None), "99.jpg", "9x4", "6x5", "height x width", "resize")


def test_every_mode_that_is_read_gives_the_right_colours(tmp_path):
    """Of formats without loss; transparency is dropped, grey becomes RGB beside colours."""
    images, labels = pixels()
    images[:12] //= 128  # Few colours, for palettes and black and white.
    images[:12] *= 255
    expected = images.copy()
    kinds = ["RGB png", "P gif", "P png", "RGBA png", "1 png", "L bmp", "LA png", "RGBA tiff"]
    kinds += ["CMYK tiff", "RGB webp", "L jp2", "RGB tga", "RGB ppm", "1 tiff"]
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        mode, suffix = kinds[i % len(kinds)].split()
        if mode in ("P", "1") and i >= 12:
            mode = "RGB"
            suffix = "png"
        picture = PIL.Image.fromarray(image)
        if mode in ("1", "L", "LA"):
            grey = image[..., 0]
            expected[i] = grey[..., None]
            picture = PIL.Image.fromarray(grey)
        if mode == "CMYK":
            picture = picture.convert("CMYK")
        elif mode == "P":
            picture = picture.quantize(8, dither=PIL.Image.Dither.NONE)
            assert (np.asarray(picture.convert("RGB")) == image).all()
        else:
            picture = picture.convert(mode)
        if mode in ("RGBA", "LA"):
            picture.putalpha(100)
        path = tmp_path / "pictures" / CLASSES[label] / f"{i:02d}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, **({"lossless": True} if suffix == "webp" else {}))
    found = learned(tmp_path / "pictures", tmp_path / "run")
    assert found["fingerprint"] == of_arrays(expected, labels, tmp_path / "arrays")["fingerprint"]


def test_all_files_that_cannot_be_read_are_named_in_one_line(tmp_path):
    """Before anything is learned: by their headers, their modes and their pixels."""
    folder = saved(tmp_path / "pictures", *pixels(shape=(40, 30, 3)))
    content = (folder / "left" / "00.png").read_bytes()
    (folder / "left" / "cut.png").write_bytes(content[: len(content) // 2])
    (folder / "left" / "empty.png").write_bytes(b"")
    (folder / "right" / "notes.txt").write_text("no picture")
    (folder / "right" / "deep").mkdir()
    PIL.Image.fromarray(np.zeros((40, 30), np.uint16)).save(folder / "left" / "x-ray.png")
    PIL.Image.fromarray(np.zeros((40, 30), np.float32)).save(folder / "left" / "heights.tiff")
    PIL.Image.new("LAB", (30, 40)).save(folder / "left" / "lab.tiff")
    before = files_in(tmp_path)
    line = refused(
        lambda: train({**ONE, "dataset": f"folder:{folder}"}, None, tmp_path / "run"),
        "7 of 31 files",
        "cut.png is damaged",
        "empty.png is empty",
        "notes.txt is damaged or not an image",
        "deep is no file",
        "x-ray.png has mode I;16",
        "heights.tiff has mode F",
        "lab.tiff has mode LAB",
        "or remove them",
    )
    assert len(line) < 2000
    assert files_in(tmp_path) == before


def test_what_systems_leave_behind_is_no_class_and_no_picture(tmp_path):
    folder = saved(tmp_path / "pictures", *pixels())
    expected = learned(folder, tmp_path / "before")
    left = ["__MACOSX/left/._1.png", ".ipynb_checkpoints/1.png", "@eaDir/1.png", "left/._1.png"]
    left += ["left/Thumbs.db", "right/desktop.ini", "right/.DS_Store", "Desktop.ini"]
    for name in left:
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes((folder / "left" / "00.png").read_bytes())
    found = learned(folder, tmp_path / "run")
    assert found["class_names"] == list(CLASSES)
    assert found["fingerprint"] == expected["fingerprint"]
    notes = [one for one in names.notes(tmp_path / "run") if "__MACOSX" in one]
    assert len(notes) == 1
    for name in ("8 files", "@eaDir", ".ipynb_checkpoints", "._1.png", "Thumbs.db"):
        assert name in notes[0]
    assert len(predicted(tmp_path / "run", folder)) == 24


@pytest.mark.parametrize("write", ["empty", "one class", "no images", "no such split", "twice"])
def test_folders_without_classes_are_one_line(write, tmp_path):
    images, labels = pixels()
    words = [str(tmp_path / "pictures")]
    (tmp_path / "pictures").mkdir()
    if write == "one class":
        saved(tmp_path / "pictures", images, labels * 0)
        words += ["1 class"]
    elif write == "no images":
        (tmp_path / "pictures" / "left").mkdir()
        words += ["0 class"]
    elif write in ("no such split", "twice"):
        others = {"no such split": ["vali"], "twice": ["val", "validation"]}[write]
        for split in ("train", *others):
            saved(tmp_path / "pictures" / split, images, labels)
        words = [others[-1], "train, validation" if write == "no such split" else "second time"]
    source = {**ONE, "dataset": f"folder:{tmp_path / 'pictures'}"}
    refused(lambda: train(source, None, tmp_path / "run"), *words)


@pytest.mark.check
def test_pictures_of_any_size_become_one_and_predictions_have_their_names(tmp_path):
    folder = tmp_path / "pictures"
    for i in range(12):
        saved(folder / "all" / str(i), *pixels(1, (9 + i, 20 - i, 3)), "jpg" if i % 2 else "png")
        (folder / CLASSES[i % 2]).mkdir(exist_ok=True)
        for file in (folder / "all" / str(i) / "left").iterdir():
            file.rename(folder / CLASSES[i % 2] / f"{i}{file.suffix}")
    shutil.rmtree(folder / "all")
    found = learned(folder, tmp_path / "run", resize="8x6")
    assert found["input_shape"] == [8, 6, 3]
    assert sum(found["num_examples"].values()) == 12
    rows = predicted(tmp_path / "run", folder / "left", folder / "right" / "11.jpg")
    assert [one["input"] for one in rows] == [
        *sorted(str(file) for file in (folder / "left").iterdir()),
        str(folder / "right" / "11.jpg"),
    ]
    rows = predicted(tmp_path / "run", folder)
    assert {one["input"] for one in rows} >= {"left/0.png", "right/11.jpg"}


@pytest.mark.check
def test_folders_of_splits_are_kept(tmp_path):
    images, labels = pixels()
    for split, count in (("train", 24), ("val", 6), ("test", 8)):
        saved(tmp_path / "pictures" / split, images[:count], labels[:count])
    found = learned(tmp_path / "pictures", tmp_path / "run")
    sizes = found["num_examples"]
    assert {**sizes, "train": sizes["train"] + sizes["calibration"]} == {
        "train": 24,
        "validation": 6,
        "calibration": 2,
        "test": 8,
    }


def test_a_folder_beyond_the_memory_is_one_line(tmp_path, monkeypatch):
    folder = saved(tmp_path / "pictures", *pixels())
    monkeypatch.setattr("ensemble.data.own_arrays.max_data_bytes", lambda: 100)
    source = {**ONE, "dataset": f"folder:{folder}"}
    refused(lambda: train(source, None), "in memory", "config.resize", "ensemble convert")
