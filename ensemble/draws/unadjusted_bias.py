"""How far the widths of a posterior are off where a sampler accepts every step.

The energy that such a sampler should keep varies with its finite steps, and so do the moments of
its draws (Robnik, Cohn-Gordon and Seljak 2024, arXiv:2412.08876). For MCLMC by McLachlan's steps a
variance errs in proportion to step_size^2 and the energy's variance to step_size^6, so the first
goes with the cube root of the second. The factor was found on Gaussians; a test simulates them.
"""

OF_MEAN = 0.13
"""Relative error of a standard deviation, in the mean over directions, per cube root of nats^2."""
TOTAL_LIMIT = 0.1
"""Variance of the energy in all directions, nats^2."""
MEAN_LIMIT = 2e-3
"""The same per direction: above both limits the error is not known. There simulated widths of 100
directions err by more than the formula says, and near the limit of stability by anything."""


def expected_bias(energy_variance: float, num_params: int) -> float | None:
    """Returns the error of standard deviations on a Gaussian of any widths, if its mean is right.

    Args:
        energy_variance: Mean square of a step's energy error, nats^2 per parameter.
        num_params: Number of parameters.

    Returns:
        The relative error in the mean over directions, 0.01 for one percent; None where it is not
        known.
    """
    is_known = energy_variance * num_params < TOTAL_LIMIT or energy_variance < MEAN_LIMIT
    return OF_MEAN * energy_variance ** (1 / 3) if is_known else None
