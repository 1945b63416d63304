"""Sampling through `ensemble.train`: what a run leaves, how it goes on, what it refuses."""

import json
import math

import arviz
import jax
import numpy as np
import pytest
import scipy.special
from conftest import small_config
from etils import epath
from run_parts import check_scores, draws_of, validated

import ensemble
from ensemble import RunFailed, UserError
from ensemble.draws.store import Draws
from ensemble.method import Status
from ensemble.methods.mcmc import start
from ensemble.methods.mcmc.sampling import Sampling
from ensemble.run.loop import create_task
from ensemble.sources.data_forms import recognise


def sampling_config(**overrides):
    """A regression on the blobs, of two chains on two devices.

    Every number of draws that is logged at a time is a program to compile: here are few.
    """
    hmc = {
        "step_size": 0.1,
        "num_leapfrog_steps": 5,
        "num_warmup": 20,
        "num_samples": 30,
        "thin": 3,
    } | overrides.pop("sampler", {})
    config = {
        "model": "logistic_regression",
        "method": "hmc",
        "prior": "normal(1)",
        "num_chains": 2,
        "num_devices": 2,
        "log_every_steps": 20,
        "sampler": hmc,
    }
    return {**config, **overrides}


def report_of(workdir):
    return json.loads((workdir / "report.json").read_text())


