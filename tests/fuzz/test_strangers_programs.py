"""Files and folders of strangers, and their command lines, through the programs."""

import functools
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from strangers import MARKS, check, pictures, program

pytestmark = MARKS
SHORT = ("ensemble_size=2", "num_epochs=5", "learning_rate=5e-3", "plot_every_epochs=100")


def train(folder, dataset, *settings):
    """Runs `train.py` and reads what its report says."""
    flags = [f"--config.{one}" for one in (*SHORT, f"dataset={dataset}", *settings)]
    program("train.py", "--config=CONFIGS/images.py", f"--workdir={folder}/run", *flags)
    found = json.loads((folder / "run" / "report.json").read_text())["test"]
    return found["scores"]["accuracy"]["value"], 0.5


def fill(folder, change=lambda picture, number: picture, suffix="png", seed=0, **sizes):
    """Writes a folder of pictures per class; `change` is of a picture and its number."""
    images, labels = pictures(seed, **sizes)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / f"class{label}" / f"{number}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        change(Image.fromarray(image.squeeze()), number).save(path)


def with_file(name, content=b""):
    def make(folder):
        fill(folder)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)

    return make


def by_split(folder):
    fill(folder / "train")
    fill(folder / "test", count=60)


def flat(folder):
    fill(folder / "all", count=9)
    for path in list((folder / "all").rglob("*.png")):
        path.rename(folder / path.name)
    shutil.rmtree(folder / "all")


def of_sizes(picture, number):
    return picture.resize((12 + number % 3, 12))


def of_modes(picture, number):
    return picture.convert(("L", "RGB", "P", "RGBA", "LA")[number % 5])


def of_16_bits(picture, number):
    return Image.fromarray(np.asarray(picture).astype(np.uint16) * 257)


# fmt: off
FOLDERS = {  # Settings, and what is to be said.
    "RGB JPEG": (functools.partial(fill, channels=3, suffix="jpg"), (), ""),
    "mixed sizes": (functools.partial(fill, change=of_sizes), (), "resize"),
    "mixed sizes, resized": (functools.partial(fill, change=of_sizes), ("resize=12",), ""),
    "grey and RGB and palettes": (functools.partial(fill, change=of_modes), (), ""),
    "16 bits": (functools.partial(fill, change=of_16_bits), (), "16.*8 bits"),
    "unreadable": (with_file("class1/broken.png", b"\x89PNG broken"), (), "broken.png"),
    "an empty picture": (with_file("class1/empty.jpg"), (), "empty.jpg"),
    "a hidden file": (with_file("class1/.DS_Store", b"\0"), (), ""),
    "by split": (by_split, (), ""),
    "flat": (flat, (), "folder.*class|class.*folder"),
    "one class": (functools.partial(fill, classes=1), (), "one class|class0"),
    "empty": (lambda folder: folder.mkdir(), (), "class|folder|image"),
}
OF_ARRAYS, INTO = ("train.py", "--config=CONFIGS/arrays.py"), "--workdir=FOLDER/r"
COMMANDS = [
    (("train.py",), "config"),
    (OF_ARRAYS, "workdir"),
    (("train.py", "--config=mine.py", INTO), "mine.py"),
    ((*OF_ARRAYS, INTO, "--config.dataset=npz:FOLDER/mine.csv"), "mine.csv|npz"),
    ((*OF_ARRAYS, INTO, "--config.dataset=FOLDER/mine.csv"), "mine.csv|npz:"),
    ((*OF_ARRAYS, INTO, "--config.dataset=npz:FOLDER/none.npz"), "none.npz"),
    ((*OF_ARRAYS, INTO), "PATH"),
    ((*OF_ARRAYS, INTO, "--epochs=3"), "epochs"),
    ((*OF_ARRAYS, INTO, "--num_epochs=3"), "num_epochs"),
    (("evaluate.py", "--workdir=FOLDER"), "run|workdir|checkpoint"),
    (("evaluate.py",), "workdir"),
    (("predict.py",), "workdir"),
    (("predict.py", "--workdir=FOLDER", "FOLDER/mine.csv"), "run|workdir|checkpoint"),
]
# fmt: on


@pytest.mark.parametrize("case", FOLDERS)
def test_folders(case, tmp_path):
    make, settings, says = FOLDERS[case]
    make(tmp_path / "data")
    check(lambda: train(tmp_path, f"folder:{tmp_path}/data", *settings), says)


@pytest.mark.parametrize(("command", "says"), COMMANDS)
def test_commands(command, says, tmp_path):
    (tmp_path / "mine.csv").write_text("a,b,label\n1,2,0\n3,4,1\n")
    check(lambda: program(*(one.replace("FOLDER", str(tmp_path)) for one in command)), says)
