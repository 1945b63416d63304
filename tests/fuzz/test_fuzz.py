"""Whatever a stranger or a slip of the hand gives: every input ends in success or in one line.

Inputs are seeded: a failure names the kind and the number of its input. `make test` takes the first
of each kind, `make soak` all 100,000.
"""

import collections
import io
import json
import logging
import os
import random
import shutil
import sys
import traceback

import numpy as np
import PIL.Image
import pytest
from absl import flags
from conftest import ROOT, make_blobs
from etils import epath
from programs import as_new
from run_parts import config_of, of_classes, subject_of, validated
from spoiled import TEXTS, mutate_bytes, mutate_json, mutate_npz

import ensemble
from ensemble import UserError
from ensemble.config import default_config, differences, flatten
from ensemble.draws.store import Draws
from ensemble.evaluation.page import drawable_records
from ensemble.evaluation.questions.others import convergence
from ensemble.evaluation.words import say
from ensemble.likelihoods.classes import LOG_PROBS
from ensemble.scoring.sections import score_split
from ensemble.sources import dataset_from_arrays, folders, own_arrays
from ensemble.storage.predictions import read_predictions
from ensemble.tasks.learning_data import described_dataset

COUNTS = {
    "overrides": 30_000,
    "report": 15_000,
    "config": 5_000,
    "metrics": 2_000,
    "predictions": 18_000,
    "draws": 5_000,
    "npz": 10_000,
    "folder": 15_000,
}
assert sum(COUNTS.values()) == 100_000
SHARES = [
    0.01,
    pytest.param(1, marks=pytest.mark.soak),
]


@pytest.fixture(autouse=True)
def quiet():
    """Without the warnings of thousands of inputs."""
    logger = logging.getLogger("ensemble")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


def run_all(kind, count, make_one):
    """Gives `make_one` a generator for each input; fails with the first surprises, by place."""
    outcomes, surprises = collections.Counter(), {}
    for number in range(count):
        rng = random.Random(f"{kind} {number}")
        try:
            make_one(rng)
            outcomes["accepted"] += 1
        except UserError as error:
            outcomes["refused"] += 1
            if "\n" in str(error):
                surprises.setdefault("two lines", f"{kind} {number}: {error!r}")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            where = traceback.extract_tb(error.__traceback__)
            place = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in where[:-4:-1])
            surprises.setdefault((type(error).__name__, place), f"{kind} {number}: {error!r:.200}")
    print(f"{kind}: {count:,} inputs, {dict(outcomes)}")
    assert not surprises, "\n".join(f"{place}: {text}" for place, text in surprises.items())
    assert outcomes["accepted"] + outcomes["refused"] == count
    assert outcomes["refused"] > count / 10
    assert outcomes["accepted"] > 0
    return outcomes


# What each kind of input is.


