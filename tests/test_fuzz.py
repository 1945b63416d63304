"""Whatever a stranger or a slip of the hand gives: every input ends in success or in one line.

Inputs are seeded: a failure names the kind and the number of its input. `make test` takes the first
of each kind, `make soak` all 100,000.
"""

import collections
import copy
import io
import json
import logging
import os
import random
import shutil
import sys
import traceback
import warnings
import zipfile

import numpy as np
import PIL.Image
import pytest
import scipy.special
from absl import flags
from conftest import ROOT, make_blobs
from etils import epath
from programs import as_new

import ensemble
from ensemble.config import default_config, differences, flatten
from ensemble.config_rules import validate
from ensemble.draws.store import Draws
from ensemble.errors import UserError
from ensemble.evaluation.page import drawable_records
from ensemble.evaluation.sentences import convergence
from ensemble.evaluation.subject import Subject
from ensemble.likelihoods.categorical import Categorical
from ensemble.likelihoods.classes import LOG_PROBS
from ensemble.sources import folders, own_arrays
from ensemble.sources.dataset import dataset_from_arrays
from ensemble.storage.files import write_json
from ensemble.storage.predictions import MemberPredictions, read_predictions, write_predictions
from ensemble.storage.workdir import Workdir
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

TEXTS = [
    "", " ", "0", "-1", "1", "nan", "inf", "-inf", "1e999", "9" * 30, "9" * 400, "9" * 5000, "0x10",
    "1_000", "None", "null", "True", "{}", "[]", "(1,)", "1,2", "'", '"', "\\", "%s%n", "{0}", "$x",
    "../../etc/passwd", "/dev/zero", "~", "~nobody_at_all/x", "gs://b/c", "x://y", "a" * 5000,
    "<script>alert(1)</script>", "\x1b[2J", "a\nb", "\r", "é", "\U0001f600", "\u202e", "\udcff",
    "npz:", "folder:", "watches:9x", "normal(1", "normal(-1)", "*=laplace(1e999)",
]  # fmt: skip
VALUES = [
    *TEXTS, None, True, False, 0, -1, 1, 3, 2**31, 2**53, 2**63, 10**400, 0.5, -1e308, float("nan"),
    float("inf"), [], {}, [[]], [0], [-1, -1], {"": None}, {"a": {"b": 1}}, [[1, 2], [3]],
]  # fmt: skip


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
            validate(flags.FLAGS.config)

    return one


def mutate_json(rng, document):
    """A document with some entries changed, then its text with some characters changed."""
    document = copy.deepcopy(document)
    for _ in range(rng.randint(0, 3)):
        place = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = rng.choice(keys)
            if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.3:
                break
            place = place[key]
        match rng.randint(0, 4):
            case 0:
                del place[key]
            case 1 if isinstance(place, dict):
                place[rng.choice(TEXTS)] = place.pop(key)
            case _:
                place[key] = copy.deepcopy(rng.choice(VALUES))
        if not document:
            break
    text = json.dumps(document)
    if rng.random() < 0.3:
        where = rng.randint(0, len(text))
        deep = ["[" * 5000, '{"a":' * 3000]
        inside = rng.choice(["NaN", "Infinity", "1e999", *deep, "\\ud800", "}"])
        text = text[:where] + inside + text[where + rng.randint(0, 3) :]
    content = text.encode()
    return mutate_bytes(rng, content) if rng.random() < 0.2 else content


def mutate_bytes(rng, content):
    """Bytes that are flipped, cut off, or put in."""
    content = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        where = rng.randrange(len(content) or 1)
        match rng.randint(0, 3):
            case 0:
                del content[where:]
            case 1:
                content[where:where] = rng.randbytes(rng.randint(1, 9))
            case _ if content:
                content[where % len(content)] ^= 1 << rng.randint(0, 7)
    return bytes(content)


def report(folder, runs):
    """report.json of a workdir that evaluate.py, predict.py and others are given."""
    documents = []
    for name in ("sgd", "hmc"):
        shutil.copytree(runs / name, folder / name)
        documents.append((folder / name, json.loads((folder / name / "report.json").read_text())))

    def one(rng):
        workdir, document = rng.choice(documents)
        (workdir / "report.json").write_bytes(mutate_json(rng, document))
        subject = Subject(str(workdir))
        described_dataset(subject.description)
        assert subject.test.arrays[LOG_PROBS].ndim == 3
        assert subject.calibration is None or subject.calibration.arrays[LOG_PROBS].ndim == 3
        assert isinstance(subject.failed_members, dict)
        if subject.report.get("posterior") is not None:
            convergence(subject.report["posterior"])
        if rng.random() < 0.01:  # It takes a second.
            ensemble.evaluate(workdir, folder / "out", [])

    return one


def config(folder, runs):
    """config.json of a workdir that train.py resumes."""
    document = json.loads((runs / "sgd" / "config.json").read_text())
    now = validate(document["config"]).to_dict()

    def one(rng):
        (folder / "config.json").write_bytes(mutate_json(rng, document))
        found = Workdir(folder).read_config()
        assert isinstance(differences(found, now), list)

    return one


def metrics(folder, runs):
    """metrics.jsonl, whose curves evaluate.py draws."""
    shutil.copytree(runs / "sgd", folder / "run")
    lines = (folder / "run" / "metrics.jsonl").read_bytes().splitlines()
    records = [json.loads(line) for line in lines]
    subject = Subject(str(folder / "run"))

    def one(rng):
        path = folder / "run" / "metrics.jsonl"
        path.write_bytes(b"\n".join(mutate_json(rng, record) for record in records))
        found = drawable_records(subject)
        if len(found) < len(records) / 2:
            raise UserError("most lines cannot be drawn")
        if rng.random() < 0.005:
            ensemble.pictures.curves.training_curves(found, subject.likelihood.curves())

    return one


