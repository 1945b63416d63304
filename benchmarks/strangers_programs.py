"""Cases: files and folders of strangers, through the programs of the clone."""

import functools
import json
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image
from strangers import Score, case, program
from strangers_data import pictures, vectors

SHORT = ("ensemble_size=2", "num_epochs=5", "learning_rate=5e-3", "plot_every_epochs=100")

Make = Callable[[pathlib.Path], Any]


def train(folder: pathlib.Path, dataset: str, *settings: str, config: str = "images") -> Score:
    """Runs `train.py` and reads what its report says."""
    flags = [f"--config.{one}" for one in (*SHORT, *settings)]
    program(
        "train.py",
        f"--config=configs/{config}.py",
        f"--workdir={folder}/run",
        f"--config.dataset={dataset}",
        *flags,
    )
    report = json.loads((folder / "run" / "report.json").read_text())
    found = report["test"]["ensemble"]
    return Score(found["accuracy"], 0.5) if "accuracy" in found else Score(-found["nll"], -10.0)


def of_pictures(name: str, make: Make, *settings: str, says: str = "", works: bool | None = None):
    """Adds a case of a folder that `make` fills."""

    @case(name, "terminal", says, works)
    def _(folder: pathlib.Path) -> Score:
        make(folder / "data")
        return train(folder, f"folder:{folder}/data", *settings)


def of_arrays(
    name: str, make: Callable[[Any, Any], dict[str, Any]], *settings: str, says: str = ""
):
    """Adds a case of an npz file."""

    @case(name, "terminal", says)
    def _(folder: pathlib.Path) -> Score:
        np.savez(folder / "mine.npz", **make(*vectors(0)))
        return train(folder, f"npz:{folder}/mine.npz", *settings, config="arrays")


def fill(
    folder: pathlib.Path, change: Any = None, suffix: str = "png", seed: int = 0, **sizes: Any
) -> None:
    """Writes a folder of pictures per class.

    Args:
        folder: to write to.
        change: from an image of Pillow and its number to what is saved.
        suffix: of the files.
        seed: of the pictures.
        sizes: as `pictures` takes them.
    """
    images, labels = pictures(seed, **sizes)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / f"class{label}" / f"{number}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(image.squeeze())
        (change(picture, number) if change else picture).save(path)


def with_file(name: str, content: bytes = b"") -> Make:
    """A folder of pictures with one more file."""

    def make(folder: pathlib.Path) -> None:
        fill(folder)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)

    return make


def with_empty_class(folder: pathlib.Path) -> None:
    """A folder of a class without pictures."""
    fill(folder)
    (folder / "class3").mkdir()


def by_split(folder: pathlib.Path) -> None:
    """Training and test pictures apart."""
    fill(folder / "train")
    fill(folder / "test", count=60)


def with_val(folder: pathlib.Path) -> None:
    """Another word for validation."""
    fill(folder / "train")
    fill(folder / "val", count=60)


def flat(folder: pathlib.Path) -> None:
    """Pictures without a folder per class."""
    fill(folder / "all", count=9)
    for path in list((folder / "all").rglob("*.png")):
        path.rename(folder / path.name)
    shutil.rmtree(folder / "all")


def mixed_sizes(picture: Image.Image, number: int) -> Image.Image:
    """Pictures of three sizes."""
    return picture.resize((12 + number % 3, 12))


def mixed_modes(picture: Image.Image, number: int) -> Image.Image:
    """Grey, RGB, palettes and transparency."""
    return picture.convert(("L", "RGB", "P", "RGBA", "LA")[number % 5])


