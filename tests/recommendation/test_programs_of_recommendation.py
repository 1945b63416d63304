"""The programs of this application, as a user has them."""

import pytest
from public.test_commands import run, train


@pytest.mark.soak
def test_who_watches_what_is_learned_and_recommended(tmp_path):
    few = [
        "dataset=watches:50x30",
        "num_factors=2",
        "sampler.num_warmup=20",
        "sampler.num_samples=20",
    ]
    train("movielens_hmc.py", tmp_path, *few)
    done = run("recommend.py", f"--workdir={tmp_path}", "--user=u7", "--top=5")
    assert len(done.stdout.splitlines()) == 2 + 2 + 5
