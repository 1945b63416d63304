"""`ensemble convert`: its flags, and lines that name them."""

import re

import numpy as np
import PIL.Image
import pyarrow
import pyarrow.parquet
import pytest
from programs import run_here


@pytest.fixture
def folder(tmp_path):
    """With pictures of two sizes, an npz file and a table."""
    for i in range(4):
        place = tmp_path / "pictures" / "ab"[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(np.full((5 + i, 4, 3), i, np.uint8)).save(place / f"{i}.png")
    np.savez(tmp_path / "all.npz", inputs=np.eye(20), labels=np.arange(20) % 2)
    table = pyarrow.table({"x": np.arange(20.0), "y": np.arange(20) % 2, "word": ["a"] * 20})
    pyarrow.parquet.write_table(table, tmp_path / "own.parquet")
    return tmp_path


def test_help_names_every_flag():
    for arguments in (["--help"], ["pictures", "records", "-h"]):
        done = run_here("ensemble.__main__", "convert", *arguments)
        assert done.returncode == 0
        assert not done.stderr
        for text in (
            "SOURCE",
            "FOLDER",
            "--resize=",
            "--skip_damaged\n",
            "--target=",
            "--data_dir=",
        ):
            assert text in done.stdout


@pytest.mark.parametrize("program", ["train", "distill", "evaluate", "predict", "export"])
def test_help_of_the_other_programs(program):
    done = run_here("ensemble.__main__", program, "--help")
    assert done.returncode == 0
    assert not done.stderr
    assert "  --out=..." in done.stdout or "  --workdir=..." in done.stdout
    assert len(done.stdout.splitlines()) < 60


LINES = [
    ("pictures", [], ["--resize", "'64x48'"]),
    ("pictures", ["--resize=x"], ["--resize='x'"]),
    ("all.npz", ["--resize=4"], ["--resize", "folder:PATH", "tfds:NAME"]),
    ("all.npz", ["--target=y"], ["--target"]),
    ("own.parquet", [], ["--target", "'x', 'y', 'word'"]),
    ("own.parquet", ["--target=z"], ["'z'", "--target", "'x', 'y', 'word'"]),
    ("own.parquet", ["--target=y"], ["--config.dataset=parquet:PATH"]),
]


@pytest.mark.parametrize(("source", "flags", "named"), LINES)
def test_a_line_names_what_can_be_typed_here(folder, source, flags, named):
    done = run_here("ensemble.__main__", "convert", folder / source, folder / "new", *flags)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert all(one in done.stderr for one in named)
    assert " config." not in done.stderr
    assert not (folder / "new").exists()


def test_what_cannot_be_read_may_be_left_out(folder):
    picture = folder / "pictures/a/0.png"
    picture.write_bytes(b"no picture")
    command = ("ensemble.__main__", "convert", folder / "pictures", folder / "new", "--resize=4")
    done = run_here(*command)
    assert done.returncode == 2
    assert "a/0.png is damaged" in done.stderr
    assert "--skip_damaged" in done.stderr
    done = run_here(*command, "--skip_damaged")
    assert "3 examples, 1 damaged left out" in done.stdout
    (line,) = done.stderr.splitlines()
    assert re.search(r"a/0\.png is damaged \([^;]*\)$", line)
