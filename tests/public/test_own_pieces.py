"""A user's own pieces: an augmentation, on devices and resumed, a method's keys, a prior."""

import jax
import names
import numpy as np
import pytest
from names import InputError, load, piece
from runs import classes
from small import train


def noise(rng_key, inputs):
    return inputs + 3 * jax.random.normal(rng_key, inputs.shape)


def trained(function=None, workdir=None, **own):
    """What a few epochs of members predict of some inputs."""
    augmentation = {} if function is None else {"augment.function": piece("augmentation", function)}
    result = train({"num_epochs": 2, **augmentation, **own}, classes(), workdir)
    return result.predictor(classes()["inputs"][:9])


@pytest.mark.check
def test_members_learn_from_it_the_same_on_any_number_of_devices():
    plain = trained(num_devices=1)
    one, two = (trained(noise, num_devices=number) for number in (1, 2))
    np.testing.assert_allclose(one.probs, two.probs, atol=1e-4)
    each = trained(noise, shuffle="independent")  # Each member sees batches of its own.
    for other in (plain, each):
        assert np.abs(one.probs - other.probs).max() > 1e-3


@pytest.mark.check
def test_a_resumed_run_sees_what_the_straight_run_saw(tmp_path):
    own = {"shuffle": "independent"}
    straight = trained(noise, num_epochs=4, **own)
    trained(noise, tmp_path, **own)
    resumed = trained(noise, tmp_path, num_epochs=4, **own)
    again = load(tmp_path)(classes()["inputs"][:9])
    for found in (resumed, again):
        np.testing.assert_allclose(found.probs, straight.probs, atol=1e-6)


BAD = {
    "another shape": (lambda key, inputs: inputs[0], "float32"),
    "truths": (lambda key, inputs: inputs > 0, "bool"),
    "no array": (lambda key, inputs: "nothing", "str"),
    "an error": (lambda key, inputs: 1 / 0, "ZeroDivisionError"),
    "a branch": (lambda key, inputs: inputs if inputs.sum() > 0 else -inputs, "TracerBool"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_one_is_one_line_before_anything_is_trained(name, tmp_path):
    function, says = BAD[name]
    function.__name__ = "bad"
    with pytest.raises(InputError, match=says) as found:
        trained(function, tmp_path / "run")
    assert "\n" not in str(found.value)
    assert not (tmp_path / "run" / "config.json").exists()


SCALED = """
import dataclasses

import jax
import jax.numpy as jnp

from ensemble.config.builtin import DeepEnsemble
from ensemble.config.keys import key
from ensemble.methods import training
from ensemble.methods.optimizers import create_descent


@dataclasses.dataclass(frozen=True)
class Keys(DeepEnsemble):
    init_scale: float = key(0.0, "factor of the start", ge=0)


def scaled(config, task):
    def wrap(algorithm, devices, numbers):
        def init(now, batch):
            state = algorithm.init(now, batch)
            params = jax.tree.map(lambda leaf: config.init_scale * leaf, state.variables["params"])
            return state._replace(variables={**state.variables, "params": params})

        return algorithm._replace(init=init)

    return training.create(config, task, create_descent, wrap=wrap)


scaled.keys = Keys


class Flat:
    setting = None

    def log_density(self, values, setting):
        return jnp.zeros(())

    def sample(self, rng_key, shape, setting):
        return jax.random.normal(rng_key, shape)

    def standard_deviation(self, setting):
        return 1.0
"""


@pytest.mark.check
def test_a_method_has_the_keys_that_it_declares(tmp_path):
    path = tmp_path / "scaled.py"
    path.write_text(SCALED)
    own = {"method": f"{path}:scaled", "learning_rate": 1e-9}
    of_zeros = trained(workdir=tmp_path / "run", **own)
    assert np.ptp(of_zeros.probs) < 1e-3
    assert np.ptp(trained(**own, init_scale=2).probs) > 1e-2
    again = load(tmp_path / "run")(classes()["inputs"][:9])
    np.testing.assert_array_equal(again.probs, of_zeros.probs)
    with pytest.raises(InputError, match="init_scale=-1 must be a number at least 0"):
        trained(**own, init_scale=-1)
    with pytest.raises(InputError, match="init_scale"):
        trained(init_scale=1)


@pytest.mark.check
def test_a_prior_has_a_family_of_a_file(tmp_path):
    path = tmp_path / "flat.py"
    path.write_text(SCALED)
    few = {f"sampler.{one}": 4 for one in ("num_warmup", "num_samples", "num_leapfrog_steps")}
    config = {"model": "logistic_regression", "method": "hmc", "num_chains": 2, "num_devices": 1}
    prior = {"prior": f"*bias=normal(1), *={path}:Flat(0.1)"}
    result = names.train({**config, **prior, **few, "sampler.thinning": 1}, classes())
    assert np.isfinite(result.predictor(classes()["inputs"][:9]).probs).all()


METRIC = """
import numpy as np
from ensemble.metrics import Metric

def ranked_probability(p, y):
    steps = np.cumsum(p.probs - np.eye(p.probs.shape[1])[y], axis=1)
    return (steps**2).sum(axis=1)

certainty = Metric("Certainty", lambda p, y: p.confidence, "share", better=1, bounds=(0, 1))
"""


@pytest.mark.check
def test_metrics_of_ones_own_and_on_request_are_in_the_evaluation(tmp_path):
    train({"num_epochs": 2, "ensemble_size": 3}, classes(), tmp_path / "run")
    (tmp_path / "mine.py").write_text(METRIC)
    (tmp_path / "costs.csv").write_text("0,1,1\n2,0,1\n5,1,0\n")

    def right(p, y):
        return (p.labels == y) * 1.0

    asked = [f"{tmp_path}/mine.py:{name}" for name in ("ranked_probability", "certainty")]
    asked += [f"cost:{tmp_path}/costs.csv", "auprc:1", right]
    names.evaluate(tmp_path / "run", tmp_path / "out", datasets=[], data=classes(), metrics=asked)
    found = names.evaluation(tmp_path / "out")["metrics"]["test"]
    for name in asked[:3]:
        assert found[name]["low"] < found[name]["value"] < found[name]["high"]
        assert len(found[name]["members"]) == 3
    assert 0 < found["auprc:1"]["value"] <= 1
    (own,) = [one["value"] for name, one in found.items() if name.endswith("right")]
    assert own == pytest.approx(found["accuracy"]["value"])
