"""Draws that somebody has made: sound in themselves, and not of their run."""

import shutil

import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from run_parts import draws_of, identity_of

import ensemble
from ensemble import UserError

WATCHES = {
    "dataset": "watches:20x10",
    "model": "matrix_factorisation",
    "method": "hmc",
    "num_factors": 2,
    "num_chains": 1,
    "num_devices": 1,
    "init_from": "prior",
    "prior": "normal(1)",
    "log_every_steps": 4,
    "sampler.num_warmup": 2,
    "sampler.num_samples": 4,
    "sampler.num_leapfrog_steps": 2,
    "sampler.thin": 2,
}


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    path = tmp_path_factory.mktemp("sampled") / "run"
    ensemble.train(WATCHES, workdir=str(path))
    return path


def change_draws(path, source, change):
    """Copies a run of a factorisation, and changes the positions of its draws."""
    shutil.copytree(source, path)
    draws = draws_of(path)
    positions, numbers = draws.positions()
    scalars, end = draws.scalars(), draws.end
    shutil.rmtree(path / "draws")
    flat = change(flatten_dict(positions, sep="/"))
    forged = draws_of(path, identity_of(path))
    forged.append(0, end, scalars, unflatten_dict(flat, sep="/"), numbers)
    return path


FORGED_DRAWS = {
    "fewer users": lambda flat: (
        flat | {name: flat[name][:, :, :3] for name in ("user_bias", "user_embeddings")}
    ),
    "more movies": lambda flat: (
        flat
        | {name: np.repeat(flat[name], 2, axis=2) for name in ("movie_bias", "movie_embeddings")}
    ),
    "other factors": lambda flat: flat | {"user_embeddings": flat["user_embeddings"][..., :1]},
    "no biases": lambda flat: {name: leaf for name, leaf in flat.items() if "bias" not in name},
    "no numbers": lambda flat: {name: leaf * np.nan for name, leaf in flat.items()},
}


@pytest.mark.check
@pytest.mark.parametrize("change", FORGED_DRAWS.values(), ids=FORGED_DRAWS)
def test_nothing_is_recommended_by_forged_draws(sampled, tmp_path, change):
    path = change_draws(tmp_path / "forged", sampled, change)
    with pytest.raises(
        UserError, match=r"other parameters than config\.model=|draws predict NaN"
    ) as caught:
        ensemble.recommend(path, "u7")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.check
def test_honest_draws_recommend_after_the_same_detour(sampled, tmp_path):
    path = change_draws(tmp_path / "honest", sampled, lambda flat: flat)
    assert ensemble.recommend(path, "u7") == ensemble.recommend(sampled, "u7")
