"""Folders of images of any size: `config.resize`."""

import time

import numpy as np
import PIL.Image
import pytest

from ensemble import UserError
from ensemble.sources import folders, image_form, image_memory, load_dataset, own_arrays

RNG = np.random.default_rng(0)


def _save(file, height, width, mode="RGB", **options):
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, (height, width, 3), np.uint8)
    image = PIL.Image.fromarray(pixels).convert(mode)
    image.save(file, **options)
    return image


@pytest.fixture
def mixed(tmp_path):
    """Two classes of images of several sizes, forms and formats."""
    for i in range(12):
        name = ("x.png", "x.jpg", "x.gif", "x.webp")[i % 4]
        mode = ("RGB", "L", "P", "RGBA")[i % 4]
        _save(tmp_path / "ab"[i % 2] / f"{i}{name}", 9 + i, 20 - i, mode)
    return tmp_path


def test_images_of_any_size_become_one(mixed):
    with pytest.raises(UserError, match=r"19x10.*config\.resize.*64"):
        load_dataset(f"folder:{mixed}")
    dataset = load_dataset(f"folder:{mixed}", resize="8x6")
    assert dataset.input_shape == (8, 6, 3)
    assert sum(dataset.sizes.values()) == 12
    assert load_dataset(f"folder:{mixed}", resize=8).input_shape == (8, 8, 3)


def test_grey_images_stay_grey_and_those_of_the_size_as_they_are(tmp_path):
    for name in "ab":
        _save(tmp_path / name / "1.png", 7, 5, "L")
    before = folders.read_folder(str(tmp_path))["inputs"]
    assert before.shape == (2, 7, 5, 1)
    np.testing.assert_array_equal(folders.read_folder(str(tmp_path), (7, 5))["inputs"], before)


def test_a_resized_photograph_stands_upright(tmp_path):
    """As its EXIF data say: 6 is a quarter turn clockwise."""
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    stored = _save(tmp_path / "a.png", 8, 12, exif=exif)
    images = folders.read_images([tmp_path / "a.png"], (12, 8))
    np.testing.assert_array_equal(images[0], np.rot90(np.asarray(stored), -1))


def test_memory_is_counted_after_resizing(tmp_path, monkeypatch):
    for i in range(4):
        _save(tmp_path / "ab"[i % 2] / f"{i}.png", 100, 100 + i)
    monkeypatch.setattr(folders, "MAX_THREADS", 2)
    needed = 4 * 10 * 10 * 3 + 2 * 100 * 103 * 3
    monkeypatch.setattr(own_arrays, "memory_bytes", lambda: 4 * needed)
    assert folders.read_folder(str(tmp_path), (10, 10))["inputs"].shape == (4, 10, 10, 3)
    monkeypatch.setattr(own_arrays, "memory_bytes", lambda: 4 * needed - 4)
    with pytest.raises(UserError, match=f"4 images.*10x10 pixels.*{needed:,}"):
        folders.read_folder(str(tmp_path), (10, 10))


def test_images_are_decoded_by_no_more_threads_than_memory_holds(tmp_path, monkeypatch):
    """Of a data set that is decoded when it is read, and of what is to be predicted, too."""
    for i in range(16):
        _save(tmp_path / "ab"[i % 2] / f"{i}.png", 20, 20 + i)
    now, most = [0], [0]

    def resize(*arguments):
        now[0] += 1
        most[0] = max(most[0], now[0])
        time.sleep(0.002)
        now[0] -= 1
        return image_form.resize_and_crop(*arguments)

    monkeypatch.setattr(folders, "resize_and_crop", resize)
    reads = {
        "in memory": lambda: load_dataset(f"folder:{tmp_path}", resize=8),
        "decoded": lambda: load_dataset(f"folder:{tmp_path}", resize=8),
        "predicted": lambda: folders.unlabelled([str(tmp_path)], (8, 8))[1][:],
    }
    for case, read in reads.items():
        data = 10**9 if case == "in memory" else 4000
        monkeypatch.setattr(own_arrays, "memory_bytes", lambda data=data: data)
        for num_threads in (1, 2):
            memory, most[0] = 2 * 12 * 20 * 35 * num_threads, 0
            monkeypatch.setattr(image_memory, "memory_bytes", lambda memory=memory: memory)
            read()
            assert most[0] == num_threads, case
        monkeypatch.setattr(image_memory, "memory_bytes", lambda: 2 * 12 * 20 * 35 - 2)
        with pytest.raises(UserError, match=r"b/15\.png.*700 pixels.*8,400 bytes"):
            read()


@pytest.mark.parametrize("name", ["digits", "npz:a.npz", "npy:a", "mnist"])
def test_other_data_are_not_resized(name):
    with pytest.raises(UserError, match=r"pictures.*\(folder:PATH, tfds:NAME"):
        load_dataset(name, resize=8)


def test_images_and_folders_are_read_together(tmp_path):
    _save(tmp_path / "z.png", 5, 5)
    _save(tmp_path / "folder" / "b" / "x.png", 5, 5)
    _save(tmp_path / "folder" / "a.png", 5, 5)
    paths = [str(tmp_path / "z.png"), str(tmp_path / "folder")]
    names, images = folders.read_unlabelled(paths)
    assert images.shape == (3, 5, 5, 3)
    folder = paths[1]
    assert names == [paths[0], f"{folder}/a.png", f"{folder}/b/x.png"]
    assert folders.read_unlabelled(paths[:1])[0] == paths[:1]
    assert folders.read_unlabelled(paths[1:])[0] == ["a.png", "b/x.png"]
