"""Paths in flags: local, of a store, or refused with the flag's name."""

import pathlib
import subprocess
import sys

import pytest
from conftest import ROOT

from ensemble import InputError
from ensemble.storage.files import fresh_file, user_path


def test_paths_are_expanded_and_need_not_exist(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pathlib.Path(user_path("~/new/file", "--out")) == tmp_path / "new" / "file"
    monkeypatch.chdir(tmp_path)
    assert pathlib.Path(user_path("new/file", "--out")) == tmp_path / "new" / "file"


@pytest.mark.check
@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("x://y/z", r"--out=x://y/z cannot be used: no such kind of store; write a local path in"),
        (
            "caf\udce9",
            r"--out='caf\\udce9' cannot be used: 'utf-8' codec .*; write a local",
        ),
        ("~no_such_user/x", r"--out=~no_such_user/x cannot be used: there is no such user; write"),
    ],
)
def test_what_is_no_path_is_one_line(path, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=line):
        user_path(path, "--out")
    done = subprocess.run(
        [sys.executable, ROOT / "evaluate.py", f"--workdir={tmp_path}", f"--out={path}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("evaluate.py: --out=")
    assert list(tmp_path.iterdir()) == []


def test_a_store_whose_package_is_missing_is_one_line():
    code = (
        "import sys; sys.modules['gcsfs'] = None\n"
        "from ensemble.storage.files import user_path; user_path('gs://bucket/x', '--out')"
    )
    done = subprocess.run(  # Another test may have put a store of its own there.
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert "InputError: --out=gs://bucket/x cannot be used: " in last
    assert "gcsfs" in last


@pytest.mark.parametrize("name", ["nobody/out", "bucket/some/where", "bucket/new/", "bucket"])
def test_what_is_no_file_in_a_bucket_is_refused(bucket, name):
    folder = bucket.path.parent / "some" / "where"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file").write_text("")
    fresh_file("gs://bucket/new/file", "--out")
    with pytest.raises(InputError, match=rf"--out=gs://{name} must name a file in a bucket"):
        fresh_file(f"gs://{name}", "--out")
