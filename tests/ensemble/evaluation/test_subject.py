"""The data of a workdir: found again, also as they were split before."""

import numpy as np
import pytest
from conftest import make_blobs, small_config

import ensemble
from ensemble import UserError
from ensemble.evaluation.subject import Subject
from ensemble.sources import splitting


@pytest.fixture
def before(monkeypatch, tmp_path):
    """A run of before exact copies were kept in one split, on blobs that have such, and those."""
    blobs = make_blobs()
    blobs = {key: np.concatenate([value, value[:40]]) for key, value in blobs.items()}
    with monkeypatch.context() as patch:
        patch.setattr(splitting.copies, "keep_together", lambda parts, *_: parts)
        config = small_config(num_epochs=1, ensemble_size=2)
        ensemble.train(config, blobs, str(tmp_path / "run"), show_progress=False)
    return config, blobs, str(tmp_path / "run")


def test_a_run_is_evaluated_as_it_was_split(before, caplog):
    config, blobs, workdir = before
    dataset = Subject(workdir, data=blobs).dataset
    assert dataset.fingerprint == Subject(workdir).description["fingerprint"]
    assert "is of before exact copies were kept in one split" in caplog.text
    with pytest.raises(
        UserError, match="a run from before exact copies were kept in one split can"
    ):
        ensemble.train({**config, "num_epochs": 2}, blobs, workdir, show_progress=False)
    changed = blobs | {"inputs": blobs["inputs"] + 1}
    with pytest.raises(UserError, match="other data than the arrays that were given"):
        _ = Subject(workdir, data=changed).dataset
