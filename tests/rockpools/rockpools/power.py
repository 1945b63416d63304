"""A power of the likelihood, which is less sure of a model that is wrong (arXiv:1506.06101)."""

import dataclasses

from ensemble.tasks import supervised


@dataclasses.dataclass(frozen=True, kw_only=True)
class Power(supervised.Supervised):
    exponent: float

    def log_likelihood(self, variables, inputs, targets, train=False, rng_key=None):
        log_prob, aux = super().log_likelihood(variables, inputs, targets, train, rng_key)
        return self.exponent * log_prob, aux


def create(config, data):
    task = supervised.create(config, data)
    fields = {one.name: getattr(task, one.name) for one in dataclasses.fields(task)}
    return Power(**fields, exponent=config.power.exponent)
