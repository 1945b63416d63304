"""What a stranger may hand over: nothing of it runs, reaches elsewhere, or takes all memory."""

import contextlib
import html
import html.parser
import io
import json
import os
import shutil
import tracemalloc
import zipfile
from typing import ClassVar

import names
import numpy as np
import PIL.Image
import pytest
from runs import classes
from small import files_in, refused, refused_command, train

CLASSES = ("a", "b", "c")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The workdir of a finished run; only to be read."""
    workdir = tmp_path_factory.mktemp("strangers") / "run"
    train({}, {**classes(), "class_names": list(CLASSES)}, workdir)
    return workdir


@pytest.fixture
def run(trained, tmp_path):
    """A finished run that may be spoilt."""
    return shutil.copytree(trained, tmp_path / "run")


def evaluate(run, out=None, **options):
    return names.evaluate(run, out, datasets=(), show_progress=False, **options)


# Nothing in it runs.


class Harm:
    """Says that it was unpickled."""

    harmed: ClassVar[list] = []

    def __reduce__(self):
        return Harm.harmed.append, ("unpickled",)


def write_npz(path, **arrays):
    content = io.BytesIO()  # Else NumPy appends `.npz`.
    np.savez(content, **arrays)
    path.write_bytes(content.getvalue())
    return path


def learn_npz(path):
    train({"dataset": f"npz:{path}"}, None)


NPZ_READERS = {
    "data": lambda path, _: refused(lambda: learn_npz(path), str(path)),
    "weights": lambda path, _: refused(
        lambda: train({"init_from": str(path)}, classes()), str(path)
    ),
    "predict": lambda path, run: refused_command(
        "predict", [f"--workdir={run}", path], (str(path),)
    ),
}


@pytest.mark.parametrize("reader", NPZ_READERS)
def test_pickles_are_never_loaded(reader, trained, tmp_path):
    harm = np.array([Harm()], dtype=object)
    NPZ_READERS[reader](write_npz(tmp_path / "a.npz", inputs=harm, labels=harm), trained)
    assert Harm.harmed == []


def test_pickles_in_a_workdir_are_never_loaded(run):
    harm = np.array([Harm()], dtype=object)
    for path in run.rglob("*.npz"):
        write_npz(path, **dict.fromkeys(("log_probs", "targets", "members"), harm))
        names.enter(run, path)
    refused(lambda: evaluate(run), str(run))
    assert Harm.harmed == []


CODE = ("mine.py:Net", "mine:Net", "numpyro:mine.py:net", "os:system")


@pytest.mark.parametrize("value", CODE)
@pytest.mark.parametrize("key", ["model", "method", "likelihood", "augment.function"])
def test_a_workdir_names_code_that_does_not_run(key, value, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text("open('ran', 'w').close()\nNet = net = None\n")
    for name in ("config.json", "results.json"):
        path = names.file(run, name)
        document = json.loads(path.read_text())
        place = document["config"]
        last = key
        if key not in place:  # In blocks.
            block, last = key.split(".")
            place = place[block]
        place[last] = value
        path.write_text(json.dumps(document))
        names.enter(run, path)
    for use in (names.load, evaluate):
        if key == "augment.function":  # Which only training needs.
            with contextlib.suppress(names.InputError):
                use(run)
        else:
            refused(lambda use=use: use(run))
    assert not (tmp_path / "ran").exists()


def test_postscript_is_no_image(tmp_path, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("it ran a program"))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        PIL.Image.new("RGB", (4, 4)).save(tmp_path / name / "a.eps")
        (tmp_path / name / "a.eps").rename(tmp_path / name / "a.png")
    refused(lambda: train({"dataset": f"folder:{tmp_path}"}, None), "a.png", "not an image")


# It takes no more memory than it may.


def header(shape, descr="<f8"):
    content = io.BytesIO()
    fields = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(content, fields)
    return content.getvalue()


ARRAYS = {
    "too many": header((10**15,)),
    "more than all": header((2**62, 2**62)),
    "a negative number": header((-1, -8)) + bytes(64),
    "elements of no size": header((10**15,), "|V0"),
    "deep": b"\x93NUMPY\x01\0\x08\x27" + b"(" * 9990,
    "no array": b"text",
    "more than there are": header((9,)) + bytes(64),
    "fields": header((1,), [("a", "<f8")]) + bytes(8),
    "no characters": header((2,), "<U1") + b"\xff\xff\x7f\x00\x00\xd8\x00\x00",
}


@pytest.mark.parametrize("content", ARRAYS.values(), ids=ARRAYS)
def test_what_arrays_claim_is_not_believed(content, tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("inputs", "labels"):
            archive.writestr(f"{name}.npy", content)
    tracemalloc.start()
    refused(lambda: learn_npz(path), str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


@pytest.mark.parametrize("name", ["results.json", "predictions/test.npz"])
def test_large_files_are_not_read(name, run):
    os.truncate(names.file(run, name), 10**13)  # It takes no place on the disk.
    refused(lambda: evaluate(run), names.file(run, name).name, "damaged")


def test_a_huge_file_of_a_checkpoint_is_not_opened(run, caplog):
    newest = max((run / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    shutil.copytree(newest, newest.parent / "999")
    os.truncate(newest.parent / "999" / "state" / "manifest.ocdbt", 2**40)
    assert len(names.members(names.load(run))) == 2
    assert "999" in caplog.text


# It writes nowhere else.


def test_results_are_not_written_through_a_link(run, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.html").symlink_to(tmp_path / "mine")
    with contextlib.suppress(names.InputError):  # Or the link is replaced.
        evaluate(run, tmp_path / "out")
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("name", ["a.npz", "../../a", "/etc/a", "..\\a"])
def test_an_archive_writes_no_file_where_it_is_read(name, tmp_path):
    path = tmp_path / "in" / "in" / "x.npz"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.npy", header((1,)) + bytes(8))
    before = files_in(tmp_path)
    refused(lambda: learn_npz(path), str(path))
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("path", ["~nobody_at_all/x", "a" * 5000, "x\0y", "loop/x", "x://y"])
def test_what_is_no_path_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", "loop")
    for use in (names.load, names.evaluate, learn_npz):
        refused(lambda use=use: use(path))


# What it says is not believed, and shown as it is.


FORGED = {
    "empty": b"",
    "a list": b"[]",
    "a number": b"7",
    "no text": b"\xff",
    "deep": b"[" * 10**5,
    "deeper": b'{"a":' * 10**5,
    "long": b'{"format": 2, "config": ' + b"9" * 10**5 + b"}",
    "infinite": b'{"format": 2, "config": 1e999}',
    "an escape": b'{"format": 2, "config": {"a\\u001b[2J": 1}}',
    "half a character": b'{"format": 2, "config": {"model": "\\ud800"}}',
    "another format": b'{"format": 99, "config": {}}',
}


@pytest.mark.parametrize("name", ["config.json", "results.json"])
@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED)
def test_json_that_is_none_of_ours_is_one_line(content, name, run):
    names.file(run, name).write_bytes(content)
    refused(lambda: evaluate(run), names.file(run, name).name)


HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><svg onload=alert(1)>",
    "</title></style><iframe src=//evil>\x1b[2J\u202e{{7*7}}",
)


class Page(html.parser.HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags = set()
        self.attributes = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs


@pytest.mark.check
def test_the_report_escapes_all_that_it_shows(tmp_path):
    workdir = tmp_path / "<img src=x onerror=alert(1)>"
    train({}, {**classes(), "class_names": list(HOSTILE)}, workdir)
    evaluate(workdir, tmp_path / "out", compare=[workdir])
    text = (tmp_path / "out" / "report.html").read_text()
    page = Page(text)
    assert not page.tags & {"script", "iframe", "img", "object", "embed", "form", "base"}
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name.endswith(("href", "src")):
            assert value.startswith(("#", "data:")), value
    assert not set("\x1b\u202e") & set(text)
    for one in HOSTILE[:2]:
        assert one not in text
        assert one[:20] in html.unescape(text)  # Long names are shortened.
