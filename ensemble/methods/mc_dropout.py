"""MC dropout: members that drop units where they predict, too.

Gal and Ghahramani, "Dropout as a Bayesian approximation" (2016), arXiv:1506.02142. Members are
trained as a deep ensemble. Each predicts in several passes, with units dropped by a mask of its own
that all examples share; the mean over passes is its prediction.
"""

import jax
from jax import random

from ensemble import pytrees
from ensemble.config import Config
from ensemble.errors import InputError
from ensemble.fitted import OWN, Fitted
from ensemble.likelihoods.predictive import Arrays
from ensemble.methods import training
from ensemble.methods.optimizers import create_descent
from ensemble.runtime import loading
from ensemble.runtime.algorithm import Stream
from ensemble.runtime.method import Method
from ensemble.tasks.supervised import Supervised


def predict_pass(task: Supervised, one, number, inputs: jax.Array) -> Arrays:
    """Predictions of a set for inputs [B, ...] in a pass: an `ensemble.fitted.Predict`."""
    rng_key = random.fold_in(random.wrap_key_data(one[OWN]), Stream.PASSES)
    variables = pytrees.without(one, OWN)
    return task.predict(variables, inputs, random.fold_in(rng_key, number))


class DropoutReport(training.DescentReport):
    """Report of members that predict in passes."""

    predict = staticmethod(predict_pass)


def create(config: Config, task: Supervised) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The network draws no noise where it predicts.
    """
    if why_not := task.why_no_noise():
        raise InputError(
            f"config.method='mc_dropout' predicts with noise, and config.model={config.model!r} "
            f"{why_not}; use layers nn.Dropout, set config.dropout above 0 where it is a key, or "
            "choose config.method='deep_ensemble'"
        )

    def parameters(now, state):
        return pytrees.at({**state.variables, OWN: random.key_data(now.key)}, None)

    def wrap(algorithm, devices, numbers):
        return algorithm._replace(parameters=parameters, passes=config.num_draws)

    return training.create(config, task, create_descent, wrap=wrap, report=DropoutReport)


def fitted(saved: loading.Saved) -> Fitted:
    """The members that are on disk, with their keys."""
    return loading.fitted(saved, predict=predict_pass, num_passes=saved.config["num_draws"])
