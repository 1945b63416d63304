"""BatchNorm's running statistics that are still far from those of batches are told in a note."""

import flax.linen as nn
import pytest
from conftest import small_config
from flax import nnx

import ensemble


class Normed(nn.Module):
    num_outputs: int
    momentum: float

    @nn.compact
    def __call__(self, x, train: bool):
        x = 0.02 * nn.Dense(16)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=self.momentum)(x)
        return nn.Dense(self.num_outputs)(nn.relu(x))


class NormedNNX(nnx.Module):
    def __init__(self, num_outputs, momentum, rngs):
        self.first = nnx.Linear(6, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=momentum, rngs=rngs)
        self.last = nnx.Linear(16, num_outputs, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.norm(0.02 * self.first(x))))


def normed_nnx(num_outputs, momentum):
    return ensemble.networks.from_nnx(lambda rngs: NormedNNX(num_outputs, momentum, rngs))


@pytest.mark.check
@pytest.mark.parametrize(
    ("kind", "momentum", "is_told"),
    [(Normed, 0.99, True), (Normed, 0.5, False), (normed_nnx, 0.99, True)],
)
def test_statistics_that_are_far_from_those_of_batches_are_told_once(
    blobs, tmp_path, kind, momentum, is_told
):
    config = small_config(
        model=lambda num_outputs: kind(num_outputs, momentum), num_epochs=8, ensemble_size=2
    )
    result = ensemble.train(config, data=blobs, workdir=str(tmp_path), show_progress=False)
    told = [line for line in result.report["notes"] if "Kept statistics" in line]
    assert len(told) == is_told
    if is_told:
        assert "(batch_stats)" in told[0] or "(BatchStat)" in told[0]
        assert "Lower the momentum" in told[0]
        again = ensemble.train(config, data=blobs, workdir=str(tmp_path), show_progress=False)
        assert again.report["notes"] == result.report["notes"]
