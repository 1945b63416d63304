"""The methods `sgld` and `sghmc`: draws on any devices, interruptions, refusals, other samplers."""

import itertools
import json

import jax
import numpy as np
import pytest
from conftest import make_blobs
from etils import epath
from run_parts import draws_of, validated

import ensemble
from ensemble import UserError, networks
from ensemble.draws.store import Draws
from ensemble.method import Status
from ensemble.methods.minibatch.draw_record import append
from ensemble.methods.minibatch.minibatch_sampling import MinibatchSampling
from ensemble.priors import parse_prior
from ensemble.sources import dataset_from_arrays, load_dataset
from ensemble.sources.on_disk import OnDisk
from ensemble.tasks.supervised import classification

KEY = jax.random.key(0)


def small(**overrides):
    return {
        "method": "sghmc",
        "model": "tiny",
        "num_chains": 3,
        "num_devices": 1,
        "batch_size": 29,
        "learning_rate": 0.05,
        "log_every_steps": 7,
        "sgmcmc.num_burn_in": 4,
        "sgmcmc.num_samples": 5,
        "sgmcmc.steps_per_draw": 3,
        **overrides,
    }


def make_method(blobs, **overrides):
    config = validated(small(**overrides))
    dataset = dataset_from_arrays(blobs)
    network = networks.create(config.model, len(dataset.class_names))
    return MinibatchSampling(config, classification(dataset, network, parse_prior(config.prior)))


def on_disk(taken, directory):
    """Draws that a run has taken, as it leaves them."""
    draws = Draws(epath.Path(directory))
    append(draws, 0, taken)
    return draws


def run(method, limits=(None,)):
    """The last state and all draws; it goes to the host and back after every chunk that is cut."""
    state, taken = method.init(KEY), []
    for limit in itertools.cycle(limits):
        if method.finished(state):
            return state, taken
        state, info = method.advance(state, limit)
        taken += info.draws
        if info.is_cut:
            arrays, counters = method.to_host(state)
            assert counters["num_recorded"] == len(taken)
            state = method.from_host(KEY, arrays, counters)


@pytest.mark.check
@pytest.mark.parametrize("limits", [pytest.param((1,), marks=pytest.mark.soak), (2, 5)])
def test_interrupted_anywhere_chains_take_the_same_draws(blobs, limits):
    method = make_method(blobs)
    state, taken = run(method)
    others, found = run(method, limits)
    jax.tree.map(np.testing.assert_array_equal, found, taken)
    jax.tree.map(np.testing.assert_array_equal, method.to_host(others), method.to_host(state))
    assert len(taken) == 5
    log_density = np.stack([draw.scalars["log_density"] for draw in taken])
    assert np.isfinite(log_density).all()
    assert (log_density.std(axis=0) > 0).all()


@pytest.mark.parametrize(
    ("num_chains", "num_devices"),
    [
        pytest.param(3, 2, marks=pytest.mark.soak),
        pytest.param(1, 2, marks=pytest.mark.check),
    ],
)
def test_the_number_of_devices_changes_no_draw(blobs, num_chains, num_devices, tmp_path):
    method = make_method(blobs, num_chains=num_chains)
    state, taken = run(method)
    other = make_method(blobs, num_chains=num_chains, num_devices=num_devices)
    found, theirs = run(other)
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4)  # noqa: E731
    jax.tree.map(near, [one.params for one in theirs], [one.params for one in taken])
    near(
        other.predict_split(found, "test", on_disk(theirs, tmp_path / "b")).arrays["log_probs"],
        method.predict_split(state, "test", on_disk(taken, tmp_path / "a")).arrays["log_probs"],
    )


@pytest.mark.soak
def test_the_prediction_is_the_mean_over_the_draws(blobs, tmp_path):
    method = make_method(blobs)
    state, taken = run(method)
    inputs = method.task.dataset.read("test", slice(None)).inputs
    predict = jax.vmap(lambda params: method.task.predict({"params": params}, inputs))
    probs = np.mean([np.exp(predict(draw.params)["log_probs"]) for draw in taken], axis=0)
    said = method.predict_split(state, "test", on_disk(taken, tmp_path))
    found = np.exp(said.arrays["log_probs"])
    np.testing.assert_allclose(found, probs, rtol=1e-4, atol=1e-6)


