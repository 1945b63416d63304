"""Classes by a Dirichlet distribution over their probabilities: what a teacher's members say.

One network then tells apart what it is unsure of because its teacher's members disagree from what
they agree is uncertain: ensemble distribution distillation (Malinin et al. 2020, arXiv:1905.00076).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma

from ensemble.likelihoods.classes import ENTROPIES, LOG_PROBS, Classes

_MAX_LOG_PRECISION = 15.0  # Beyond it the members agree, as far as float32 can tell.
_MIN_SHARE = 1e-6


class Dirichlet(Classes):
    """The outputs are the logits of the mean of C classes, and the log of the precision.

    The precision is the sum of the Dirichlet's concentrations. It learns how a teacher splits its
    uncertainty, which is what it is for. The likelihood of the members' probabilities would mostly
    say something of the classes that no member believes in, and their variances let a Dirichlet
    doubt more than the members do. The mean learns as a categorical network does.
    """

    name = "dirichlet"
    needs_teacher = True  # Labels say nothing about the precision.

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        """C + 1."""
        return len(self.class_names) + 1

    def class_log_probs(self, outputs: jax.Array) -> jax.Array:
        """The logarithm of the mean, float32."""
        return jax.nn.log_softmax(outputs[..., :-1].astype(jnp.float32))

    def expected_log_prob(
        self, params: Mapping[str, Any], outputs: jax.Array, taught: Mapping[str, jax.Array]
    ) -> jax.Array:
        """The log-probability of a label [B], and minus the cross-entropy between the splits of the
        uncertainty.

        The teacher's epistemic and aleatoric parts, in nats, weight the logarithms of their shares
        here: where there is hardly any uncertainty, it hardly matters how it is split.
        """
        log_probs = jax.lax.stop_gradient(self.class_log_probs(outputs))
        total = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
        share = 1 - self._entropies(log_probs, outputs) / jnp.maximum(total, _MIN_SHARE)
        share = jnp.clip(share, _MIN_SHARE, 1 - _MIN_SHARE)
        split = taught["epistemic"] * jnp.log(share) + taught["aleatoric"] * jnp.log1p(-share)
        return super().expected_log_prob(params, outputs, taught) + split

    def predict(self, params: Mapping[str, Any], outputs: jax.Array) -> dict[str, jax.Array]:
        """Log of the mean [B, C], and the entropy of a draw [B] in the mean over draws, nats."""
        log_probs = self.class_log_probs(outputs)
        return {LOG_PROBS: log_probs, ENTROPIES: self._entropies(log_probs, outputs)}

    def _entropies(self, log_probs: jax.Array, outputs: jax.Array) -> jax.Array:
        """The entropy of a draw [B] in the mean over draws, nats."""
        bound, probs = _MAX_LOG_PRECISION, jnp.exp(log_probs)
        precision = jnp.exp(bound * jnp.tanh(outputs[..., -1].astype(jnp.float32) / bound))
        of_classes = jnp.sum(probs * digamma(precision[..., None] * probs + 1), axis=-1)
        return jnp.maximum(digamma(precision + 1) - of_classes, 0)