def stored(workdir, split="test"):
    with np.load(workdir / "predictions" / f"{split}.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def values_of(workdir):
    draws = draws_of(workdir)
    return draws.scalars(), *draws.positions()


@pytest.fixture(scope="module")
def finished(blobs, tmp_path_factory):
    """A run that keeps every draw, and its result."""
    workdir = tmp_path_factory.mktemp("posterior")
    config = sampling_config(sampler={"thin": 1})
    return workdir, ensemble.train(config, data=blobs, workdir=str(workdir))


@pytest.mark.check
def test_predictions_are_the_averages_over_all_draws(finished, blobs):
    workdir, result = finished
    _, positions, numbers = values_of(workdir)
    assert numbers.tolist() == list(range(20, 50))
    kernel, bias = (np.float64(positions["Dense_0"][name]) for name in ("kernel", "bias"))
    dataset = result.predictor.task.dataset
    for split in ("validation", "test"):
        inputs, labels = dataset.splits[split]
        x = (inputs.astype(np.float64) - dataset.shift) * dataset.scale
        logits = np.einsum("nf,cdfk->cdnk", x, kernel)
        log_probs = scipy.special.log_softmax(logits + bias[:, :, None], axis=-1)
        probs = np.exp(log_probs)
        predictions = stored(workdir, split)
        np.testing.assert_allclose(np.exp(predictions["log_probs"]), probs.mean(axis=1), atol=1e-5)
        entropies = -(probs * log_probs).sum(axis=-1).mean(axis=1)
        np.testing.assert_allclose(predictions["entropies"], entropies, atol=1e-5)
        report = report_of(workdir)
        assert report[split]["scores"]["aleatoric"]["value"] == pytest.approx(
            entropies.mean(), abs=1e-5
        )
        accuracy = (log_probs.argmax(axis=-1) == labels).mean()
        nll = -log_probs[..., np.arange(len(labels)), labels].mean()
        brier = ((probs - np.eye(3)[labels]) ** 2).sum(axis=-1).mean()
        expected = {"accuracy": accuracy, "nll": nll, "brier": brier}
        assert report["average_draw"][split] == pytest.approx(expected, rel=1e-4)


@pytest.mark.check
def test_the_report_is_as_for_members_and_has_its_diagnostics(finished):
    workdir, result = finished
    report = report_of(workdir)
    own = {"identity", "checksum"}  # Of the file.
    assert report == json.loads(json.dumps(result.report)) | {key: report[key] for key in own}
    assert report["method"] == "hmc"
    assert report["live_members"] == [0, 1]
    labels = stored(workdir)["targets"]
    arrays = stored(workdir)
    check_scores(report["test"], arrays["log_probs"], labels, arrays["entropies"])
    posterior = report["posterior"]
    scalars, _, _ = values_of(workdir)
    assert posterior["num_samples"] == 30
    assert posterior["num_warmup"] == 20
    assert posterior["num_chains"] == 2
    assert posterior["temperature"] == 1
    assert posterior["num_gradients"] == scalars["num_gradients"].sum()
    assert posterior["accept"] == pytest.approx(scalars["acceptance_rate"][:, 20:].mean())
    assert posterior["step_size"] == scalars["step_size"][:, -1].tolist()
    tracked = [name for name in scalars if name.startswith("log_prob_")]
    assert len(tracked) == min(100, report["dataset"]["num_examples"]["validation"])
    rhats = {
        name: float(arviz.rhat(np.float64(scalars[name][:, 20:])))
        for name in ["log_density", *tracked]
    }
    assert posterior["rhat_max"] == pytest.approx(max(rhats.values()))
    assert posterior["rhat_worst"] == max(rhats, key=rhats.get)
    # Chunks of a new length compile, and say nothing of speed: one alone has had its length before.
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    rates = [
        r["posterior/gradients_per_second"]
        for r in records
        if "posterior/gradients_per_second" in r
    ]
    assert len(rates) == 2  # Not of the first chunk, which compiled.
    assert min(rates) <= posterior["gradients_per_second"] <= max(rates)
    assert 0 < posterior["ess_per_second"] < math.inf
    names = {path.name for path in (workdir / "plots").iterdir()}
    assert {"traces.png", "ranks.png", "reliability.png", "training.png"} <= names


@pytest.mark.check
def test_arviz_reads_the_posterior(finished):
    workdir, _ = finished
    data = arviz.from_netcdf(workdir / "posterior.nc")
    assert data.posterior.log_density.shape == (2, 30)
    assert data.params["Dense_0.kernel"].shape == (2, 30, 6, 3)
    assert data.sample_stats.lp.shape == (2, 30)


@pytest.mark.check
def test_loaded_it_predicts_with_draws(finished, blobs):
    workdir, result = finished
    predictor = ensemble.load(workdir)
    inputs = result.predictor.task.dataset.splits["test"].inputs
    prediction = predictor(inputs)
    assert prediction.member_log_probs.shape == (60, len(inputs), 3)
    np.testing.assert_allclose(
        prediction.probs, np.exp(stored(workdir)["log_probs"]).mean(axis=0), atol=1e-5
    )
    chains = predictor.predict_members(inputs).arrays
    np.testing.assert_allclose(chains["log_probs"], stored(workdir)["log_probs"], atol=1e-4)
    np.testing.assert_allclose(chains["entropies"], stored(workdir)["entropies"], atol=1e-4)
    np.testing.assert_allclose(prediction.aleatoric, chains["entropies"].mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(result.predictor(inputs).probs, prediction.probs, atol=1e-6)


@pytest.mark.check
def test_it_is_evaluated_compared_and_exported(finished, blobs, tmp_path):
    workdir, _ = finished
    other = tmp_path / "sgd"
    config = small_config(model="logistic_regression", num_epochs=2)
    ensemble.train(config, data=blobs, workdir=str(other))
    evaluation = ensemble.evaluate(
        workdir, tmp_path / "out", ["uniform"], [other], data=blobs, num_devices=2
    )
    assert evaluation["members"] == [0, 1]
    assert evaluation["posterior"] == report_of(workdir)["posterior"]
    (found,) = (one for one in evaluation["findings"] if one["code"].startswith("convergence."))
    assert found["code"] == "convergence.few_draws"
    assert found["numbers"]["num_samples"] == 30
    assert 0 <= evaluation["compare"][0]["agreement"] <= 1
    assert evaluation["test"]["scores"]["aleatoric"]["value"] == pytest.approx(
        stored(workdir)["entropies"].mean(), rel=1e-5
    )
    from ensemble.export import export

    inputs = blobs["inputs"][:5]
    predictor = ensemble.load(workdir)
    assert predictor.description == "60 draws of 2 chains"
    model = jax.export.deserialize(export(predictor))
    np.testing.assert_allclose(model.call(inputs)["probs"], predictor(inputs).probs, atol=1e-5)


@pytest.mark.soak  # Of a chain: `test_kernels.py`; of all methods `test_killed.py`.
@pytest.mark.parametrize("method", ["hmc", "mclmc"])
def test_chunks_and_a_resumption_change_no_bit(method, blobs, tmp_path):
    hmc = {"num_warmup": 12, "num_samples": 24, "step_size": 0.05}
    whole = ensemble.train(
        sampling_config(method=method, log_every_steps=12, sampler=hmc),
        data=blobs,
        workdir=str(tmp_path / "whole"),
    )
    # The warm-up ends within a chunk of 8 draws, as does the first part; every third is kept.
    short = hmc | {"num_samples": 8}
    for num_chunk, settings in [(8, short), (4, hmc)]:
        parts = ensemble.train(
            sampling_config(method=method, log_every_steps=num_chunk, sampler=settings),
            data=blobs,
            workdir=str(tmp_path / "parts"),
        )
    for split in ("validation", "test"):
        ours, theirs = (stored(tmp_path / name, split) for name in ("whole", "parts"))
        np.testing.assert_array_equal(ours["log_probs"], theirs["log_probs"])
        np.testing.assert_array_equal(ours["entropies"], theirs["entropies"])
    ours, theirs = (values_of(tmp_path / name) for name in ("whole", "parts"))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    timed = {"gradients_per_second", "ess_per_second"}
    before, after = (one.report["posterior"] for one in (whole, parts))
    assert {k: before[k] for k in before.keys() - timed} == {
        k: after[k] for k in after.keys() - timed
    }


@pytest.mark.parametrize(
    ("num_chains", "numbers_of_devices"),
    [
        # `test_every_method.py` moves chains to other devices on every save.
        pytest.param(2, (8,), marks=pytest.mark.check),
        pytest.param(2, (1,), marks=pytest.mark.check),
        pytest.param(3, (4,), marks=pytest.mark.soak),
    ],
)
def test_the_number_of_devices_changes_nothing(num_chains, numbers_of_devices, blobs, tmp_path):
    config = sampling_config(
        num_chains=num_chains, sampler={"num_warmup": 3, "num_samples": 3, "thin": 1}
    )
    runs = []
    for devices in (2, *numbers_of_devices):
        workdir = tmp_path / str(devices)
        ensemble.train({**config, "num_devices": devices}, data=blobs, workdir=str(workdir))
        runs.append((values_of(workdir), stored(workdir)))
    (ours, predicted), *others = runs
    for theirs, also_predicted in others:
        for name, values in ours[0].items():
            np.testing.assert_allclose(values, theirs[0][name], rtol=1e-3, atol=2e-3)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3), ours[1], theirs[1])
        np.testing.assert_allclose(predicted["log_probs"], also_predicted["log_probs"], atol=1e-3)


