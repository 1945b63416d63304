"""The contract of families of priors, over all that the registry has."""

import numpy as np
import pytest
import scipy.stats

from ensemble import registry
from ensemble.testing.priors import PROMISES, prior_case

SHAPE = (3, 3, 8, 16)
FAMILIES = {
    "normal": lambda scale, _: scipy.stats.norm(0, scale),
    "laplace": lambda scale, _: scipy.stats.laplace(0, scale),
    "student_t": lambda scale, df: scipy.stats.t(df, 0, scale),
}
"""The families whose values are independent, as SciPy has them."""
OTHERS = {"correlated_normal"}


@pytest.mark.parametrize("promise", PROMISES, ids=str)
@pytest.mark.parametrize("name", registry.PRIORS)
def test_it_keeps(name, promise):
    promise.keep(prior_case(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_density_is_scipy_s_up_to_a_constant(name):
    case = prior_case(name)
    family, setting = case.family, case.setting
    its = FAMILIES[name](0.7, setting)
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    found = family.log_density(values, 0.7, setting) - family.log_density(0 * values, 0.7, setting)
    expected = np.sum(its.logpdf(values.astype(float)) - its.logpdf(0))
    assert float(found) == pytest.approx(expected, rel=1e-4)
    assert family.standard_deviation(0.7, setting) == pytest.approx(its.std(), rel=1e-6)


def test_every_prior_is_compared_or_has_no_other_form():
    assert FAMILIES.keys() | OTHERS == registry.PRIORS.built_in.keys()
