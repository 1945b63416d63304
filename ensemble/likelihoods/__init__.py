"""What a network's outputs say of a target: likelihoods by the name of `config.likelihood`.

A likelihood is a class with the members of `ensemble.likelihood.Likelihood`, in a file of its own,
and a line in `ensemble.registry`.
"""

from ensemble import registry
from ensemble.errors import UserError
from ensemble.likelihood import Likelihood


def named(name: str) -> type[Likelihood]:
    """Returns the class of a likelihood.

    Raises:
        UserError: there is none of that name.
    """
    if name not in registry.LIKELIHOODS:
        raise UserError(
            f"config.likelihood={name!r} must be one of {', '.join(registry.LIKELIHOODS)}"
        )
    return registry.load(registry.LIKELIHOODS[name])
