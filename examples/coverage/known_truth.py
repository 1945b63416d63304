"""Generated data sets of one input, whose truth is known, and the model that is to learn them.

A data set has inputs on both sides of a gap. Its targets are a function with Gaussian noise. The
function is either a draw of the model's own prior, or a sum of waves, which the prior knows nothing
of. The noise has a draw of the prior as its standard deviation in both cases.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ensemble import networks
from ensemble.likelihoods.gaussian import SharedGaussian
from ensemble.network import Network
from ensemble.priors import Prior, log_prior, parse_prior, sample_prior

GAP, EDGE, FAR = 0.3, 1.0, 1.5
"""Inputs lie between `GAP` and `EDGE`, on both sides of zero; predictions reach to `FAR`."""
NUM_EXAMPLES = 60
FROM_PRIOR, WAVES = "from the prior", "waves"
TRUTHS = (FROM_PRIOR, WAVES)
_NOISE = 0.15  # A typical standard deviation of the noise, in units of the targets.
_WIDTH = 16
_PRIOR = (
    f"Dense_0/*=normal(3), Dense_1/kernel=normal({1 / _NOISE:.3f}/sqrt(fan_in)), "
    f"Dense_1/bias=normal({0.5 / _NOISE:.3f}), likelihood/*=normal(0.5)"
)
_NUM_WAVES = 3
_FREQUENCIES = (3.0, 9.0)  # Radians for each unit of the input.
_AMPLITUDE = 0.7
_OWN = "likelihood"  # Where the likelihood's own parameters lie beside the network's.


class Model(NamedTuple):
    """A network, a likelihood and a prior: what every method is given.

    Attributes:
        network: from an input to the mean of the target.
        likelihood: of a target, with a standard deviation that is learned.
        priors: on the parameters of both.
    """

    network: Network
    likelihood: SharedGaussian
    priors: tuple[Prior, ...]

    def init(self, rng_key: jax.Array) -> Any:
        """Starts parameters as training usually does; their shapes are what counts here."""
        params = self.network.init(rng_key, jnp.ones((1, 1)))["params"]
        return {**params, _OWN: self.likelihood.init(rng_key)}

    def draw(self, rng_key: jax.Array) -> Any:
        """Draws parameters from the prior."""
        shapes = jax.eval_shape(self.init, jax.random.key(0))
        return sample_prior(rng_key, self.priors, shapes)

    def log_prior(self, params: Any) -> jax.Array:
        """Log density of the parameters up to a constant, nats []."""
        return log_prior(self.priors, params)

    def log_likelihood(self, params: Any, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        """Log density [B] of targets [B] at inputs [B], nats."""
        own, outputs = self._outputs(params, inputs)
        return self.likelihood.log_prob(own, outputs, targets)

    def predict(self, params: Any, inputs: jax.Array) -> dict[str, jax.Array]:
        """The distribution of a target at inputs [B]: its location and scale [B]."""
        return self.likelihood.predict(*self._outputs(params, inputs))

    def _outputs(self, params: Any, inputs: jax.Array) -> tuple[Any, jax.Array]:
        weights = dict(params)
        own = weights.pop(_OWN)
        return own, self.network.apply({"params": weights}, inputs[:, None])[0]


def make_model() -> Model:
    """A network with one hidden layer of 16 tanh units, and one noise for all inputs."""
    network = networks.create("mlp", 1, {"widths": str(_WIDTH), "activation": "tanh"})
    likelihood = SharedGaussian(shift=0.0, scale=_NOISE, low=-3.0, high=3.0)
    return Model(network, likelihood, parse_prior(_PRIOR))


class Curve(NamedTuple):
    """A data set, and the truth behind it.

    Attributes:
        inputs: [N].
        targets: [N].
        truth: the distribution of a new target at the points: `loc` and `scale` [G].
    """

    inputs: jax.Array
    targets: jax.Array
    truth: dict[str, jax.Array]


def draw_curve(model: Model, rng_key: jax.Array, is_wave: jax.Array, points: jax.Array) -> Curve:
    """Draws a data set.

    Args:
        model: whose prior is drawn from.
        rng_key: of the data set.
        is_wave: [] whether its function is one of waves.
        points: [G] inputs at which the truth is to be known.
    """
    key_inputs, key_params, key_waves, key_noise = jax.random.split(rng_key, 4)
    span = EDGE - GAP
    place = jax.random.uniform(key_inputs, (NUM_EXAMPLES,), minval=-span, maxval=span)
    inputs = place + jnp.where(place < 0, -GAP, GAP)
    params = model.draw(key_params)

    def truth(inputs: jax.Array) -> dict[str, jax.Array]:
        drawn = model.predict(params, inputs)
        return {**drawn, "loc": jnp.where(is_wave, _waves(key_waves, inputs), drawn["loc"])}

    at_inputs, at_points = truth(inputs), truth(points)
    noise = at_inputs["scale"] * jax.random.normal(key_noise, (NUM_EXAMPLES,))
    return Curve(inputs, at_inputs["loc"] + noise, at_points)


def _waves(rng_key: jax.Array, inputs: jax.Array) -> jax.Array:
    """A sum of sines [B] of random frequencies, phases and amplitudes."""
    key_frequency, key_phase, key_amplitude = jax.random.split(rng_key, 3)
    low, high = _FREQUENCIES
    frequency = jax.random.uniform(key_frequency, (_NUM_WAVES,), minval=low, maxval=high)
    phase = jax.random.uniform(key_phase, (_NUM_WAVES,), maxval=2 * jnp.pi)
    amplitude = _AMPLITUDE * jax.random.normal(key_amplitude, (_NUM_WAVES,))
    return jnp.sin(inputs[:, None] * frequency + phase) @ amplitude
