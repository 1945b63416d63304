"""Data of models that float32 cannot tell apart."""

import numpy as np
import numpyro
import numpyro.distributions as dist

from ensemble.notes import collected
from ensemble.numpyro_models.numpyro_program import NumPyroProgram

SECONDS = 1.7e9 + np.sort(np.random.default_rng(0).uniform(0, 3600, 50))


def test_arguments_and_data_of_models_are_looked_at():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu, 1).expand([50]).to_event(1), obs=y)

    with collected() as lines:
        NumPyroProgram(model, (), {"y": SECONDS})
    assert [line.split(" holds")[0] for line in lines] == ["the argument y of the model"]
