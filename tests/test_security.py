"""What a stranger may hand over: nothing of it runs, reaches elsewhere, or takes all memory."""

import ast
import contextlib
import html
import html.parser
import io
import json
import os
import re
import shutil
import tracemalloc
import zipfile
from typing import ClassVar

import numpy as np
import PIL.Image
import pytest
from conftest import ROOT, small_config
from etils import epath
from run_parts import config_of, held, of_classes, report_of, subject_of, workdir_of
from written_runs import write_run

import ensemble
from ensemble import UserError
from ensemble.commands import predict
from ensemble.draws.store import Draws
from ensemble.evaluation import derived
from ensemble.pictures import plot_style, tabular
from ensemble.run.writer import Writer
from ensemble.sources import folders, own_arrays
from ensemble.storage import checkpoint, memory, npz, schema
from ensemble.storage.predictions import StoredPredictions, read_predictions
from ensemble.storage.workdir import check_links
from ensemble.tasks.learning_data import described_dataset

SOURCES = [
    *ROOT.glob("*.py"),
    *(file for folder in ("configs", "ensemble", "models", "scripts")
      for file in (ROOT / folder).rglob("*.py")),
]  # fmt: skip


@pytest.fixture
def run(runs, tmp_path):
    """A finished run that may be spoilt."""
    shutil.copytree(runs / "sgd", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def trained(blobs_run, tmp_path):
    """A run that was really trained, which may be spoilt too."""
    return shutil.copytree(blobs_run, tmp_path / "trained")


# Nothing in it runs.


@pytest.mark.check
def test_no_source_unpickles():
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                modules = {name.split(".")[0] for name in names}
                assert not modules & {"pickle", "marshal", "shelve", "joblib", "dill", "yaml"}, file
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert ast.unparse(node.value) == "False", file
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in ("np.load", "numpy.load", "eval", "exec"), file


CLASSES = of_classes(["no", "yes"])


class Harm:
    """Says that it was unpickled."""

    harmed: ClassVar[list] = []

    def __reduce__(self):
        return Harm.harmed.append, ("unpickled",)


def write_npz(path, **arrays):
    content = io.BytesIO()
    np.savez(content, **arrays)
    path.write_bytes(content.getvalue())
    return path


def write_member(path, member, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("inputs.npy", member)
        archive.writestr("log_probs.npy", member)
        archive.writestr("range.npy", member)
    return path


def header(shape, descr="<f8"):
    content = io.BytesIO()
    fields = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(content, fields)
    return content.getvalue()


def read_everywhere(path):
    """Gives a file to each reader of npz files; all refuse it, in one line."""
    draws = path.parent / "draws"
    draws.mkdir(exist_ok=True)
    shutil.copy(path, draws / "000000000.npz")
    readers = [
        lambda: own_arrays.read_npz(str(path)),
        lambda: predict.read_inputs([str(path)]),
        lambda: read_predictions(epath.Path(path), {}, CLASSES),
        lambda: Draws(epath.Path(draws)).scalars(),
    ]
    for read in readers:
        with pytest.raises(UserError) as caught:
            read()
        assert "\n" not in str(caught.value)
        assert str(path.parent) in str(caught.value)
    test = StoredPredictions({}, np.zeros(1), np.arange(1))
    assert derived._read(epath.Path(path), "", 1, test, CLASSES) is None


def test_pickles_are_never_loaded(tmp_path):
    harm = np.array([Harm()], dtype=object)
    names = ("inputs", "labels", "log_probs", "members", "config", "source", "range", "numbers")
    read_everywhere(write_npz(tmp_path / "a.npz", **dict.fromkeys(names, harm)))
    assert Harm.harmed == []


def test_postscript_is_no_image(tmp_path, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("it ran a program"))
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("it ran a program"))
    PIL.Image.new("RGB", (4, 4)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png.*Pillow"):
        folders.read_unlabelled([str(tmp_path)])


# It takes no more memory than it may.


MEMBERS = {
    "too many": header((10**15,)),
    "more than all": header((2**62, 2**62)),
    "a negative number": header((-1, -8)) + bytes(64),
    "elements of no size": header((10**15,), "|V0"),
    "text of no size": header((10**15,), "|S0"),
    "deep": b"\x93NUMPY\x01\0\x08\x27" + b"(" * 9990,
    "no array": b"text",
    "more than there are": header((9,)) + bytes(64),
    "fewer than there are": header((7,)) + bytes(64),
    "fields": header((1,), [("a", "<f8")]) + bytes(8),
    "no characters": header((2,), "<U1") + b"\xff\xff\x7f\x00\x00\xd8\x00\x00",
}


@pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)
def test_what_arrays_claim_is_not_believed(tmp_path, member):
    tracemalloc.start()
    read_everywhere(write_member(tmp_path / "a.npz", member))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_an_archive_that_unpacks_to_more_than_was_allowed_is_not_unpacked(
    tmp_path, monkeypatch, method
):
    for module in (memory, npz, own_arrays):
        monkeypatch.setattr(module, "memory_bytes", lambda: 50_000_000)
    member = header((2, 1000, 1000)) + bytes(16_000_000)
    path = write_member(tmp_path / "bomb.npz", member, method)
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    read_everywhere(path)
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


def test_a_name_that_stands_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("inputs.npy", header((1,)) + bytes(8))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("inputs.npy", header((1,)) + bytes(8))
    read_everywhere(tmp_path / "a.npz")


def test_arrays_that_share_their_bytes_are_refused(tmp_path):
    """A small archive of many such could unpack to a huge one."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("inputs.npy", header((8,)) + bytes(64))
        other = zipfile.ZipInfo("labels.npy")
        first = archive.infolist()[0]
        for name in ("header_offset", "compress_size", "file_size", "CRC"):
            setattr(other, name, getattr(first, name))
        archive.filelist.append(other)
        archive.NameToInfo["labels.npy"] = other
    with pytest.raises(ValueError, match=r"labels\.npy"):
        npz.read_arrays(tmp_path / "a.npz", 10**6)


def test_images_that_memory_cannot_hold_are_not_decoded(tmp_path, monkeypatch):
    PIL.Image.new("RGB", (3000, 3000)).save(tmp_path / "a.png")
    monkeypatch.setattr(own_arrays, "memory_bytes", lambda: 50_000_000)
    with pytest.raises(UserError, match=r"3000x3000.*27,000,000 bytes"):
        folders.read_unlabelled([str(tmp_path)])


def test_a_header_of_millions_of_bytes_is_not_read(tmp_path, monkeypatch):
    path, length = tmp_path / "a.npz", 40_000_000
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        head = b"\x93NUMPY\x02\x00" + length.to_bytes(4, "little")
        archive.writestr("inputs.npy", head + b" " * length)
    tracemalloc.start()
    with pytest.raises(ValueError, match="40,000,000 bytes"):
        npz.read_shapes(path)
    assert tracemalloc.get_traced_memory()[1] < length / 4
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["report.json", "predictions/test.npz", "metrics.jsonl"])
def test_large_files_are_not_read(run, name):
    os.truncate(run / name, 10**13)  # It takes no place on the disk.
    with pytest.raises(UserError, match=rf"{name}.*10,000,000,000,000 bytes"):
        ensemble.evaluate(run, datasets=[])


@pytest.mark.parametrize("name", ["metrics.jsonl", "events/run.out.tfevents.1"])
def test_large_files_are_not_read_on_resumption(work, tmp_path, name):
    work.events.mkdir()
    path = tmp_path / name
    path.touch()
    os.link(path, tmp_path / "copy")  # Events that have another name are not cut, but copied.
    os.truncate(path, 10**13)
    with pytest.raises(UserError, match=rf"{name}.*10,000,000,000,000 bytes"):
        Writer(work, {path.name: 10**13})
    Writer(work, {}).close()
    assert work.metrics.stat().length == 0


def test_draws_that_memory_cannot_hold_are_not_read(tmp_path, monkeypatch):
    draws = Draws(epath.Path(tmp_path))
    draws.append(0, 9, {"log_density": np.zeros((1, 9))}, {"w": np.zeros((1, 9, 10**6))}, range(9))
    assert Draws(epath.Path(tmp_path)).end == 9
    monkeypatch.setattr("ensemble.draws.store.memory_bytes", lambda: 4 * 50_000_000)
    with pytest.raises(UserError, match=r"72,\d+,\d+ bytes.*50,000,000"):
        Draws(epath.Path(tmp_path)).scalars()


def test_more_members_than_a_table_of_pairs_holds_are_refused(run, monkeypatch):
    monkeypatch.setattr("ensemble.storage.predictions.max_bytes", lambda: 1000)
    monkeypatch.setattr("ensemble.storage.workdir.max_bytes", lambda: 10**9)
    monkeypatch.setattr(
        "ensemble.storage.predictions.read_arrays", lambda file, _: npz.read_arrays(file, 10**9)
    )
    with pytest.raises(UserError, match=r"\(4, 20, 3\).*evaluation"):
        ensemble.evaluate(run, datasets=[])


# It reads and writes nowhere else.


LINKS = [
    "config.json", "report.json", "metrics.jsonl", ".lock", ".writable", ".config.json.part",
    "events", "checkpoints", "checkpoints/5", "predictions", "predictions/test.npz",
    "predictions/.test.npz.part", "plots", "plots/members.png", "draws", "draws/000000000.npz",
    "events/run.out.tfevents.1", "evaluation", "evaluation/.report.html.part",
    "evaluation/predictions", "unreadable_checkpoints",
]  # fmt: skip


@pytest.mark.parametrize("to", ["a file", "a folder", "nothing"])
@pytest.mark.parametrize("name", LINKS)
def test_links_that_lead_out_are_refused_and_nothing_happens_there(run, tmp_path, name, to):
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "folder" / "mine").write_text("mine")
    (outside / "file").write_text("mine")
    target = {"a file": "file", "a folder": "folder", "nothing": "nothing"}[to]
    link = run / name
    link.parent.mkdir(exist_ok=True)
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(outside / target, link.parent))
    before = sorted(outside.rglob("*"))

    def resume():
        with held(run):
            pytest.fail("it was opened")

    for use in (resume, lambda: ensemble.load(run), lambda: ensemble.evaluate(run, datasets=[])):
        with pytest.raises(UserError, match=f"{re.escape(str(link))} is a link .*out of"):
            use()
    assert sorted(outside.rglob("*")) == before
    assert (outside / "file").read_text() == (outside / "folder" / "mine").read_text() == "mine"


@pytest.mark.parametrize("name", ["events/members_04-07", "checkpoints/5", "evaluation/x"])
def test_links_to_folders_whose_content_nobody_checks_are_refused(run, tmp_path, name):
    (tmp_path / "mine").write_text("mine")
    (run / "notes").mkdir()
    (run / "notes" / "run.out.tfevents.1").symlink_to(tmp_path / "mine")
    link = run / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(os.path.relpath(run / "notes", link.parent))

    def resume():
        with held(run):
            new_members = workdir_of(run).of_new_members(4, 7)
            new_members.path.mkdir()
            Writer(new_members, {"run.out.tfevents.1": 0}).close()

    with pytest.raises(UserError, match=f"{re.escape(str(link))} is a link .*folder"):
        resume()
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.check
def test_what_is_behind_hard_links_is_not_changed(trained, tmp_path, blobs):
    names = [
        *(".lock", ".writable", "metrics.jsonl", "config.json", "report.json"),
        *(".config.json.part", ".report.json.part", ".metrics.jsonl.part"),
        *("predictions/test.npz", "predictions/.test.npz.part", "plots/members.png"),
    ]
    before = {}
    for number, name in enumerate(names):
        outside, link = tmp_path / f"mine_{number}", trained / name
        before[outside] = link.read_bytes() if link.exists() else b"mine"
        outside.write_bytes(before[outside])
        link.unlink(missing_ok=True)
        os.link(outside, link)
    longer = small_config()
    longer["num_epochs"] += 1
    ensemble.train(longer, data=blobs, workdir=str(trained), show_progress=False)
    assert {outside: outside.read_bytes() for outside in before} == before


@pytest.mark.soak
def test_events_of_a_copy_by_hard_links_are_not_cut(trained, tmp_path, blobs):
    [events] = (trained / "events").glob("run.out.tfevents.*")
    with open(events, "ab") as file:
        file.write(b"what a killed run had written")
    os.link(events, tmp_path / "copy")
    before = events.read_bytes()
    longer = small_config()
    longer["num_epochs"] += 1
    ensemble.train(longer, data=blobs, workdir=str(trained), show_progress=False)
    assert events.stat().st_size < len(before)
    assert (tmp_path / "copy").read_bytes() == before


def test_a_file_of_a_checkpoint_that_is_huge_is_not_opened(trained, caplog):
    """TensorStore would abort the process."""
    newest = max((trained / "checkpoints").iterdir(), key=lambda path: int(path.name))
    shutil.copytree(newest, newest.parent / "999")
    os.truncate(newest.parent / "999" / "state" / "manifest.ocdbt", 2**40)
    assert ensemble.load(trained).description == "4 members"
    assert "Checkpoint 999" in caplog.text
    assert "manifest.ocdbt has 1,099,511,627,776 bytes" in caplog.text


def test_a_link_within_a_checkpoint_is_not_followed(trained, caplog):
    newest = max((trained / "checkpoints").iterdir(), key=lambda path: int(path.name))
    shutil.copytree(newest, newest.parent / "999")
    manifest = newest.parent / "999" / "state" / "manifest.ocdbt"
    manifest.rename(trained / "elsewhere")
    manifest.symlink_to(trained / "elsewhere")
    assert ensemble.load(trained).description == "4 members"
    assert "manifest.ocdbt is a link" in caplog.text


def test_what_is_only_too_large_for_this_machine_is_not_moved_aside(trained, blobs, monkeypatch):
    before = sorted(path.name for path in (trained / "checkpoints").iterdir())
    monkeypatch.setattr(checkpoint, "memory_bytes", lambda: 100)
    with pytest.raises(UserError, match=r"none of the \d "):
        ensemble.train(small_config(), data=blobs, workdir=str(trained), show_progress=False)
    assert sorted(path.name for path in (trained / "checkpoints").iterdir()) == before


def test_links_within_and_what_its_owner_put_beside_a_run_are_let_alone(run, tmp_path):
    (run / "predictions" / "test.npz").rename(run / "predictions" / "other.npz")
    (run / "predictions" / "test.npz").symlink_to("other.npz")
    (run / "notes").mkdir()
    (run / "notes" / "link").symlink_to(tmp_path)
    assert report_of(run)["num_members"] == 4
    (tmp_path / "link").symlink_to(run)  # A workdir may itself be reached by a link.
    assert config_of(tmp_path / "link") is not None


def test_a_run_that_goes_on_may_remove_what_is_looked_at(run, monkeypatch):
    entry = type("Gone", (), {"path": str(run / "gone"), "is_symlink": lambda self: False})()
    entry.stat = lambda: os.stat(run / "gone")
    entries = contextlib.nullcontext([entry])
    monkeypatch.setattr(os, "scandir", lambda _: entries)
    check_links(epath.Path(run))
    monkeypatch.undo()
    check_links(epath.Path(run / "gone"))


def test_links_in_a_folder_for_results_are_not_written_through(run, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".report.html.part").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match=r"report\.html.*is a link "):
        ensemble.evaluate(run, tmp_path / "out", [])
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("name", ["config.json", "report.json", "metrics.jsonl"])
def test_a_folder_where_a_file_should_be_is_refused(run, name):
    (run / name).unlink(missing_ok=True)
    (run / name).mkdir()
    with pytest.raises(UserError, match=f"{name} is a folder"):
        ensemble.load(run)


@pytest.mark.soak
def test_a_folder_where_a_result_goes_is_one_line(run):
    (run / "evaluation" / "report.html").mkdir(parents=True)
    with pytest.raises(UserError, match=r"report\.html.*directory"):
        ensemble.evaluate(run, datasets=[])


@pytest.mark.parametrize("name", ["checkpoints", "draws", "events", "evaluation", "plots"])
def test_a_file_where_a_folder_should_be_is_refused(run, name):
    shutil.rmtree(run / name, ignore_errors=True)
    (run / name).write_text("no folder")
    with pytest.raises(UserError, match=f"{name} is a file"):
        ensemble.load(run)


def test_pipes_are_not_waited_for(run, tmp_path):
    os.mkfifo(run / "metrics.jsonl.pipe")
    with pytest.raises(UserError, match=r"metrics\.jsonl\.pipe"):
        ensemble.evaluate(run, datasets=[])
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png "):
        folders.read_unlabelled([str(tmp_path)])


@pytest.mark.parametrize("path", ["~nobody_at_all/x", "a" * 5000, "x\0y", "loop/x", "x://y"])
def test_what_is_no_path_is_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", "loop")
    for use in (
        ensemble.load,
        ensemble.evaluate,
        own_arrays.read_npz,
        folders.read_folder,
        lambda path: predict.read_inputs([path]),
    ):
        with pytest.raises(UserError):
            use(path)


# What it says is not believed, and shown as it is.


def places(value, path=()):
    """The paths to all entries of a nested document."""
    if path:
        yield path
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, one in value.items() if isinstance(value, dict) else ():
        yield from places(one, (*path, key))


WRONG = (None, -1, 10**400, 0.5, "x", [], {}, [[1]], True)


@pytest.mark.soak
def test_entries_of_every_wrong_type_end_in_one_line_or_do_no_harm(runs, tmp_path):
    shutil.copytree(runs / "hmc", tmp_path / "run")
    path = tmp_path / "run" / "report.json"
    report, lines = json.loads(path.read_text()), []
    for number, (*way, last) in enumerate(places(report)):
        for wrong in (WRONG[number % len(WRONG)], WRONG[(number + 4) % len(WRONG)], "delete"):
            document = json.loads(json.dumps(report))
            place = document
            for key in way:
                place = place[key]
            if wrong == "delete":
                del place[last]
            else:
                place[last] = wrong
            path.write_text(json.dumps(document))
            try:
                subject = subject_of(tmp_path / "run")
                described_dataset(subject.description)
                assert subject.test is not None
                assert subject.failed_members is not None
            except UserError as error:
                lines.append(str(error))
    assert len(lines) > 100
    assert all("\n" not in line and len(line) < 1000 for line in lines)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"7", b"null", b"\xff", b"[" * 10**5, b'{"a":' * 10**5, b'{"format": NaN}',
     b'{"format": 1, "config": ' + b"9" * 10**5 + b"}", b'{"format": 1, "config": 1e999}',
     b'{"format": 1, "config": {"a\\u001b[2J": 1}}', b'{"format": "\\n", "config": {}}',
     b'{"format": 1, "config": {"model": "\\ud800"}}'],
)  # fmt: skip
@pytest.mark.parametrize("name", ["config.json", "report.json"])
def test_json_that_is_none_of_ours_is_one_line(run, name, content):
    (run / name).write_bytes(content)
    with pytest.raises(UserError, match=name) as caught:
        config_of(run)
    assert str(caught.value).isprintable()


def test_what_a_checkpoint_says_is_checked(run):
    report = json.loads((run / "report.json").read_text())
    meta = {
        "identity": "0" * 32,
        "notes": [],
        "config": report["config"],
        "dataset": report["dataset"],
        "counters": {"step": 10, "num_members": 4},
        "sizes": {"metrics.jsonl": 7},
        "clock": {"seconds_before": 0.5, "seconds_to_first_step": None},
    }
    assert schema.checked_meta(meta) == meta
    for wrong in (
        {"counters": {"step": 10}},
        {"counters": {"step": "10", "num_members": 4}},
        {"sizes": {"metrics.jsonl": -1}},
        {"clock": {"seconds_before": "x"}},
        {"config": {"seed": "x"}},
        {"dataset": {**meta["dataset"], "input_shape": [10**6, 10**6]}},
    ):
        with pytest.raises(ValueError, match=r"must|no |larger|wrong type"):
            schema.checked_meta({**meta, **wrong})


HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"'><svg onload=alert(1)>",
    "</title></style><iframe src=//evil>", "]]><!--", "{{7*7}}{% for %}", "javascript:alert(1)",
    "&lt;b&gt;", "url(#x)", "$\\frac{1}{2$", "\x1b[2J\x07", "a\nb", "\u202eevil", "#333333",
]  # fmt: skip


class Page(html.parser.HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs


@pytest.mark.check
def test_the_report_escapes_all_that_it_shows(tmp_path):
    hostile = tmp_path / HOSTILE[1]
    entries = {"num_members": 5, "failed_members": {"4": HOSTILE[0]}}
    config = {"num_epochs": 1, "model": HOSTILE[2], "data_dir": HOSTILE[0], "dataset": HOSTILE[3]}
    write_run(hostile, config, HOSTILE, name=f"npz:{HOSTILE[1]}", **entries)
    ensemble.evaluate(hostile, tmp_path / "out", [], compare=[hostile])
    text = (tmp_path / "out" / "report.html").read_text()
    page = Page(text)
    assert not page.tags & {"script", "iframe", "img", "object", "embed", "form", "base"}
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name.endswith(("href", "src")):
            assert value.startswith(("#", "data:")), value
    for name in HOSTILE[:4]:
        assert name not in text
    for name in (*HOSTILE[:4], "{{7*7}}{% for %}"):
        assert name in html.unescape(text)


@pytest.mark.soak
def test_the_report_shows_characters_that_nobody_sees(tmp_path):
    write_run(tmp_path / "run", {"num_epochs": 1}, ["\u202eevil", "\x1b[2J", "c"], name="\u200bx")
    ensemble.evaluate(tmp_path / "run", tmp_path / "out", [])
    text = (tmp_path / "out" / "report.html").read_text()
    assert not set("\u202e\u200b\x1b") & set(text)
    assert "\\u202eevil" in text


def test_a_long_name_does_not_fill_the_table():
    table = tabular.aligned([[("input", "x" * 20_000), ("class", "a")]])
    assert max(map(len, table.splitlines())) < 100


def test_a_key_that_stands_twice_is_refused(run):
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace("{", '{"format": 7, ', 1))
    with pytest.raises(UserError, match=r"config\.json.*'format' twice"):
        ensemble.load(run)


def test_a_warning_of_a_picture_quotes_no_escape():
    figure = plot_style.new_figure("a \x1b[2J b", 2, 2)
    with pytest.warns(UserWarning, match=r"Glyph 27 \(.*\) missing") as told:
        plot_style.figure_to_array(figure)
    assert all(str(one.message).isprintable() for one in told)


def test_names_that_would_move_the_cursor_are_shown_as_text():
    classes = of_classes(["\x1b[2J", "\u202egnp"])
    log_probs = np.log(np.array([[[0.7, 0.3]]], np.float32))
    cells = classes.cells(classes.prediction({"log_probs": log_probs}, None), 0)
    table = tabular.aligned([[("input", "\x1b]0;evil\x07"), *cells]])
    assert table.replace("\n", "").isprintable()


# What is said of it.


def test_tensorboard_is_suggested_for_this_machine_only():
    files = [*SOURCES, ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    said = re.findall(r"\btensorboard --logdir.*", "\n".join(file.read_text() for file in files))
    assert len(said) >= 2
    assert [line for line in said if "--host=localhost" not in line] == []


@pytest.mark.parametrize("page", ["README.md", "docs/configuration.md", "docs/your_network.md"])
def test_the_pages_say_that_config_files_are_programs(page):
    text = " ".join((ROOT / page).read_text().split())
    assert re.search(r"is a Python program.{,10} run only (your own|config files)", text)
