"""The keys of random walks, and what does not suit them."""

import pytest
from run_parts import validated
from small_runs import make_blobs
from walks.in_contracts import TASKS

from ensemble import UserError
from ensemble.config import flatten
from ensemble.run.loop import create_task
from ensemble.sources.data_forms import recognise

RUN = TASKS["density"]


def test_data_are_refused():
    with pytest.raises(UserError, match=r"data are not for .*'rwm'"):
        create_task(validated(RUN), recognise(make_blobs()))


def test_another_density_has_another_fingerprint():
    first, other = (
        create_task(validated({**RUN, "density": name}), None).describe()["fingerprint"]
        for name in (RUN["density"], "gaussian_mixture")
    )
    assert first != other


def test_a_walk_has_its_own_keys_only():
    found = flatten(validated({"method": "rwm"})).keys()
    assert {"seed", "density", "num_chains", "stop_at.rhat", "rwm.scale"} <= found
    others = ("sampler.", "model", "prior", "dataset", "data_dir", "learning_rate", "num_f", "mlp.")
    assert [key for key in found if key.startswith(others)] == []


def test_millions_of_chains_may_walk():
    assert validated({"method": "rwm", "num_chains": 2**21}).num_chains == 2**21


def test_keys_of_others_are_refused():
    with pytest.raises(UserError, match=r"config\.mlp\.widths='64'.*config\.model='mlp'"):
        validated({"method": "rwm", "mlp.widths": "64"})
    with pytest.raises(UserError) as error:
        validated({"method": "hmc", "rwm.scale": 2.0})
    assert (
        "config.rwm.scale=2.0 is for config.method='rwm', and this run has config.method='hmc': "
        "leave it out, or choose config.method='rwm'"
    ) in str(error.value)
