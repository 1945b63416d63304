"""What contracts promise, tried on the tenants of this package."""

import numpy as np

from ensemble import testing

FEW = {"model": "sines", "ensemble_size": 2, "num_epochs": 2, "batch_size": 8, "log_every_steps": 4}
LABELS = np.arange(60) % 3
DATA = {"inputs": np.stack([np.cos(LABELS), np.sin(LABELS)], axis=1), "labels": LABELS}


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


def test_the_method():
    testing.check_method("same_start", FEW, DATA)


def test_the_task():
    testing.check_task({**FEW, "prior": "normal(1)", "power.exponent": 0.9}, DATA)
