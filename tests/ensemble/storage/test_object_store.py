"""A whole life of a run in a bucket: an emulator of Google Cloud Storage, real processes."""

import asyncio
import json
import re
import subprocess
import sys
import time

import fsspec
import gcsfs
import jax.export
import numpy as np
import pytest
from conftest import ROOT, make_blobs, started
from gcsfs.retry import HttpError
from object_store import emulated
from programs import run_here
from small_runs import result_of

import ensemble
from ensemble.errors import InputError, StorageError
from ensemble.storage import object_store

CONFIG = {
    "model": "logistic_regression",
    "augment.shift": 0,
    "lr_schedule": "constant",
    "ensemble_size": 2,
    "batch_size": 16,
    "num_epochs": 6,
    "log_every_steps": 3,
    "checkpoint_every_epochs": 1,
    "eval_every_epochs": 3,
    "num_devices": 2,
}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """Of train.py: small data, a small network."""
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    np.savez(path, **make_blobs())
    flags = [f"--config.{key}={value}" for key, value in CONFIG.items()]
    config = ROOT / "configs" / "digits_ensemble.py"
    return [f"--config={config}", f"--config.dataset=npz:{path}", *flags]


@pytest.fixture
def store(tmp_path):
    with emulated(tmp_path) as found:
        yield found


def program(name, *arguments):
    return [sys.executable, str(ROOT / name), *map(str, arguments)]


def run(store, command, status=0):
    done = subprocess.run(command, env=store.env, capture_output=True, text=True, timeout=400)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


def steps_of(store):
    """Of the checkpoints that are whole."""
    found = (
        re.match(r"run/checkpoints/(\d+)/commit_success.txt", name)
        for name in store.names("run/checkpoints/")
    )
    return sorted(int(match[1]) for match in found if match)


def wait_for_step(store, process, beyond=0):
    deadline = time.monotonic() + 300
    while not any(step > beyond for step in steps_of(store)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, store.names("")
        time.sleep(0.05)


def live(store, arguments, tmp_path, interrupted):
    """Trains, is interrupted, resumes, is evaluated and exported; all is as on a disk."""
    train = program("train.py", *arguments, "--workdir=gs://bucket/run")
    with started(train, env=store.env, stderr=subprocess.PIPE) as process:
        wait_for_step(store, process)
        interrupted(process)
    resumed = run(store, train)
    assert "Resuming gs://bucket/run " in resumed.stderr
    run(store, program("evaluate.py", "--workdir=gs://bucket/run", "--extra_datasets="))
    out = "--out=gs://bucket/run/model.bin"
    run(store, [sys.executable, "-m", "ensemble", "export", "--workdir=gs://bucket/run", out])
    store.download("run", tmp_path / "copy")
    run_here("train.py", *arguments, f"--workdir={tmp_path / 'local'}")
    assert result_of(tmp_path / "copy") == result_of(tmp_path / "local")  # To the bit.
    evaluation = json.loads((tmp_path / "copy/evaluation/report.json").read_text())
    assert evaluation["members"] == [0, 1]
    assert not list((tmp_path / "copy").rglob("*.part"))
    inputs = make_blobs()["inputs"]
    exported = jax.export.deserialize((tmp_path / "copy/model.bin").read_bytes()).call(inputs)
    expected = ensemble.load(str(tmp_path / "local"))(inputs)
    np.testing.assert_allclose(exported["probs"], expected.probs, atol=1e-6)


@pytest.fixture
def answers(monkeypatch):
    """What gcsfs is answered, one by one: errors are raised; and the bucket that asks."""
    found = []

    async def call(*_, **__):
        one = found.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr(gcsfs.GCSFileSystem, "_call", call)
    bucket = object_store.PatientBucket(token="anon", skip_instance_cache=True)
    return found, lambda: asyncio.run(bucket._call("GET", "b"))


def test_a_request_is_made_again_with_a_warning(answers, caplog):
    found, ask = answers
    away = HttpError({"code": 503, "message": "away"})
    found[:] = [away, TimeoutError(), "first", away, "second"]
    assert [ask(), ask()] == ["first", "second"]
    assert [record.getMessage()[:21] for record in caplog.records] == ["gs:// does not answer"] * 3


def test_large_files_are_sent_by_requests_that_are_made_again():
    assert object_store.PatientBucket.call.__wrapped__ is object_store.PatientBucket._call


def test_etils_and_fsspec_get_the_same_patient_store(bucket):
    for prefix in ("gcs", "gs"):  # As if nobody had used one yet.
        fsspec.register_implementation(prefix, gcsfs.GCSFileSystem, clobber=True)
    object_store.register()
    for prefix in ("gcs", "gs"):
        assert fsspec.get_filesystem_class(prefix) is object_store.PatientBucket


def test_what_another_try_would_not_mend_is_raised_at_once(answers, monkeypatch):
    found, ask = answers
    found[:] = [FileNotFoundError("no such bucket")]
    with pytest.raises(FileNotFoundError):
        ask()
    found[:] = [HttpError({"code": 401, "message": "Invalid Credentials"})]
    with pytest.raises(InputError, match=r"gs://.*credentials"):
        ask()
    monkeypatch.setattr(object_store, "PATIENCE_SECONDS", -1.0)
    found[:] = [HttpError({"code": 503, "message": "away"})]
    with pytest.raises(StorageError, match=" -1 s"):
        ask()


@pytest.mark.check
def test_a_life_in_a_bucket(store, arguments, tmp_path):
    store.failing = 0.01
    live(store, arguments, tmp_path, lambda process: process.kill())
    assert store.num_failed > 0


@pytest.mark.parametrize(
    ("name", "what"),
    [
        pytest.param("train.py", "nobody", marks=pytest.mark.check),
        pytest.param("evaluate.py", "forbidden", marks=pytest.mark.check),
    ],
)
def test_a_bucket_that_cannot_be_used_is_one_line(store, arguments, name, what):
    store.forbids = what == "forbidden"
    workdir = f"--workdir=gs://{'bucket' if store.forbids else 'nobody'}/run"
    flags = arguments if name == "train.py" else []
    done = run(store, program(name, *flags, workdir), 2)
    assert re.match(rf"{name}: (--workdir=)?gs://", done.stderr.splitlines()[-1])