@pytest.mark.soak
def test_a_burn_in_is_recorded_and_does_not_count(blobs, tmp_path):
    hmc = {"num_warmup": 4, "num_burn_in": 6, "num_samples": 6, "thin": 2}
    config = sampling_config(sampler=hmc, log_every_steps=8)  # A chunk ends where the burn-in does.
    report = ensemble.train(config, data=blobs, workdir=str(tmp_path)).report
    scalars, _, numbers = values_of(tmp_path)
    assert scalars["log_density"].shape == (2, 16)
    assert numbers.tolist() == [11, 13, 15]
    assert report["posterior"]["num_samples"] == 6
    assert np.unique(scalars["step_size"][0, 4:]).size == 1
    assert report["average_draw"]["validation"]["nll"] == pytest.approx(
        scalars["nll"][:, numbers].mean(), rel=1e-5
    )


@pytest.mark.soak
def test_a_run_goes_on_on_other_devices(blobs, tmp_path):
    """Which pad the splits otherwise."""
    for num_devices, num_samples in [(2, 4), (8, 8)]:
        config = sampling_config(
            num_chains=1,
            num_devices=num_devices,
            log_every_steps=4,
            sampler={"num_warmup": 4, "num_samples": num_samples, "thin": 1},
        )
        ensemble.train(config, data=blobs, workdir=str(tmp_path / "moved"))
    ensemble.train({**config, "num_devices": 2}, data=blobs, workdir=str(tmp_path / "stayed"))
    for split in ("validation", "test"):
        moved, stayed = (stored(tmp_path / name, split) for name in ("moved", "stayed"))
        for name in ("log_probs", "entropies"):
            np.testing.assert_allclose(moved[name], stayed[name], atol=1e-3)


