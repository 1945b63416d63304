"""How far the widths of a posterior are off where a sampler accepts every step.

The energy that such a sampler should keep varies with its finite steps, and so do the moments of
its draws (Robnik, Cohn-Gordon and Seljak 2024, arXiv:2412.08876). For MCLMC by McLachlan's steps a
variance errs in proportion to step_size^2 and the energy's variance to step_size^6, so the first
goes with the cube root of the second. The factors were found on Gaussians; a test simulates them.
"""

OF_MEAN = 0.13
"""Relative error of a standard deviation, in the mean over directions, per cube root of nats^2."""
OF_WORST = 0.35
"""The same in the worst direction, where one alone has all of the energy's variance."""
NEAR_LIMIT = 0.1
"""Variance of the energy in all directions, nats^2, above which the worst is not known."""
MEAN_LIMIT = 2e-3
"""The same per direction: above both limits the mean is not known either. There simulated widths
of 100 directions err by more than the formula says, and near the limit of stability by anything."""


def expected_bias(energy_variance: float, num_params: int) -> tuple[float | None, float | None]:
    """What standard deviations err by on a Gaussian of any widths, for a mean stays right there.

    Args:
        energy_variance: mean square of a step's energy error, nats^2 per parameter.
        num_params: number of parameters.

    Returns:
        The relative bias of standard deviations, .01 is one percent of them: the mean over
        directions, and the largest that one direction may have; None where these are not known.
    """
    total = energy_variance * num_params
    worst = OF_WORST * total ** (1 / 3) if total < NEAR_LIMIT else None
    is_told = total < NEAR_LIMIT or energy_variance < MEAN_LIMIT
    return OF_MEAN * energy_variance ** (1 / 3) if is_told else None, worst