@pytest.mark.check
def test_noise_and_temperature_are_what_the_configuration_says(blobs):
    """Where the likelihood counts nothing, draws are those of the prior."""
    own = {"temperature": 1e9, "prior": "normal(0.5)", "num_chains": 16, "learning_rate": 5.0}
    _, taken = run(make_method(blobs, **own, **{"sgmcmc.num_burn_in": 60}))
    params = np.concatenate(
        [leaf.ravel() for leaf in jax.tree.leaves([one.params for one in taken])]
    )
    assert abs(params.std() - 0.5) < 0.03
    assert abs(np.mean([one.scalars["kinetic"] for one in taken]) - 1) < 0.06


@pytest.mark.soak
def test_a_run_leaves_draws_and_goes_on_with_more_of_them(blobs, tmp_path):
    values = small(num_chains=2, log_every_steps=10)
    ensemble.train(values, blobs, str(tmp_path), show_progress=False)
    more = {**values, "sgmcmc.num_samples": 8}
    result = ensemble.train(more, blobs, str(tmp_path), show_progress=False)
    draws = draws_of(tmp_path)
    assert draws.end == 8
    assert len(draws.positions()[1]) == 8
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["posterior"]["num_samples"] == 8
    assert 0.5 < report["posterior"]["draw_temperature"] < 1.5
    assert (tmp_path / "posterior.nc").exists()
    loaded = ensemble.load(str(tmp_path))
    inputs = blobs["inputs"][:5]
    np.testing.assert_allclose(loaded(inputs).probs, result.predictor(inputs).probs, rtol=1e-4)


@pytest.mark.check
def test_a_chain_that_is_no_longer_finite_is_left_out(blobs):
    method = make_method(blobs, model="explosive", num_chains=4, learning_rate=10.0)
    state, taken = run(method)
    status = method.status(state)
    assert Status.NON_FINITE in status.values()
    assert len(taken) == 5


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({"init_from": "map"}, "all the data.*'prior'"),
        ({"sgmcmc.num_cycles": 2}, "is for config.sgmcmc.schedule='cyclical'"),
        ({"sgmcmc.preconditioner": "rmsprop"}, "must be at least 20 to adapt"),
        ({"sgmcmc.num_samples": 2**30}, "steps in all, which must be at most"),
        ({"likelihood": "quantiles"}, "has no density"),
        ({"method": "sgld", "momentum": 0.5}, "momentum=0.5 is for"),
        ({"num_epochs": 3}, "config.sgmcmc.num_samples says how long"),
    ],
)
def test_settings_that_cannot_stand_are_refused_in_a_line(overrides, line):
    with pytest.raises(UserError, match=line) as error:
        validated(small(**overrides))
    assert "\n" not in str(error.value)


@pytest.mark.check
def test_cycles_of_another_length_are_not_gone_on_with(blobs):
    cyclical = {"sgmcmc.schedule": "cyclical", "sgmcmc.num_cycles": 2}
    method = make_method(blobs, **cyclical)
    _, counters = method.to_host(method.init(KEY))
    make_method(blobs, **{**cyclical, "sgmcmc.num_cycles": 3}).check_resumable(counters, "runs/one")
    longer = make_method(blobs, **cyclical, **{"sgmcmc.num_samples": 6})
    with pytest.raises(UserError, match=r"22 steps.*runs/one.*19"):
        longer.check_resumable(counters, "runs/one")


def moments_of_parameters(workdir, data, **settings):
    """Means and standard deviations [P] of all draws that are kept, of a logistic regression."""
    config = {
        "model": "logistic_regression",
        "prior": "normal(0.3)",
        "num_chains": 8,
        "num_devices": 1,
        **dict.fromkeys(("eval_every_epochs", "plot_every_epochs"), 10**5),
        **settings,
    }
    ensemble.train(config, data, str(workdir), show_progress=False)
    positions, _ = draws_of(workdir).positions()
    leaves = [leaf.reshape(-1, leaf[0, 0].size) for leaf in jax.tree.leaves(positions)]
    draws = np.concatenate(leaves, axis=1)
    return draws.mean(axis=0), draws.std(axis=0)


@pytest.mark.soak
def test_draws_have_the_moments_of_those_of_hmc(tmp_path):
    hmc = {"mass": "kronecker", "step_size": 0.3, "num_leapfrog_steps": 8, "num_warmup": 200}
    hmc |= {"num_samples": 1500, "thin": 3}
    mean, sd = moments_of_parameters(
        tmp_path / "hmc",
        make_blobs(700),
        method="hmc",
        **{f"sampler.{key}": value for key, value in hmc.items()},
    )
    own = {"num_burn_in": 10_000, "num_samples": 300, "steps_per_draw": 500}
    found_mean, found_sd = moments_of_parameters(
        tmp_path / "sghmc",
        make_blobs(700),
        method="sghmc",
        learning_rate=0.03,
        batch_size=50,
        log_every_steps=10_000,
        checkpoint_every_epochs=10**5,
        **{f"sgmcmc.{key}": value for key, value in own.items()},
    )
    assert np.abs(found_mean - mean).max() < 0.2 * sd.min()
    np.testing.assert_allclose(found_sd, sd, rtol=0.15)