@pytest.mark.soak
def test_a_start_from_a_posterior_is_the_last_draw_of_each_chain(finished, blobs, tmp_path):
    workdir, _ = finished
    config = sampling_config(
        init_from=str(workdir),
        sampler={"num_warmup": 0, "num_samples": 1, "thin": 1, "step_size": 1e-5},
    )
    ensemble.train(config, data=blobs, workdir=str(tmp_path))
    _, before, _ = values_of(workdir)
    _, after, _ = values_of(tmp_path)
    np.testing.assert_allclose(
        after["Dense_0"]["kernel"][:, 0], before["Dense_0"]["kernel"][:, -1], atol=1e-3
    )


@pytest.mark.soak
def test_a_start_from_members_is_where_they_are(blobs, tmp_path):
    members = tmp_path / "members"
    trained = ensemble.train(
        small_config(model="logistic_regression"), data=blobs, workdir=str(members)
    )
    config = sampling_config(
        init_from=str(members),
        sampler={"num_warmup": 0, "num_samples": 1, "thin": 1, "step_size": 1e-5},
    )
    ensemble.train(config, data=blobs, workdir=str(tmp_path / "run"))
    _, positions, _ = values_of(tmp_path / "run")
    np.testing.assert_allclose(
        positions["Dense_0"]["kernel"][:, 0],
        trained.predictor.fitted.sets["params"]["Dense_0"]["kernel"][:2],
        atol=1e-3,
    )
    for change, line in [
        ({"model": "mlp"}, "has the model 'logistic_regression', this run 'mlp'"),
        ({"seed": 1}, "has learned other data, arrays"),
        ({"num_chains": 5}, "has 4 live members for 5 chains; lower config.num_chains"),
    ]:
        with pytest.raises(UserError, match=line):
            ensemble.train({**config, **change}, data=blobs)


@pytest.mark.soak
def test_the_map_is_a_start_and_kronecker_mass_a_help(blobs, tmp_path):
    hmc = {"num_warmup": 64, "num_samples": 96, "num_leapfrog_steps": 3, "step_size": 0.3}
    found = {}
    for mass in ("identity", "kronecker"):
        config = sampling_config(init_from="map", log_every_steps=32, sampler={**hmc, "mass": mass})
        workdir = tmp_path / mass
        found[mass] = ensemble.train(config, data=blobs, workdir=str(workdir)).report["posterior"]
    assert found["kronecker"]["ess_bulk_min"] > 1.4 * found["identity"]["ess_bulk_min"]
    assert found["kronecker"]["rhat_max"] < 1.1
    assert found["kronecker"]["monte_carlo"]["log_density"]["mean"] == pytest.approx(
        found["identity"]["monte_carlo"]["log_density"]["mean"], abs=3
    )
    # Resumed, it goes on in the coordinates that it began in.
    config["sampler"]["num_samples"] = 128
    again = ensemble.train(config, data=blobs, workdir=str(tmp_path / "kronecker"))
    assert again.report["posterior"]["num_samples"] == 128
    assert again.report["posterior"]["rhat_max"] < 1.1


@pytest.mark.soak
def test_it_ends_when_it_has_converged(blobs, tmp_path):
    config = sampling_config(
        init_from="map",
        stop_at={"rhat": 1.2, "ess": 20.0},
        sampler={"mass": "kronecker", "num_samples": 500, "step_size": 0.3},
    )
    result = ensemble.train(config, data=blobs, workdir=str(tmp_path))
    posterior = result.report["posterior"]
    assert posterior["num_samples"] < 500
    assert posterior["rhat_max"] < 1.2
    assert posterior["ess_bulk_min"] > 20
    before = stored(tmp_path)["log_probs"]
    again = ensemble.train(config, data=blobs, workdir=str(tmp_path))
    assert again.report["posterior"]["num_samples"] == posterior["num_samples"]
    assert posterior["ess_bulk_min"] > 100  # Or R-hat would be luck.
    np.testing.assert_array_equal(stored(tmp_path)["log_probs"], before)


