"""The task of predicting what an ensemble predicts.

Members maximise the log-probability of a target in the mean over the teacher's predictive
distribution, at temperature 1 (Hinton et al. 2015, arXiv:1503.02531). The teacher predicts the very
inputs that they are shown, shifted or mirrored as they are, and not those of the data (Beyer et al.
2022, arXiv:2106.05237): off the points that it has learned from it is less sure of itself. Labels
are used for the scores of training alone.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import ml_collections

from ensemble.config import likelihood_settings
from ensemble.errors import UserError
from ensemble.network import Variables
from ensemble.priors import parse_prior
from ensemble.task import Aux
from ensemble.tasks.distillation.beside_teacher import compare
from ensemble.tasks.distillation.blended import Blended
from ensemble.tasks.distillation.teacher import Ensemble, Teacher, load_teacher
from ensemble.tasks.learning_data import load_source, make_likelihood
from ensemble.tasks.supervised import Supervised, check_network, create_network

if TYPE_CHECKING:
    from ensemble.sources.data_forms import Given


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distilled(Supervised):
    """A data set, a network that is to predict it, and the ensemble that says how.

    Attributes:
        teacher: the ensemble.
    """

    teacher: Teacher

    def describe(self) -> dict[str, Any]:
        """Describes any network on these data, and which ensemble it learns from."""
        return {**super().describe(), "teacher": self._digest}

    def prepare(self, inputs: jax.Array) -> jax.Array:
        """Leaves inputs raw, as the teacher takes them."""
        return inputs

    def log_likelihood(
        self,
        variables: Variables,
        inputs: jax.Array,
        targets: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Aux]:
        """The mean of log p(target | input, variables) over targets of the teacher's prediction.

        Args:
            variables: of the member.
            inputs: [B, ...], raw.
            targets: [B], which do not matter.
            train: as of `Network.apply`.
            rng_key: as of `Network.apply`.

        Returns:
            Nats [B], for the caller to weight, mask and sum; and what else the pass leaves.
        """
        outputs, own, state = self.outputs(variables, super().prepare(inputs), train, rng_key)
        likelihood: Any = self.likelihood  # Which `create` has checked.
        log_prob = likelihood.expected_log_prob(own, outputs, self._teach(inputs))
        return log_prob, Aux(likelihood.predict(own, outputs), state, outputs)

    def compared(self, ensemble: Ensemble) -> dict[str, Any]:
        """The entry of report.json that lays what has learned beside its teacher.

        Args:
            ensemble: that has learned.
        """
        found = compare(self.dataset, self.teacher.ensemble, ensemble)
        return {"distillation": {"teacher_identity": self.teacher.identity, **found}}

    @functools.cached_property
    def _teach(self) -> Callable[[jax.Array], Mapping[str, jax.Array]]:
        return self.teacher.function()

    @functools.cached_property
    def _digest(self) -> str:
        return self.teacher.digest


def create(config: ml_collections.FrozenConfigDict, data: "Given | None") -> Distilled:
    """Makes the task of a run.

    Args:
        config: of the run.
        data: what a program has handed over instead of `config.dataset`: the teacher's data.

    Raises:
        UserError: the teacher or the data cannot be had, or what is to learn does not suit them.
    """
    dataset = load_source(config, data)
    if config.num_blends:
        dataset = Blended(dataset, config.num_blends, config.seed)
    likelihood = make_likelihood(dataset, config.likelihood, likelihood_settings(config))
    if likelihood.num_targets > 1:
        raise UserError(
            f"the data have {likelihood.num_targets} targets for each example; one network learns "
            "one target from an ensemble: distill an ensemble of one target"
        )
    if not hasattr(likelihood, "expected_log_prob"):
        raise UserError(
            f"config.likelihood={config.likelihood!r} cannot learn from a teacher; use 'gaussian' "
            "or 'gaussian_split' for numbers, and 'categorical' or 'dirichlet' for classes"
        )
    network = create_network(config, likelihood, dataset.quantiles)
    check_network(Supervised(dataset, network, likelihood), config)
    teacher, priors = load_teacher(config, dataset), parse_prior(config.prior)
    return Distilled(dataset, network, likelihood, priors, teacher=teacher)
