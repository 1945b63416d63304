"""A NumPyro model as a task: its latents, on the real line, are the parameters."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.util import constrain_fn, potential_energy, unconstrain_fn

from ensemble import likelihoods
from ensemble.likelihood import Likelihood
from ensemble.network import Traits, Variables
from ensemble.sources import Source
from ensemble.task import Aux, Defaults, Learned, Scored
from ensemble.tasks.learning_data import (
    check_params,
    describe,
    described_dataset,
    load_source,
    make_likelihood,
)


@dataclasses.dataclass(frozen=True)
class NumPyroModel(Defaults):
    """A model `(inputs [B, ...], targets [B])` that observes the site `target`, of some logits."""

    model: Callable[[jax.Array, jax.Array], None]
    dataset: Source
    likelihood: Likelihood

    @property
    def traits(self) -> Traits:
        return Traits(has_state=False, is_random=False)

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.dataset.sizes

    @property
    def num_train_examples(self) -> int:
        return self.sizes["train"]

    def describe(self) -> dict[str, Any]:
        return {**describe(self.dataset), **self.likelihood.describe()}

    def scored(self) -> Scored:
        return Scored(self.dataset, self.likelihood)

    def without_examples(self) -> "NumPyroModel":
        return dataclasses.replace(self, dataset=described_dataset(self.describe()))

    # Parameters.

    def _prior(self) -> tuple[Callable[..., None], tuple[jax.Array, jax.Array]]:
        """The model of the latents alone, and arguments for it."""
        example = jnp.zeros((1, *self.dataset.input_shape)), jnp.zeros(1, jnp.int32)
        return handlers.block(self.model, hide=["target"]), example

    def sample_prior(self, rng_key: jax.Array) -> Any:
        prior, example = self._prior()
        sites = handlers.trace(handlers.seed(prior, rng_key)).get_trace(*example)
        return unconstrain_fn(prior, example, {}, {k: one["value"] for k, one in sites.items()})

    def init_variables(self, rng_key: jax.Array) -> Variables:
        return {"params": self.sample_prior(rng_key)}

    def params_shapes(self) -> Any:
        return jax.eval_shape(self.sample_prior, jax.random.key(0))

    def log_prior(self, params: Any) -> jax.Array:
        prior, example = self._prior()
        log_density: jax.Array = -potential_energy(prior, example, {}, params)
        return log_density

    # The likelihood.

    def _target(self, params: Any, inputs: jax.Array) -> Any:
        """The distribution of the targets."""
        arguments = inputs, jnp.zeros(len(inputs), jnp.int32)
        values = constrain_fn(self.model, arguments, {}, params)
        model = handlers.substitute(self.model, data=values)
        return handlers.trace(model).get_trace(*arguments)["target"]["fn"]

    def log_likelihood(
        self,
        variables: Variables,
        inputs: jax.Array,
        targets: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Aux]:
        target = self._target(variables["params"], inputs)
        aux = Aux(self.likelihood.predict({}, target.logits), {}, target.logits)
        return target.log_prob(targets), aux

    def predict(
        self, variables: Variables, inputs: jax.Array, rng_key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        inputs = inputs.astype(jnp.float32)
        return self.likelihood.predict({}, self._target(variables["params"], inputs).logits)


def learned(task: NumPyroModel) -> Learned:
    """For the type checker."""
    return task


# What a line of the registry names.


def logistic(inputs: jax.Array, targets: jax.Array) -> None:
    """A logistic regression of 6 features and 3 classes whose scale is latent too."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    kernel = numpyro.sample("kernel", dist.Normal(0, 1).expand([6, 3]).to_event(2))
    numpyro.sample("target", dist.Categorical(logits=scale * inputs @ kernel), obs=targets)


def create(config: ml_collections.FrozenConfigDict, data: Any) -> NumPyroModel:
    dataset = load_source(config, data)
    return NumPyroModel(logistic, dataset, make_likelihood(dataset))


def restore(config: Mapping[str, Any], description: Mapping[str, Any], params: Any) -> NumPyroModel:
    likelihood = likelihoods.described(config["likelihood"], description)
    task = NumPyroModel(logistic, described_dataset(description), likelihood)
    check_params(params, task.params_shapes(), config, task)
    return task