@pytest.mark.soak
def test_it_ends_when_its_predictive_is_known(blobs, tmp_path):
    config = sampling_config(
        init_from="map",
        stop_at={"predictive_error": 0.1},
        sampler={"mass": "kronecker", "num_samples": 2000, "step_size": 0.3},
    )
    result = ensemble.train(config, data=blobs, workdir=str(tmp_path))
    posterior = result.report["posterior"]
    assert 50 <= posterior["num_samples"] < 2000
    assert posterior["predictive"]["error"] < 0.1
    low, high = posterior["predictive"]["nll_interval"]
    assert low < posterior["predictive"]["nll"] < high
    config["sampler"]["num_samples"] = 4000  # It stays where it was.
    again = ensemble.train(config, data=blobs, workdir=str(tmp_path)).report["posterior"]
    assert again["num_samples"] == posterior["num_samples"]
    evaluation = ensemble.evaluate(str(tmp_path), datasets=[], data=blobs, compare=str(tmp_path))
    assert evaluation["chain_error"]["nll"] == pytest.approx(
        evaluation["test"]["scores"]["nll"]["value"]
    )


@pytest.mark.soak
def test_a_resumed_run_is_judged_when_the_straight_one_was(blobs, tmp_path):
    config = sampling_config(
        init_from="map",
        log_every_steps=10,
        eval_every_epochs=4,
        stop_at={"rhat": 1.5, "ess": 0.0},
        sampler={"mass": "kronecker", "num_samples": 900, "step_size": 0.3},
    )
    straight = ensemble.train(config, data=blobs).report["posterior"]["num_samples"]
    assert (20 + straight) % 40 == 0
    assert straight < 900
    # A checkpoint where the run has converged already, between two evaluations.
    for num_samples in (straight - 10, 900):
        config["sampler"]["num_samples"] = num_samples
        result = ensemble.train(config, data=blobs, workdir=str(tmp_path))
    assert result.report["posterior"]["num_samples"] == straight


@pytest.mark.soak
def test_a_temperature_is_written_into_every_result(blobs):
    config = sampling_config(temperature=0.5, sampler={"num_warmup": 4, "num_samples": 4})
    report = ensemble.train(config, data=blobs).report
    assert report["posterior"]["temperature"] == 0.5
    from ensemble.report.text import summary_sentence

    assert "temperature 0.5: this is not Bayes" in summary_sentence(report)


@pytest.mark.check
def test_a_network_is_sampled_and_all_is_learned_from(blobs, tmp_path):
    data = {f"train_{name}": values for name, values in blobs.items()}
    config = sampling_config(
        model="tiny",
        hold_out=False,
        sampler={"step_size": 0.01, "num_samples": 20, "mass": "diagonal"},
    )
    report = ensemble.train(config, data=data, workdir=str(tmp_path)).report
    assert report["num_train_examples"] == 203
    assert "test" not in report
    assert report["posterior"]["num_scalars"] == 1
    assert (tmp_path / "plots" / "traces.png").exists()
    assert ensemble.load(tmp_path)(blobs["inputs"][:4]).probs.shape == (4, 3)


@pytest.mark.check
def test_a_chain_that_never_moves_is_named_and_left_out(blobs, tmp_path):
    config = validated(sampling_config(log_every_steps=10))
    method = Sampling(config, create_task(config, recognise(blobs)))
    state, draws = method.init(jax.random.key(0)), Draws(epath.Path(tmp_path))
    while not method.finished(state):
        state, info = method.advance(state)
        method.record(info, draws)
    assert set(method.status(state).values()) == {Status.ACTIVE}
    stuck = state.replace(num_moves=state.num_moves.at[1].set(0))
    assert method.status(stuck) == {0: Status.ACTIVE, 1: Status.STUCK}
    from ensemble.report.results import build_report, live_predictions

    predictions, status = live_predictions(method, stuck, ["validation", "test"], draws)
    assert predictions["test"].arrays["log_probs"].shape[0] == 1
    timing = {"member_examples_per_second": None}
    task = method.task
    report = build_report(config, task.describe(), 1, task.scored(), predictions, status, timing)
    assert report["failed_members"] == {1: "stuck"}
    assert report["live_members"] == [0]