of_pictures("folder, grey", fill)
of_pictures("folder, RGB JPEG", lambda f: fill(f, channels=3, suffix="jpg"))
of_pictures("folder, mixed sizes", lambda f: fill(f, mixed_sizes), says="resize")
of_pictures("folder, mixed sizes, resized", lambda f: fill(f, mixed_sizes), "resize=12")
of_pictures("folder, grey and RGB and palettes", lambda f: fill(f, mixed_modes))
of_pictures(
    "folder, 16 bits",
    lambda f: fill(f, lambda p, _: Image.fromarray(np.asarray(p).astype(np.uint16) * 257)),
    says="16.*8 bits",
)
of_pictures(
    "folder, an unreadable picture",
    with_file("class1/broken.png", b"\x89PNG broken"),
    says="broken.png",
)
of_pictures("folder, an empty picture", with_file("class1/empty.jpg"), says="empty.jpg")
of_pictures(
    "folder, a text file", with_file("class1/notes.txt", b"notes"), says="notes.txt", works=True
)
of_pictures("folder, a hidden file", with_file("class1/.DS_Store", b"\0"))
of_pictures("folder, an empty class", with_empty_class, says="class3")
of_pictures("folder, by split", by_split)
of_pictures("folder, train and val", with_val)
of_pictures("folder, flat", flat, says="folder.*class|class.*folder")
of_pictures("folder, one class", lambda f: fill(f, classes=1), says="one class|class0")
of_pictures("folder, none", lambda f: None, says="data")
of_pictures("folder, empty", lambda f: f.mkdir(), says="class|folder|image")
of_pictures("folder, tiny pictures", lambda f: fill(f, side=6))
of_arrays("npz, inputs and labels", lambda x, y: {"inputs": x, "labels": y})
of_arrays("npz, X and y", lambda x, y: {"X": x, "y": y})
of_arrays(
    "npz, X_train and so on",
    lambda x, y: {"X_train": x[:150], "y_train": y[:150], "X_test": x[150:], "y_test": y[150:]},
)
of_arrays("npz, unnamed", lambda x, y: {"arr_0": x, "arr_1": y}, says="arr_0")
of_arrays(
    "npz, objects", lambda x, y: {"inputs": x.astype(object), "labels": y}, says="object|pickle"
)
of_arrays("npz, strings", lambda x, y: {"inputs": x, "labels": np.array(["ox", "cat", "dog"])[y]})
of_arrays(
    "npz, numbers without a likelihood",
    lambda x, y: {"inputs": x, "targets": x[:, 0]},
    says="likelihood|gaussian",
)
of_arrays("npz, numbers", lambda x, y: {"inputs": x, "targets": x[:, 0]}, "likelihood=gaussian")
of_arrays(
    "npz, a wrong key",
    lambda x, y: {"inputs": x, "labels": y},
    "learningrate=1",
    says="learningrate.*learning_rate",
)
of_arrays("npz, a wrong method", lambda x, y: {"inputs": x, "labels": y}, "method=hcm", says="hcm")
of_arrays(
    "npz, a wrong number",
    lambda x, y: {"inputs": x, "labels": y},
    "batch_size=many",
    says="batch_size",
)
of_arrays(
    "npz, a picture's network",
    lambda x, y: {"inputs": x, "labels": y},
    "model=cnn",
    says="cnn|image",
)


def of_command(name: str, says: str, *command: str, content: str = "") -> None:
    """Adds a case of one command; FOLDER in it is a folder with a file `mine.csv`."""

    @case(name, "terminal", says)
    def _(folder: pathlib.Path) -> None:
        (folder / "mine.csv").write_text(content or "a,b,label\n1,2,0\n3,4,1\n")
        program(*(re.sub("FOLDER", str(folder), one) for one in command))


ARRAYS = ("train.py", "--config=configs/arrays.py")
of_command("train, nothing", "config", "train.py")
of_command("train, no workdir", "workdir", *ARRAYS)
of_command(
    "train, a config that is not there",
    "mine.py",
    "train.py",
    "--config=mine.py",
    "--workdir=FOLDER/r",
)
of_command(
    "train, a CSV file as npz",
    "mine.csv|npz",
    *ARRAYS,
    "--workdir=FOLDER/r",
    "--config.dataset=npz:FOLDER/mine.csv",
)
of_command(
    "train, a path without a prefix",
    "mine.csv|npz:",
    *ARRAYS,
    "--workdir=FOLDER/r",
    "--config.dataset=FOLDER/mine.csv",
)
of_command(
    "train, a file that is not there",
    "none.npz",
    *ARRAYS,
    "--workdir=FOLDER/r",
    "--config.dataset=npz:FOLDER/none.npz",
)
of_command("train, the path of the example", "PATH", *ARRAYS, "--workdir=FOLDER/r")
of_command(
    "train, a flag of another program", "epochs", *ARRAYS, "--epochs=3", "--workdir=FOLDER/r"
)
of_command(
    "train, a key without its prefix", "num_epochs", *ARRAYS, "--num_epochs=3", "--workdir=FOLDER/r"
)
of_command(
    "train, a config with a mistake",
    r"mine.csv|mine.py.*(lerning|line)",
    "train.py",
    "--config=FOLDER/mine.csv",
    "--workdir=FOLDER/r",
    content="import lerning\n",
)
of_command("evaluate, no run", "run|workdir|checkpoint", "evaluate.py", "--workdir=FOLDER")
of_command("evaluate, nothing", "workdir", "evaluate.py")
of_command("predict, nothing", "workdir", "predict.py")
of_command(
    "predict, no run", "run|workdir|checkpoint", "predict.py", "--workdir=FOLDER", "FOLDER/mine.csv"
)