def overrides(folder, _):
    """Command lines of train.py."""
    from ensemble.commands import train

    keys = list(flatten(default_config()))
    config = ROOT / "configs" / "digits_ensemble.py"

    def one(rng):
        arguments = [f"--config={config}", "--workdir=runs/x"]
        for _ in range(rng.randint(1, 2)):
            key, value = rng.choice(keys), rng.choice(TEXTS)
            if rng.random() < 0.3:
                value = "".join(chr(rng.randint(1, 0x2FF)) for _ in range(rng.randint(0, 12)))
            elif rng.random() < 0.4:
                value = str(rng.choice([rng.randint(-5, 300), round(rng.gauss(0, 2), 3)]))
            forms = [
                f"--config.{key}={value}", f"--config.{key}",
                f"-config.{key}={value}", f"--noconfig.{key}", f"--config.{key}.{value}=1",
                f"--config.{key}[0]={value}", f"--config.{value}={value}", f"--{value}",
                f"--config={config}:{value}", f"--workdir={value}", value, f"--config..{key}=1",
            ]  # fmt: skip
            form = forms[0] if rng.random() < 0.6 else rng.choice(forms)
            arguments.insert(rng.randint(1, len(arguments)), form)
        # A process cannot be given a NUL.
        arguments = ["train.py", *(one.replace("\0", "") for one in arguments)]
        with as_new(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", arguments)
            train.parse_flags(arguments)
            validated(flags.FLAGS.config)

    return one


def report(folder, runs):
    """report.json of a workdir that evaluate.py, predict.py and others are given."""
    documents = []
    for name in ("sgd", "hmc"):
        shutil.copytree(runs / name, folder / name)
        documents.append((folder / name, json.loads((folder / name / "report.json").read_text())))

    def one(rng):
        workdir, document = rng.choice(documents)
        (workdir / "report.json").write_bytes(mutate_json(rng, document))
        subject = subject_of(workdir)
        described_dataset(subject.description)
        assert subject.test.arrays[LOG_PROBS].ndim == 3
        assert subject.calibration is None or subject.calibration.arrays[LOG_PROBS].ndim == 3
        assert isinstance(subject.failed_members, dict)
        if subject.report.get("posterior") is not None:
            say(convergence(subject.report["posterior"]))
        if rng.random() < 0.01:  # It takes a second.
            ensemble.evaluate(workdir, folder / "out", [])

    return one


def config(folder, runs):
    """config.json of a workdir that train.py resumes."""
    document = json.loads((runs / "sgd" / "config.json").read_text())
    now = validated(document["config"]).to_dict()

    def one(rng):
        (folder / "config.json").write_bytes(mutate_json(rng, document))
        found = config_of(folder)
        assert isinstance(differences(found, now), list)

    return one


def metrics(folder, runs):
    """metrics.jsonl, whose curves evaluate.py draws."""
    shutil.copytree(runs / "sgd", folder / "run")
    lines = (folder / "run" / "metrics.jsonl").read_bytes().splitlines()
    records = [json.loads(line) for line in lines]
    subject = subject_of(folder / "run")

    def one(rng):
        path = folder / "run" / "metrics.jsonl"
        path.write_bytes(b"\n".join(mutate_json(rng, record) for record in records))
        found = drawable_records(subject)
        if len(found) < len(records) / 2:
            raise UserError("most lines cannot be drawn")
        if rng.random() < 0.005:
            ensemble.pictures.curves.training_curves(found, subject.likelihood.curves())

    return one


def predictions(folder, runs):
    """predictions/test.npz."""
    config = config_of(runs / "sgd")
    content = (runs / "sgd" / "predictions" / "test.npz").read_bytes()
    path = epath.Path(folder / "test.npz")
    likelihood = of_classes("abc")

    def one(rng):
        path.write_bytes(mutate_npz(rng, content))
        stored = read_predictions(path, config, likelihood)
        score_split(likelihood.view(stored.arrays, stored.targets))

    return one


def draws(folder, runs):
    """draws/FIRST.npz."""
    path = sorted((runs / "hmc" / "draws").iterdir())[0]
    content = path.read_bytes()

    def one(rng):
        (folder / path.name).write_bytes(mutate_npz(rng, content))
        found = Draws(epath.Path(folder))
        found.scalars()
        found.positions()

    return one


def npz(folder, runs):
    """npz files of examples."""
    file = io.BytesIO()
    blobs = make_blobs(61)
    np.savez_compressed(file, **blobs, class_names=np.array(["a", "b", "c"]))

    def one(rng):
        (folder / "data.npz").write_bytes(mutate_npz(rng, file.getvalue()))
        dataset_from_arrays(own_arrays.read_npz(str(folder / "data.npz")), "npz:data.npz")

    return one


def folder(folder, runs):
    """Folders of images."""
    images = []
    for form in ("png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm"):
        file = io.BytesIO()
        PIL.Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(file, form)
        images.append(file.getvalue())
    names = [b"0.png", b"1.jpg", b"-rf.png", b"a\nb.png", b"\xff\xfe.png", b"..png", b"x" * 250,
             b" ", b"<img src=x>.png", "\u202egnp".encode(), b".hidden", b"no suffix"]  # fmt: skip

    def one(rng):
        root = os.fsencode(folder / "images")
        shutil.rmtree(root, ignore_errors=True)
        for name in rng.sample([b"a", b"b", b"train", b"\xff", b"<b>", b"c\n", b"test"], 3):
            place = os.path.join(root, name)
            if rng.random() < 0.15:
                place = os.path.join(place, rng.choice(names))
            os.makedirs(place)
            for file in rng.sample(names, rng.randint(1, 3)):
                content = rng.choice(images[: 1 if rng.random() < 0.7 else None])
                if rng.random() < 0.2:
                    content = rng.choice([mutate_bytes(rng, content), rng.randbytes(50), b""])
                with open(os.path.join(place, file), "wb") as out:
                    out.write(content)
            if rng.random() < 0.05:
                target = rng.choice([b".", b"nowhere", root, b"/dev/zero"])
                os.symlink(target, os.path.join(place, b"link.png"))
            if rng.random() < 0.03:
                os.mkfifo(os.path.join(place, b"pipe.png"))
        path = os.fsdecode(root)
        if rng.random() < 0.3:
            shown, _ = folders.read_unlabelled([path])
            "".join(shown).encode()
            return
        dataset = dataset_from_arrays(folders.read_folder(path), "folder:images")
        "".join(dataset.class_names).encode()

    return one


KINDS = {
    "overrides": overrides, "report": report, "config": config, "metrics": metrics,
    "predictions": predictions, "draws": draws, "npz": npz, "folder": folder,
}  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_of_every_kind_end_well(kind, share, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_all(kind, int(COUNTS[kind] * share), KINDS[kind](tmp_path, runs))