@pytest.mark.check
def test_chains_that_all_refuse_end_the_run(blobs):
    config = sampling_config(sampler={"step_size": 1e6, "num_warmup": 0, "num_samples": 20})
    line = (
        r"all of the \d chains under way became stuck by step \d+; lower config.sampler.step_size"
    )
    with pytest.raises(RunFailed, match=line):
        ensemble.train(config, data=blobs)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"method": "gibbs"}, "config.method='gibbs'"),
        ({"sampler": {"mass": "round"}}, "low_rank, dense"),
        ({"sampler": {"num_samples": 0}}, "config.sampler.num_samples=0"),
        ({"prior": "none"}, "config.prior='none'.*'normal"),
        ({"prior": "normal(0)"}, "positive scales"),
        (
            {"augment": {"shift": 1}},
            "config.augment.shift=1.*'sgd', 'snapshots', .*'sgld'.*'sghmc'",
        ),
        ({"label_smoothing": 0.1}, "label_smoothing=0.1.*config.method='sgd'"),
        ({"beta_nll": 0.5}, "config.method='sgd'.*likelihood"),
        ({"num_epochs": 3}, "leave.*config.sampler.num_samples says"),
        ({"method": "mclmc", "sampler": {"mass": "dense"}}, "is for hmc and nuts"),
        ({"model": "tiny", "sampler": {"mass": "kronecker"}}, "needs a linear model"),
        ({"init_from": "/nowhere"}, "/nowhere is not a workdir"),
        ({"stop_at": {"rhat": 0.9}}, "config.stop_at.rhat=0.9 must be above 1"),
        (
            {"model": "mlp", "sampler": {"mass": "dense"}, "init_from": "map"},
            "would take [0-9.]+ GiB a chain",
        ),
        ({"num_chains": 0}, "config.num_chains=0 must be positive"),
        ({"sampler": {"thin": 31}}, "config.sampler.thin=31.*config.sampler.num_samples=30"),
        ({"init_from": "Map"}, "Map is.*'prior' or 'map'"),
    ],
)
def test_bad_input_is_one_line(change, line, blobs, monkeypatch):
    monkeypatch.setattr(start, "find_map", None)  # Nothing that takes long comes before.
    with pytest.raises(UserError, match=line):
        ensemble.train(sampling_config(**change), data=blobs)


@pytest.mark.parametrize(
    "change", [{"temperature": 0.5}, {"init_from": "map"}, {"stop_at": {"ess": 400.0}}]
)
def test_what_only_samplers_heed_is_refused_by_sgd(change, blobs):
    with pytest.raises(UserError, match=rf"config.{next(iter(change))}.* is for "):
        ensemble.train(small_config(**change), data=blobs)


def test_the_error_of_predictions_needs_a_split_that_is_predicted(blobs):
    data = {f"train_{name}": values for name, values in blobs.items()}
    config = sampling_config(hold_out=False, stop_at={"predictive_error": 0.1})
    with pytest.raises(UserError, match=r"predictive_error=0\.1"):
        ensemble.train(config, data=data | {"class_names": ["a", "b", "c"]})


@pytest.mark.parametrize(
    ("num_chains", "num_devices", "line"),
    [
        (3, 4, "3 chains in 1 group of 4 devices, which split the examples."),
        (4, 8, "4 chains in 4 groups of 2 devices, which split the examples."),
        (4, 4, "4 chains on 4 devices."),
        (4, 1, None),
    ],
)
def test_how_chains_and_examples_share_devices_is_logged(
    num_chains, num_devices, line, blobs, caplog
):
    caplog.set_level("INFO", logger="ensemble")
    config = validated(sampling_config(num_chains=num_chains, num_devices=num_devices))
    task = create_task(config, recognise(blobs))
    caplog.clear()
    Sampling(config, task)
    assert caplog.messages == ([line] if line else [])


def test_more_shards_than_examples(blobs):
    data = {f"train_{name}": values[:3] for name, values in blobs.items()}
    data["class_names"] = ["a", "b", "c"]
    config = sampling_config(num_chains=1, num_devices=8, hold_out=False)
    with pytest.raises(UserError, match=r"3 examples.*spread.*8 shards"):
        ensemble.train(config, data=data)