@functools.cache
def trained() -> str:
    """The flag of a run on pictures of 12 by 12, which is left for the system to clear away."""
    folder = pathlib.Path(tempfile.mkdtemp())
    fill(folder / "data")
    train(folder, f"folder:{folder}/data")
    return f"--workdir={folder}/run"


@case("evaluate and predict, a folder", "terminal")
def _(folder: pathlib.Path) -> Score:
    fill(folder / "new", seed=1)
    program("evaluate.py", trained(), "--datasets=uniform", f"--out={folder}/evaluation")
    found = json.loads(program("predict.py", trained(), f"{folder}/new/class1", "--json"))
    rows = found["predictions"]
    return Score(float(np.mean([row["class"] == "class1" for row in rows])), 0.5)


def of_prediction(name: str, says: str, make: Callable[[pathlib.Path], str], works: bool = False):
    """Adds a case of something to predict."""

    @case(f"predict, {name}", "terminal", says, works)
    def _(folder: pathlib.Path) -> None:
        program("predict.py", trained(), make(folder))


def larger(folder: pathlib.Path) -> str:
    """A picture of another size."""
    Image.new("L", (40, 30)).save(folder / "large.png")
    return f"{folder}/large.png"


def table(folder: pathlib.Path) -> str:
    """A table for an ensemble of pictures."""
    np.savez(folder / "table.npz", inputs=np.zeros((3, 5)))
    return f"{folder}/table.npz"


def text(folder: pathlib.Path) -> str:
    """A CSV file."""
    (folder / "mine.csv").write_text("1,2\n")
    return f"{folder}/mine.csv"


of_prediction("a larger picture", "12|resize", larger)
of_prediction("a table", r"\(3, 5\)|\(5,\)|shape|image", table)
of_prediction("a CSV file", "mine.csv", text)
of_prediction("a file that is not there", "none.png", lambda folder: f"{folder}/none.png")


OWN = """import flax.linen as nn

import ensemble
from ensemble.configs import arrays


class Mine(nn.Module):
    num_outputs: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_outputs)(nn.tanh(nn.Dense(16)(x)))


ensemble.networks.register("mine", Mine)


def get_config():
    config = arrays.get_config()
    config.model = "mine"
    config.dataset = "npz:FOLDER/mine.npz"
    return config
"""


def own_run(folder: pathlib.Path) -> tuple[str, str]:
    """Trains a network of a config file's own.

    Returns:
        The flags of its workdir and of its file.
    """
    inputs, labels = vectors(0)
    np.savez(folder / "mine.npz", inputs=inputs, labels=labels)
    np.savez(folder / "new.npz", inputs=vectors(1)[0])
    (folder / "mine.py").write_text(OWN.replace("FOLDER", str(folder)))
    flags = (f"--workdir={folder}/run", f"--config={folder}/mine.py")
    program("train.py", *flags, *(f"--config.{one}" for one in SHORT))
    return flags


@case("own network, from training to a file", "terminal")
def _(folder: pathlib.Path) -> Score:
    flags = own_run(folder)
    program("evaluate.py", *flags, "--datasets=constant")
    program("-m", "ensemble", "export", *flags, f"--out={folder}/model.bin")
    rows = json.loads(program("predict.py", *flags, f"{folder}/new.npz", "--json"))["predictions"]
    said = {int(row["input"]): row["label"] for row in rows}
    right = [said[index] == label for index, label in enumerate(vectors(1)[1])]
    return Score(float(np.mean(right)), 0.44)


@case("own network, loaded without its file", "terminal", says="mine.*--config")
def _(folder: pathlib.Path) -> None:
    program("predict.py", own_run(folder)[0], f"{folder}/new.npz")
