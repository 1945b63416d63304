"""A workdir that is copied stays whole, and an export says which run it is of."""

import shutil

import jax
import pytest
from conftest import small_config
from run_parts import identity_of

import ensemble


@pytest.fixture
def run(blobs_run, tmp_path):
    """A copy of `blobs_run`, to be changed."""
    return shutil.copytree(blobs_run, tmp_path / "run")


@pytest.mark.check
def test_a_workdir_that_is_copied_stays_whole(run, blobs):
    before = identity_of(run)
    longer = small_config()
    longer["num_epochs"] += 1
    ensemble.train(longer, data=blobs, workdir=str(run), show_progress=False)
    assert ensemble.load(run).identity == identity_of(run) == before


def test_an_export_says_which_run_it_is_of(blobs_run):
    from ensemble.export import export

    model = jax.export.deserialize(bytearray(export(ensemble.load(blobs_run))))
    identity = identity_of(blobs_run)
    assert model.fun_name == f"run_{identity}_jax_{jax.__version__}"