def test_every_chain_has_noise_of_its_own(blobs):
    arrays, _ = (method := make_method(blobs)).to_host(method.init(KEY))
    expected = [jax.random.fold_in(jax.random.fold_in(KEY, k), 3) for k in range(3)]
    found = arrays["opt_state"]["rng_key"]
    np.testing.assert_array_equal(found, np.stack([jax.random.key_data(k) for k in expected]))


@pytest.mark.soak
def test_chains_start_from_the_members_of_a_workdir(blobs_run, blobs):
    method = make_method(blobs, init_from=str(blobs_run))
    members = ensemble.load(str(blobs_run))
    arrays, _ = method.to_host(method.init(KEY))
    jax.tree.map(
        lambda found, leaf: np.testing.assert_array_equal(found, leaf[:3]),
        arrays["params"],
        members.variables["params"],
    )


@pytest.mark.soak
def test_augmentation_takes_the_mean_of_the_log_likelihood_over_an_image_and_its_mirror(tmp_path):
    """Which is the posterior of all of them, each of which counts half."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(200, 1, 2, 1)).astype(np.float32)
    labels = (inputs[:, 0, 0, 0] + rng.logistic(size=200) / 2 > 0).astype(np.int32)
    test = {"test_inputs": inputs[:2], "test_labels": np.arange(2)}
    one = {"train_inputs": inputs, "train_labels": labels, **test}
    both = {
        "train_inputs": np.concatenate([inputs, inputs[:, :, ::-1]]),
        "train_labels": np.concatenate([labels, labels]),
        **test,
    }
    own = {"hold_out": False, "num_chains": 8, "log_every_steps": 10**4}
    hmc = {"num_samples": 200, "num_warmup": 200, "num_leapfrog_steps": 8, "thin": 1}
    settings = {f"sampler.{key}": value for key, value in hmc.items()}
    mean, sd = moments_of_parameters(
        tmp_path / "hmc", both, method="hmc", temperature=2.0, **own, **settings
    )
    steps = {"num_burn_in": 200, "num_samples": 200, "steps_per_draw": 20}
    settings = {f"sgmcmc.{key}": value for key, value in steps.items()}
    own |= {"method": "sghmc", "batch_size": 100, "learning_rate": 0.1, **settings}
    found_mean, found_sd = moments_of_parameters(
        tmp_path / "sghmc", one, **own, **{"augment.flip": True}
    )
    np.testing.assert_allclose((found_mean - mean) / sd, 0, atol=0.2)
    np.testing.assert_allclose(found_sd / sd, 1, atol=0.15)


@pytest.mark.check
@pytest.mark.parametrize("are_symmetric", [True, False])
def test_chains_see_augmented_images(are_symmetric):
    """Of images that are their own mirrors, it does not matter whether they are mirrored."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (80, 4, 4, 1), np.uint8)
    if are_symmetric:
        images[:, :, 2:] = images[:, :, 1::-1]
    data = {"inputs": images, "labels": rng.integers(0, 3, 80)}
    own = {"model": "logistic_regression", "num_chains": 2}
    draws = [
        np.stack([draw.params["Dense_0"]["kernel"] for draw in run(method)[1]])
        for method in (make_method(data, **own), make_method(data, **own, **{"augment.flip": True}))
    ]
    assert (draws[0] == draws[1]).all() == are_symmetric


@pytest.mark.check
def test_data_on_disk_give_the_draws_of_data_in_memory(blobs, tmp_path):
    for name, array in blobs.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "all.npz", **blobs)
    config, found = validated(small()), []
    for name in (f"npz:{tmp_path}/all.npz", f"npy:{tmp_path}"):
        dataset = load_dataset(name)
        network = networks.create(config.model, len(dataset.class_names))
        task = classification(dataset, network, parse_prior(config.prior))
        found.append(run(MinibatchSampling(config, task))[1])
    assert isinstance(dataset, OnDisk)
    loaded, mapped = ([draw.params for draw in one] for one in found)
    assert len(loaded) == 5
    jax.tree.map(np.testing.assert_array_equal, loaded, mapped)