def mutate_npz(rng, content):
    """An archive whose arrays or their headers are others, or whose bytes are."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, content)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    methods = [zipfile.ZIP_STORED] * 7 + [zipfile.ZIP_DEFLATED] * 2 + [zipfile.ZIP_BZIP2]
    method = rng.choice(methods)
    chosen = rng.choice(list(members))
    members[chosen] = mutate_member(rng, members[chosen])
    names = list(members)
    if rng.random() < 0.1:
        names.append(rng.choice(names))
    with zipfile.ZipFile(out, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of names twice.
        for name in names:
            archive.writestr(rng.choice(["", "../", "/"]) + name if rng.random() < 0.05 else name,
                             members[name])  # fmt: skip
    return out.getvalue()


def mutate_member(rng, content):
    """Other values, another array, or the same behind another header."""
    if rng.random() < 0.4:
        body = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            body[rng.randrange(128, len(body))] ^= 1 << rng.randint(0, 7)
        return bytes(body)
    if rng.random() < 0.5:
        kinds = ["<f4", ">f8", "<i8", "|O", "|V0", "<U3", "|S0", "<c16", "|b1", "<M8[s]"]
        descr = rng.choice(kinds)
        sizes = [-1, 0, 1, 2, 3, 20, 10**15, 2**62, 2**64]
        shape = tuple(rng.choice(sizes) for _ in range(rng.randint(0, 4)))
        header = f"{{'descr': '{descr}', 'fortran_order': {rng.choice([True, False])}, "
        header = (header + f"'shape': {shape}, }}").ljust(117) + "\n"
        return b"\x93NUMPY\x01\0v\0" + header.encode() + content[128:]
    array = rng.choice(
        [np.array([{}], object), np.full((4, 20, 3), np.nan), np.zeros((4, 20, 3)), np.array(7),
         np.full((4, 20, 3), -np.log(3)), np.full((4, 20, 3), 1e300), np.zeros((1, 1, 1)),
         np.arange(20) % 3, np.arange(4, dtype=np.uint64), np.array(["\ud800", "x"]), np.array(""),
         np.full((3000, 1, 2), -np.log(2), np.float32), np.ones((20, 0)), np.array([2**63 + 1] * 4)]
    )  # fmt: skip
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def predictions(folder, runs):
    """predictions/test.npz."""
    config = Workdir(runs / "sgd").read_config()
    content = (runs / "sgd" / "predictions" / "test.npz").read_bytes()
    path = epath.Path(folder / "test.npz")
    likelihood = Categorical(list("abc"))

    def one(rng):
        path.write_bytes(mutate_npz(rng, content))
        stored = read_predictions(path, config, likelihood)
        likelihood.summarise(stored.arrays, stored.targets)

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


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """What a finished ensemble and a finished posterior leave, without their checkpoints."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "sgd", {"num_epochs": 2})
    config = {"method": "hmc", "prior": "normal(1)", "num_chains": 4}
    posterior = {"num_samples": 8, "num_chains": 4, "rhat_max": 1.01, "ess_bulk_min": None}
    write_run(folder / "hmc", config, posterior=posterior)
    found = Draws(epath.Path(folder / "hmc" / "draws"))
    scalars = {name: np.zeros((4, 5)) for name in ("log_density", "accuracy")}
    found.append(0, 5, scalars, {"Dense": {"kernel": np.ones((4, 2, 6, 3))}}, [0, 3])
    return folder


def write_run(path, config, class_names=("a", "b", "c"), name="arrays", **entries):
    """Writes a finished run of four members on 20 test examples of vectors.

    It is as of an earlier version: no identity and no checksum keeps what is damaged from its
    readers.
    """
    work = Workdir(path)
    work.predictions.mkdir(parents=True)
    rng = np.random.default_rng(0)
    config = validate(config)
    write_json(work.config, {"format": 1, "config": config.to_dict()})
    for split in ("test", "calibration"):
        logits = rng.normal(size=(4, 20, len(class_names)))
        log_probs = (logits - scipy.special.logsumexp(logits, -1, keepdims=True)).astype(np.float32)
        labels = rng.integers(0, len(class_names), 20)
        write_predictions(
            work.predictions / f"{split}.npz",
            MemberPredictions({"log_probs": log_probs}),
            labels,
            range(4),
            config.to_dict(),
        )
    description = {
        "name": name,
        "num_classes": len(class_names),
        "class_names": list(class_names),
        "input_shape": [6],
        "dtype": "float32",
        "shift": [0.0] * 6,
        "scale": [1.0] * 6,
        "num_examples": {"train": 143, "validation": 20, "calibration": 20, "test": 20},
        "fingerprint": "d2e453514d9eb645",
        "test_fingerprint": "45af0818e0f29d8f",
    }
    record = {"step": 1, "epoch": 0.5, "train/member_00/loss": 0.7, "validation/ensemble/nll": None}
    work.metrics.write_text("".join(json.dumps({**record, "step": k}) + "\n" for k in range(5)))
    content = {
        "format": 1,
        "config": config.to_dict(),
        "dataset": description,
        "method": config.method,
        "num_members": 4,
        "live_members": [0, 1, 2, 3],
        "failed_members": {},
        **entries,
    }
    write_json(work.report, content)
    return work


@pytest.mark.soak
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_of_every_kind_end_well(kind, share, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_all(kind, int(COUNTS[kind] * share), KINDS[kind](tmp_path, runs))
