"""Preparing TFDS sets: what happens without a network, without TensorFlow, and with both."""

import http.server
import importlib.util
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import tfds_sets

from ensemble import UserError
from ensemble.entries import SourceEntry
from ensemble.sources import catalogue, prepare_dataset, tfds_records

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="TensorFlow is not installed (requirements-prepare.txt): the conversion was NOT tested",
)


@pytest.fixture
def no_network(monkeypatch):
    """Every request goes to a proxy that does not exist."""
    for scheme in ("http", "https"):
        for variable in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY"):
            monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def direct(monkeypatch):
    """Requests to this machine go past any proxy."""
    monkeypatch.setenv("no_proxy", "*")


def _tfrecord_only(data_dir):
    """A set whose shards are (empty) TFRecord files."""
    directory = tfds_sets.write_set(data_dir, "mnist", tfds_sets.random_splits())
    for shard in directory.glob("*array_record*"):
        shard.rename(directory / shard.name.replace("array_record", "tfrecord"))
    return directory


@pytest.mark.check
@pytest.mark.usefixtures("no_network")
def test_any_set_is_asked_for_alike(tmp_path, tmp_path_factory, monkeypatch):
    """And no name leads out of the folder, or to code that others have put on the net or there."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "numpy.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(elsewhere)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    copy = f"copy DIR/emnist/letters to {tmp_path / 'emnist/letters'}"
    with pytest.raises(UserError, match=f"catalog/emnist cannot be reached.*{copy}"):
        catalogue.load_dataset("tfds:emnist/letters", str(tmp_path))
    for name in ("../x", "a/b/c", "huggingface:mnist", "a/..", "/a", "a/", "a b", "a/1.0.0"):
        with pytest.raises(UserError, match="is no name of a set in TFDS"):
            catalogue.load_dataset(f"tfds:{name}", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.check
@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", ["mnist", "kmnist"])  # https and http
def test_without_a_network_one_line_says_what_to_do(tmp_path, name):
    start = time.monotonic()
    with pytest.raises(UserError) as error:
        catalogue.load_dataset(name, str(tmp_path))
    assert time.monotonic() - start < 15

    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"{name} is not in {tmp_path}")
    assert f"python -m ensemble.sources.prepare_dataset {name} --data_dir=DIR" in message
    assert f"copy DIR/{name} to {tmp_path / name}" in message
    assert "configs/digits_ensemble.py needs no download" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_network")
def test_a_set_with_a_configuration_is_asked_for_alike(tmp_path):
    name = "glue/sst2"
    with pytest.raises(UserError, match=f"copy DIR/{name} to {tmp_path / name}; configs/digits"):
        prepare_dataset.prepare(name, tmp_path)


@pytest.mark.usefixtures("direct")
def test_a_server_that_never_answers_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr(prepare_dataset, "PROBE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        monkeypatch.setattr(prepare_dataset, "_entry", lambda name: SourceEntry("", page=url))
        with pytest.raises(UserError, match=r"timed out|no answer"):
            prepare_dataset.check_reachable("mnist", tmp_path)


def test_a_name_look_up_that_hangs_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr(prepare_dataset, "PROBE_SECONDS", -0.9)  # 0.1 s in all
    released = threading.Event()
    monkeypatch.setattr(prepare_dataset, "_unreachable_reason", lambda url: released.wait() or "")
    start = time.monotonic()
    with pytest.raises(UserError, match="cannot be reached \\(no answer\\)"):
        prepare_dataset.check_reachable("mnist", tmp_path)
    assert time.monotonic() - start < 5
    released.set()


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize(
    ("status", "reachable"), [(200, True), (404, True), (403, False), (503, False)]
)
def test_what_a_server_answers(monkeypatch, tmp_path, status, reachable):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request).start()
        url = f"http://127.0.0.1:{server.server_port}/file"
        monkeypatch.setattr(prepare_dataset, "_entry", lambda name: SourceEntry("", page=url))
        if reachable:
            prepare_dataset.check_reachable("mnist", tmp_path)
        else:
            with pytest.raises(UserError, match=f"HTTP Error {status}"):
                prepare_dataset.check_reachable("mnist", tmp_path)


def test_a_certificate_that_cannot_be_checked_is_an_answer(monkeypatch, tmp_path):
    def urlopen(*args, **kwargs):
        raise urllib.error.URLError(ssl.SSLCertVerificationError("self-signed"))

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    prepare_dataset.check_reachable("mnist", tmp_path)


def test_without_tensorflow_the_requirements_are_named(monkeypatch, tmp_path):
    directory = _tfrecord_only(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(UserError, match=r"pip install -r requirements-prepare.txt"):
        prepare_dataset.prepare("mnist", tmp_path)
    assert not list(directory.glob("*array_record*"))


@pytest.mark.usefixtures("no_network")
def test_a_prepared_set_is_left_alone(tmp_path):
    directory = tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits())
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    prepare_dataset.prepare("mnist", tmp_path)
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == before


def test_a_child_that_dies_is_reported(monkeypatch, tmp_path):
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, signal; print('half a line'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    monkeypatch.setattr(prepare_dataset, "COMMAND", (sys.executable, str(script)))
    with pytest.raises(UserError, match="ended with status -9; run `"):
        prepare_dataset.prepare_in_child("mnist", tmp_path)


def test_what_goes_wrong_in_the_child_is_one_line(monkeypatch, tmp_path):
    """The data directory is a file: TFDS is never reached, and the child has no network to ask."""
    data_dir = tmp_path / "a_file"
    data_dir.write_text("")
    monkeypatch.setattr(prepare_dataset, "check_reachable", lambda *args: None)
    monkeypatch.setattr(prepare_dataset, "check_tensorflow", lambda *args: None)
    monkeypatch.setattr(sys, "argv", ["prepare_dataset.py", "mnist", f"--data_dir={data_dir}"])
    with pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr("builtins.print", lines.append)
        assert prepare_dataset.main() == 2
    assert len(lines) == 1
    assert lines[0].startswith(f"preparing mnist in {data_dir} failed: FileExistsError")


def test_the_second_process_waits_for_the_first(tmp_path):
    came, entered = threading.Event(), threading.Event()

    def second():
        came.set()
        with prepare_dataset.locked(tmp_path / "lock"):
            entered.set()

    thread = threading.Thread(target=second)
    with prepare_dataset.locked(tmp_path / "lock"):
        thread.start()
        assert came.wait(10)
        assert not entered.wait(0.2)
    assert entered.wait(10)
    thread.join()


@needs_tensorflow
def test_a_tfrecord_set_is_converted_without_a_network(no_network, tmp_path):
    splits = tfds_sets.random_splits()
    directory = tfds_sets.write_set(tmp_path, "mnist", splits, num_shards=2)
    code = f"""
import pathlib, tensorflow as tf
from array_record.python.array_record_module import ArrayRecordReader
for shard in pathlib.Path({str(directory)!r}).glob("*array_record*"):
    with tf.io.TFRecordWriter(str(shard).replace("array_record", "tfrecord")) as writer:
        for record in ArrayRecordReader(str(shard)).read_all():
            writer.write(record)
    shard.unlink()
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert tfds_records.find_prepared("mnist", tmp_path) is None

    prepare_dataset.prepare_in_child("mnist", tmp_path)

    for split, given in splits.items():
        for found, array in zip(tfds_sets.read(directory, split), given, strict=True):
            np.testing.assert_array_equal(found, array)
    assert len(list(directory.glob("*.tfrecord-*"))) == 4
    assert not list(directory.glob("incomplete*"))
