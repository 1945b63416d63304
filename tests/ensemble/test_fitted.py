"""What predicts: sets of variables, and whose they are."""

import pickle

import numpy as np

from ensemble.fitted import Fitted


def test_members_that_descend_have_a_set_each():
    fitted = Fitted.one_each({"params": {"w": np.arange(6.0).reshape(3, 2)}}, member_devices=2)
    assert (fitted.num_sets, fitted.num_members, fitted.member_devices) == (3, 3, 2)
    assert fitted.num_bytes == 48
    last = fitted.last_variables()["params"]["w"]
    np.testing.assert_array_equal(last, fitted.sets["params"]["w"])


def test_the_last_set_of_a_chain_is_its_newest_draw():
    fitted = Fitted({"w": np.arange(5)}, np.array([0, 0, 1, 1, 1]))
    assert (fitted.num_sets, fitted.num_members) == (5, 2)
    np.testing.assert_array_equal(fitted.last_variables()["w"], [1, 4])
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.member_of, fitted.member_of)


def test_chains_without_a_draw_have_no_set():
    fitted = Fitted({"w": np.zeros((0, 3))}, np.arange(0))
    assert (fitted.num_sets, fitted.num_members, fitted.num_bytes) == (0, 0, 0)
