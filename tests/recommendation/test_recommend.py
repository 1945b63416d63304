"""Recommendations from end to end: users are sharded, sampled, resumed, scored, asked for."""

import json
import shutil

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.special
from programs import run_here
from run_parts import draws_of, validated

import ensemble
from ensemble import UserError
from ensemble.methods.mcmc.programs import Programs
from ensemble.recommendation.matrix_factorisation import MatrixFactorisation
from ensemble.run.loop import create_task

USERS = 41  # Which 2 and 4 shards do not divide.


def watch_config(**overrides):
    """A factorisation of generated watches, of two chains."""
    hmc = {
        "step_size": 0.05,
        "num_leapfrog_steps": 8,
        "num_warmup": 40,
        "num_samples": 40,
        "thin": 2,
    } | overrides.pop("sampler", {})
    return {
        "dataset": f"watches:{USERS}x30",
        "model": "matrix_factorisation",
        "num_factors": 2,
        "method": "hmc",
        "prior": "normal(1)",
        "num_chains": 2,
        "num_devices": 4,
        "log_every_steps": 20,
        "sampler": hmc,
        **overrides,
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two chains, each on two shards."""
    workdir = tmp_path_factory.mktemp("watches")
    result = ensemble.train(watch_config(), workdir=str(workdir))
    return workdir, result


def values_of(workdir):
    draws = draws_of(workdir)
    return draws.scalars(), *draws.positions()


@pytest.mark.check
def test_the_report_lays_the_posterior_beside_simpler_models(finished):
    workdir, _ = finished
    report = json.loads((workdir / "report.json").read_text())
    assert report["dataset"]["num_examples"].keys() == {"train", "test"}
    assert report["recommendation"]["held_out"].keys() == {
        "posterior",
        "map",
        "biases",
        "popularity",
    }
    assert np.isfinite(report["posterior"]["rhat_max"])
    assert report["posterior"]["accept"] > 0.5
    # Of the same draws.
    held_out = report["recommendation"]["held_out"]["posterior"]["log_likelihood"]
    assert held_out == pytest.approx(-report["test"]["scores"]["nll"]["value"], abs=1e-4)
    names = {path.name for path in (workdir / "plots").iterdir()}
    assert {"recommended_titles.png", "recommended_genres.png", "traces.png"} <= names
    assert (workdir / "posterior.nc").exists()


@pytest.mark.check
def test_padding_is_not_on_disk_and_has_not_moved(finished):
    _, positions, _ = values_of(finished[0])
    assert positions["user_embeddings"].shape == (2, 20, USERS, 2)
    assert positions["user_bias"].shape == (2, 20, USERS)


@pytest.mark.soak
def test_a_resumption_changes_no_bit_and_may_be_on_other_devices(finished, tmp_path):
    ensemble.train(watch_config(sampler={"num_samples": 20}), workdir=str(tmp_path / "same"))
    shutil.copytree(tmp_path / "same", tmp_path / "other")
    ensemble.train(watch_config(), workdir=str(tmp_path / "same"))
    straight, resumed = values_of(finished[0]), values_of(tmp_path / "same")
    jax.tree.map(np.testing.assert_array_equal, straight, resumed)
    # Without padding: all users on one device.
    config = watch_config(num_devices=1, sampler={"num_samples": 22})
    ensemble.train(config, workdir=str(tmp_path / "other"))
    scalars, _, _ = values_of(tmp_path / "other")
    for name in ("log_density", "energy_error", "acceptance_rate", "log_prob_00"):
        now, before = (values[name][:, 60:62] for values in (scalars, straight[0]))
        np.testing.assert_allclose(now, before, rtol=2e-3, atol=2e-3, err_msg=name)


@pytest.mark.check
def test_no_users_factors_are_gathered():
    config = validated(watch_config(sampler={"num_samples": 2, "num_warmup": 0, "thin": 1}))
    programs = Programs(config, create_task(config, None), jax.devices())
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype),
        programs.layout.padded_shapes(programs.task.params_shapes()),
    )
    keys = jax.random.split(jax.random.key(0), 2)
    from ensemble.methods.mcmc.coordinates import identity

    data = programs.density.data
    state = jax.eval_shape(programs.first_state, keys, identity(), shapes, data)
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state,
        programs.shardings(state),
    )
    record = programs.new_record(num_draws=2)
    compiled = programs.run_chunk.lower(
        state, record, data, programs.splits["test"], *map(np.int32, (0, 0, 2))
    )
    text = compiled.compile().as_text()
    gathered = [line for line in text.splitlines() if "all-gather(" in line]
    # Two chains of 42 places and 2 factors: of one chain 42 x 2, of a shard 21 x 2.
    assert not [line for line in gathered if "42,2]" in line or ",42]" in line], gathered
    assert "all-reduce" in text  # It did run over several devices.


@pytest.mark.check
def test_who_has_watched_less_is_known_less(finished):
    workdir, _ = finished
    config = validated(watch_config())
    dataset = create_task(config, None).dataset
    _, positions, _ = values_of(workdir)
    counts = dataset.watches.watched.sum(axis=1, dtype=int)
    order = np.argsort(counts)
    spread = positions["user_bias"].std(axis=(0, 1))
    assert spread[order[:10]].mean() > 1.1 * spread[order[-10:]].mean()


@pytest.mark.soak
def test_who_has_watched_less_is_recommended_less_surely(finished):
    workdir, _ = finished
    dataset = create_task(validated(watch_config()), None).dataset
    counts = dataset.watches.watched.sum(axis=1, dtype=int)
    order, widths = np.argsort(counts), []
    for user in (*order[:8], *order[-8:]):
        user_id = dataset.watches.user_ids[user]
        found = ensemble.recommend(workdir, user_id, top=5).items
        # In log-odds: probabilities near 0 have narrow intervals anyway.
        ends = scipy.special.logit([[one.low, one.high] for one in found])
        widths.append(np.mean(ends[:, 1] - ends[:, 0]))
    assert np.mean(widths[:8]) > 1.1 * np.mean(widths[8:])


@pytest.mark.check
def test_an_answer_is_a_table_and_a_document(finished):
    answer = ensemble.recommend(finished[0], "u7", top=3)
    assert (answer.user, answer.of, answer.num_draws) == ("u7", "probability", 40)
    assert (answer.from_prior, answer.notes) == ((), ())
    text = str(answer)
    assert text.startswith(f"User u7 has watched {answer.num_seen} items.\n\ntitle")
    assert len(text.splitlines()) == 2 + 2 + 3
    document = json.loads(json.dumps(answer.document(), allow_nan=False))
    assert document["num_draws"] == 40
    first, *others = document["recommendations"]
    assert first["title"] in text
    assert first["item"] == answer.items[0].item
    assert len(others) == 2
    assert 0 < first["low"] < first["probability"] == answer.items[0].mean < first["high"] < 1


@pytest.mark.check
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"top": 0}, "top=0 must be a positive whole number; use 20"),
        ({"top": float("nan")}, "top=nan must be a positive whole"),
        ({"top": True}, "top=True must be"),
        ({"user": 7.5}, "user=7.5 must be text or a whole number"),
        ({"user": None}, "user=None must be text"),
        ({"item": float("nan")}, "item=nan must be text or a whole number"),
        ({"data": 5}, "data is a int"),
    ],
)
def test_bad_arguments_are_one_line(finished, arguments, line):
    with pytest.raises(UserError, match=line) as error:
        ensemble.recommend(finished[0], **{"user": "u7", **arguments})
    assert "\n" not in str(error.value)


@pytest.mark.check
def test_it_predicts_pairs_and_is_not_evaluated_as_a_classifier(finished):
    predictor = ensemble.load(finished[0])
    assert predictor.description == "40 draws of 2 chains"
    _, positions, _ = values_of(finished[0])
    users, movies = positions["user_embeddings"][..., 7, :], positions["movie_embeddings"]
    logits = np.einsum("ckd,ckd->ck", users, movies[..., 3, :])
    logits += positions["user_bias"][..., 7] + positions["movie_bias"][..., 3]
    probs = predictor(np.array([[7, 3]], np.int32)).probs
    np.testing.assert_allclose(probs[0, 1], np.mean(1 / (1 + np.exp(-logits))), rtol=1e-5)
    for pair, line in (
        ([USERS, 3], f"user {USERS} is .*0 to 40"),
        ([-1, 3], "user -1 is unknown"),
        ([7, 30], "item 30 is unknown"),
        ([7.5, 3], "user 7.5 is unknown"),
    ):
        with pytest.raises(UserError, match=line):
            predictor(np.array([pair]))
    variables = {"params": {name: leaf[0, 0] for name, leaf in positions.items()}}
    logits, _ = MatrixFactorisation().apply(variables, np.array([[7, 3], [USERS, 3], [7, -1]]))
    assert np.isnan(logits[:, 1]).tolist() == [False, True, True]
    with pytest.raises(UserError, match="has learned who watches what"):
        ensemble.evaluate(finished[0])


@pytest.mark.check
def test_the_program_answers_and_ends_in_one_line(finished, tmp_path):
    def run(*arguments):
        return run_here("recommend.py", f"--workdir={finished[0]}", *arguments)

    good = run("--user=u7", "--top=2")
    assert good.returncode == 0, good.stderr
    assert good.stdout == f"{ensemble.recommend(finished[0], 'u7', top=2)}\n"
    said = run("--user=me", "--item=Movie 3", "--json")
    answer = ensemble.recommend(finished[0], "me", item="Movie 3")
    assert json.loads(said.stdout) == answer.document()
    bad = run_here("recommend.py", f"--workdir={tmp_path}", "--user=u7")
    assert bad.returncode == 2
    assert bad.stderr.splitlines()[-1].startswith(f"recommend.py: {tmp_path} is not a workdir")
    assert "Traceback" not in bad.stderr


@pytest.mark.check
def test_draws_that_were_removed_are_missed(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    sorted((tmp_path / "run" / "draws").iterdir())[-1].unlink()
    with pytest.raises(UserError, match=" 60 draws of 80"):
        ensemble.recommend(tmp_path / "run", "u7")


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a workdir"):
        ensemble.recommend(tmp_path, "u7")


@pytest.mark.check
def test_of_new_users_and_items_the_prior_answers_and_it_is_said(finished):
    workdir, result = finished
    answer = ensemble.recommend(workdir, "me", top=3)
    assert answer.from_prior == ("user",)
    assert answer.notes == ("Nothing was learned of user me: the answer is the prior's.",)
    assert str(answer).startswith(f"{answer.notes[0]}\nUser me has watched 0 items")
    answer = ensemble.recommend(workdir, "me", item="unheard")
    assert answer.from_prior == ("user", "item")
    assert len(answer.notes) == 2
    (one,) = answer.items
    # Two factors, two biases, all N(0, 1): log-odds of variance 4, symmetric around 0.
    assert one.item == one.title == "unheard"
    assert one.mean == pytest.approx(0.5, abs=0.2)
    assert one.low < 0.25 < 0.75 < one.high
    known = ensemble.recommend(workdir, "u7", item="Movie 3")
    assert known.from_prior == ()
    (one,) = known.items
    p = result.predictor(np.array([[6, 2]], np.int32)).probs[0, 1]
    assert one.mean == pytest.approx(p, rel=1e-4)


@pytest.mark.check
def test_clicks_with_weights_are_learned_and_recommended(tmp_path):
    watches = create_task(validated(watch_config()), None).dataset.watches
    users, items = np.nonzero(watches.watched)
    weights = np.where(items % 3 == 0, 5.0, 1.0)
    frame = pd.DataFrame({"user": users, "item": items, "weight": weights})
    few = {"num_warmup": 4, "num_samples": 6, "num_leapfrog_steps": 2}
    config = {key: one for key, one in watch_config(sampler=few).items() if key != "dataset"}
    ensemble.train(config, frame, str(tmp_path / "run"), show_progress=False)
    answer = ensemble.recommend(tmp_path / "run", 7, top=3, data=frame)
    assert answer.num_seen == (users == 7).sum()
    with pytest.raises(UserError, match="has learned other data"):
        ensemble.recommend(tmp_path / "run", 7, data=frame.assign(weight=1))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"model": "cnn"}, "config.num_factors=2.*config.model='matrix_factorisation'"),
        ({"method": "mclmc"}, "config.method='mclmc'"),
        ({"sampler": {"mass": "low_rank"}}, "sampler.mass='low_rank'"),
        ({"num_factors": 0}, "config.num_factors=0 must be positive"),
        ({"num_factors": 10**9}, r"2 chains.*71,000,000,071 parameters.*\d+\.\d GiB"),
        ({"dataset": "watches:3x30"}, "3 users cannot be spread over 4 shards"),
        ({"dataset": "watches:3by30"}, "must give the numbers of users"),
        ({"prior": "normal(1/sqrt(fan_in))"}, "fan-in.*watches:41x30"),
        ({"hold_out": False}, "config.hold_out=False.*True.*watches:41x30"),
        ({"dataset": "digits"}, "'matrix_factorisation' needs"),
        ({"likelihood": "gaussian"}, "'gaussian' must be categorical, or gaussian_shared"),
        ({"likelihood": "gaussian_shared"}, "'gaussian_shared' is for ratings:FILE.*watches alone"),
        ({"ratings.split": "time"}, "config.ratings.split is for ratings:FILE"),
        ({"ratings.split": "day"}, "ratings.split='day' must be one of random, time, user"),
        ({"dataset": "csv:x.csv"}, "csv:x.csv.*config.dataset"),
    ],
)
def test_bad_input_is_one_line(change, line):
    if change.get("dataset") == "watches:3x30":
        change = {**change, "num_chains": 1}
    with pytest.raises(UserError, match=line) as caught:
        ensemble.train(watch_config(**change))
    assert "\n" not in str(caught.value)
