"""The data of a workdir: found again, also as they were split before."""

import numpy as np
import pytest
from conftest import make_blobs, small_config
from programs import run_here
from written_runs import write_run

import ensemble
from ensemble import UserError
from ensemble.evaluation.subject import Subject
from ensemble.sources import copies, load_dataset, prepare_dataset


@pytest.fixture
def before(monkeypatch, tmp_path):
    """A run of before exact copies were kept in one split, on blobs that have such, and those."""
    blobs = make_blobs()
    blobs = {key: np.concatenate([value, value[:40]]) for key, value in blobs.items()}
    with monkeypatch.context() as patch:
        patch.setattr(copies, "keep_together", lambda parts, *_: parts)
        config = small_config(num_epochs=1, ensemble_size=2)
        ensemble.train(config, blobs, str(tmp_path / "run"), show_progress=False)
    return config, blobs, str(tmp_path / "run")


@pytest.mark.check
def test_a_run_is_evaluated_as_it_was_split(before, caplog):
    config, blobs, workdir = before
    dataset = Subject(workdir, data=blobs).dataset
    assert dataset.fingerprint == Subject(workdir).description["fingerprint"]
    assert "is of before exact copies were kept in one split" in caplog.text
    with pytest.raises(UserError, match="exact copies"):
        ensemble.train({**config, "num_epochs": 2}, blobs, workdir, show_progress=False)
    changed = blobs | {"inputs": blobs["inputs"] + 1}
    with pytest.raises(UserError, match="arrays"):
        _ = Subject(workdir, data=changed).dataset


@pytest.mark.parametrize("name", ["mnist", "tfds:huge", "tfds:../huge"])
def test_no_set_is_prepared_that_a_workdir_names(tmp_path, monkeypatch, name):
    def prepare(*_):
        pytest.fail("it was prepared")

    monkeypatch.setattr(prepare_dataset, "prepare_in_child", prepare)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))
    write_run(tmp_path / "run", {"num_epochs": 1, "data_dir": str(tmp_path / "theirs")}, name=name)
    for data_dir in (None, str(tmp_path / "mine")):
        subject = Subject(str(tmp_path / "run"), data_dir)
        assert subject.dataset is None
        line = "is no name of a set" if ".." in name else f"{name} is not on the disk"
        assert line in subject.why_no_data
    assert len(subject.test.targets) == 20  # All the rest is evaluated.


def test_of_a_bucket_that_a_workdir_names_only_a_copy_is_used(tmp_path, monkeypatch, bucket):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    np.savez(tmp_path / "all.npz", inputs=np.zeros((60, 6)), labels=np.arange(60) % 3)
    place, run = "gs://bucket/data/r", str(tmp_path / "run")
    assert run_here("ensemble.__main__", "convert", tmp_path / "all.npz", place).returncode == 0
    write_run(run, {"num_epochs": 1}, name=f"records:{place}")
    subject = Subject(run)
    assert subject.dataset is None
    assert f"records:{place} " in subject.why_no_data
    assert not (tmp_path / "cache").exists()
    load_dataset(f"records:{place}/")  # As a run of the user's own does.
    with pytest.raises(UserError, match="other data than records:gs"):
        _ = Subject(run).dataset
