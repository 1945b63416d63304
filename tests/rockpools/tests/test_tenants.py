"""What contracts promise, tried on the tenants of this package."""

from ensemble import testing


def test_the_likelihood():
    testing.check_likelihood("zero_inflated_poisson")


def test_the_prior():
    testing.check_prior("logistic")


def test_the_network():
    testing.check_network("sines", (2,), width=32)


def test_the_score():
    testing.check_score("bias")


def test_the_source():
    testing.check_source("pools:200")
