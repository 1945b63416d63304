"""The method `mc_dropout`: members that drop units where they predict, too.

Gal and Ghahramani, "Dropout as a Bayesian approximation" (2016), arXiv:1506.02142: members are
trained as by `sgd`. A member predicts in several passes, each with units dropped by a mask of its
own, which all examples share; the mean over passes is its prediction.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ensemble.batched_prediction import make_predict
from ensemble.draws.predictions import predict_in_passes
from ensemble.errors import UserError
from ensemble.fitted import OWN, Fitted, OnDisk, in_passes
from ensemble.methods.members import member
from ensemble.methods.members.engine import Engine, EngineState
from ensemble.methods.members.member import Stream
from ensemble.methods.members.sgd import SGD
from ensemble.source import SplitInputs
from ensemble.storage.predictions import MemberPredictions
from ensemble.task import PredictingTask


class MCDropout(SGD):
    """Members of `SGD` that predict with dropout; the arguments are those of `EngineMethod`.

    Raises:
        UserError: as of `SGD`, or the network draws no noise where it predicts.
    """

    def make_engine(self, others: Mapping[str, int] | None) -> Engine:
        """The engine of `SGD`, of a network with noise."""
        model, why_not = self.config.model, self.task.why_no_noise()
        if why_not:
            known = model in self.config and "dropout" in self.config[model]
            remedy = f"set config.{model}.dropout above 0" if known else "use layers nn.Dropout"
            raise UserError(
                f"config.method='mc_dropout' predicts with noise, and config.model={model!r} "
                f"{why_not}; {remedy}, or choose config.method='sgd'"
            )
        return super().make_engine(others)

    @functools.cached_property
    def _predict(self) -> Callable[..., dict[str, np.ndarray]]:
        num_passes = self.config.mc_dropout.num_passes
        of_set = in_passes(predict_pass, self.task, num_passes)
        return make_predict(of_set, self.engine.programs.placement, num_passes)

    def predict_split(self, state: EngineState, name: str, draws: Any = None) -> MemberPredictions:
        """What the members say of a split in all their passes."""
        members = state.members
        sets = {**members.chosen_variables, OWN: jax.random.key_data(members.rng_key)}
        return predict_in_passes(
            functools.partial(self._predict, sets),
            SplitInputs(self.task.dataset, name),
            (len(self.indices), self.config.mc_dropout.num_passes),
            self.task.likelihood.pooled,
        )

    def fitted(self, state: EngineState, live: Sequence[int], draws: Any) -> Fitted:
        """The live members, and their keys."""
        keys = self.engine.programs.placement.gather_members(
            jax.random.key_data(state.members.rng_key)
        )
        rows = [self.indices.index(k) for k in live]
        found = super().fitted(state, live, draws)
        return _in_passes(found, keys[rows], self.config.mc_dropout.num_passes)


def predict_pass(
    task: PredictingTask, one: Any, number: Any, inputs: jax.Array
) -> dict[str, jax.Array]:
    """What a set says of inputs [B, ...] in a pass: an `ensemble.fitted.Predict`."""
    rng_key = jax.random.fold_in(jax.random.wrap_key_data(one[OWN]), Stream.PASSES)
    variables = {name: value for name, value in one.items() if name != OWN}
    return task.predict(variables, inputs, jax.random.fold_in(rng_key, number))


def fitted(saved: OnDisk) -> Fitted:
    """The members that are on disk, and their keys: see `ensemble.entries.MethodEntry`."""
    keys = np.asarray(saved.arrays["rng_key"])[list(saved.live)]
    return _in_passes(member.fitted(saved), keys, saved.config["mc_dropout"]["num_passes"])


def _in_passes(members: Fitted, keys: np.ndarray, num_passes: int) -> Fitted:
    """Members that predict in passes, by their keys [M, 2]."""
    return dataclasses.replace(
        members,
        sets={**members.sets, OWN: keys},
        predict=predict_pass,
        num_passes=num_passes,
        nouns=("member", "dropout mask"),
    )
