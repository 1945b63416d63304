"""`ensemble.train`: what a run leaves in its workdir, and how it goes on."""

import collections
import json
import logging
import re
import shutil

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from run_parts import check_scores, checkpoints_of, held

import ensemble
from ensemble import RunFailed, UserError, networks
from ensemble.scoring.sections import values_in


def records_of(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def events_of(workdir, run=""):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(workdir / "events" / run), size_guidance={"scalars": 0})
    events.Reload()
    return events


@pytest.fixture(scope="module")
def finished(blobs, tmp_path_factory):
    """A workdir and the result of the run that made it."""
    workdir = tmp_path_factory.mktemp("finished")
    return workdir, ensemble.train(small_config(), data=blobs, workdir=str(workdir))


@pytest.mark.check
def test_the_report_has_every_number_and_the_scores_of_the_stored_predictions(finished):
    workdir, result = finished
    report = json.loads((workdir / "report.json").read_text())
    own = {"identity", "checksum"}  # Of the file.
    assert report == json.loads(json.dumps(result.report)) | {key: report[key] for key in own}
    assert report["format"] == 1
    assert report["method"] == "sgd"
    assert report["num_members"] == 4
    assert report["live_members"] == [0, 1, 2, 3]
    assert report["failed_members"] == {}
    assert report["num_train_examples"] == report["dataset"]["num_examples"]["train"]
    assert sum(report["dataset"]["num_examples"].values()) == 203
    assert report["config"]["ensemble_size"] == 4
    assert all(value > 0 for value in report["timing"].values())
    for split in ("validation", "calibration", "test"):
        with np.load(workdir / "predictions" / f"{split}.npz") as predictions:
            log_probs, labels = predictions["log_probs"], predictions["targets"]
            assert predictions["members"].tolist() == [0, 1, 2, 3]
        assert log_probs.dtype == np.float32
        assert log_probs.shape == (4, report["dataset"]["num_examples"][split], 3)
        if split in report:
            check_scores(report[split], log_probs, labels)
    names = {path.name for path in (workdir / "plots").iterdir()}
    assert names == {"members.png", "training.png", "entropy.png", "reliability.png"}
    assert report["test"]["scores"]["accuracy"]["value"] > 0.6


def test_the_predictor_returned_and_the_one_loaded_agree_with_the_stored_predictions(
    finished, blobs
):
    workdir, result = finished
    loaded = ensemble.load(workdir)
    with np.load(workdir / "predictions" / "test.npz") as predictions:
        stored = predictions["log_probs"]
    inputs = blobs["inputs"]
    assert result.predictor(inputs[:1]).probs.shape == (1, 3)
    ours, theirs = result.predictor(inputs), loaded(inputs)
    np.testing.assert_allclose(ours.member_log_probs, theirs.member_log_probs, atol=1e-5)
    np.testing.assert_allclose(ours.probs.sum(axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(ours.total, ours.aleatoric + ours.epistemic, atol=1e-6)
    # Every stored row is the prediction of one of the inputs.
    for row in stored.swapaxes(0, 1):
        gaps = np.abs(theirs.member_log_probs - row[:, None]).max(axis=(0, 2))
        assert gaps.min() < 1e-5
    with pytest.raises(UserError, match=r"\(2, 5\).*\[N, 6\]"):
        loaded(np.zeros((2, 5)))
    with pytest.raises(UserError, match="with N > 0"):
        loaded(inputs[:0])


def test_metrics_and_events_hold_the_same_scalars_each_step_once(finished):
    workdir, _ = finished
    records = records_of(workdir)
    events = events_of(workdir)
    expected = collections.defaultdict(dict)
    for record in records:
        for tag, value in record.items():
            if "/" in tag:
                assert record["step"] not in expected[tag]
                expected[tag][record["step"]] = value
    assert {"train/member_03/loss", "validation/ensemble/ece", "train/learning_rate"} <= set(
        expected
    )
    assert set(expected) == set(events.Tags()["scalars"])
    for tag, values in expected.items():
        assert [event.step for event in events.Scalars(tag)] == sorted(values)
        np.testing.assert_allclose(
            [event.value for event in events.Scalars(tag)],
            [values[s] for s in sorted(values)],
            rtol=1e-6,
        )
    assert "validation/reliability" in events.Tags()["images"]
    assert "validation/entropy" in events.Tags()["histograms"]
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_the_same_command_on_a_finished_run_changes_nothing(finished, blobs):
    workdir, result = finished
    before = records_of(workdir)
    again = ensemble.train(small_config(), data=blobs, workdir=str(workdir))
    assert records_of(workdir) == before
    assert again.report["test"] == result.report["test"]


@pytest.mark.check
def test_more_epochs_go_on(finished, blobs, tmp_path):
    workdir = tmp_path / "more"
    shutil.copytree(finished[0], workdir)
    before = records_of(workdir)
    result = ensemble.train(small_config(num_epochs=5), data=blobs, workdir=str(workdir))
    records = records_of(workdir)
    assert records[: len(before)] == before
    assert records[-1]["epoch"] == 5
    straight = ensemble.train(small_config(num_epochs=5), data=blobs)
    np.testing.assert_allclose(
        result.report["test"]["scores"]["nll"]["members"],
        straight.report["test"]["scores"]["nll"]["members"],
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"learning_rate": 0.2}, "learning_rate: 0.1 -> 0.2"),
        ({"model": "mlp"}, "model: 'tiny' -> 'mlp'"),
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"ensemble_size": 3}, "has 4 members"),
        ({"num_epochs": 2}, "more than the"),
    ],
)
def test_another_experiment_is_refused_in_an_old_workdir(finished, blobs, change, line):
    with pytest.raises(UserError, match=line):
        ensemble.train(small_config(**change), data=blobs, workdir=str(finished[0]))


def test_other_data_are_refused_in_an_old_workdir(finished, blobs):
    data = {**blobs, "inputs": blobs["inputs"] + 1}
    with pytest.raises(UserError, match="other data"):
        ensemble.train(small_config(), data=data, workdir=str(finished[0]))


def test_a_second_run_in_a_live_workdir_is_refused(blobs, tmp_path):

    with held(tmp_path), pytest.raises(UserError, match="in use"):
        ensemble.train(small_config(), data=blobs, workdir=str(tmp_path))


def test_a_run_whose_checkpoints_are_gone_starts_again_and_says_so(
    finished, blobs, tmp_path, caplog
):
    workdir = tmp_path / "gone"
    shutil.copytree(finished[0], workdir)
    shutil.rmtree(workdir / "checkpoints")
    result = ensemble.train(small_config(), data=blobs, workdir=str(workdir))
    assert f"{workdir} has a run without a checkpoint: it starts again." in caplog.text
    assert result.report["test"] == finished[1].report["test"]


def test_a_corrupt_newest_checkpoint_gives_way_to_the_one_before(finished, blobs, tmp_path):
    workdir = tmp_path / "corrupt"
    shutil.copytree(finished[0], workdir)
    newest = max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name))
    for path in (newest / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:50])
    result = ensemble.train(small_config(), data=blobs, workdir=str(workdir))
    assert result.report["test"] == finished[1].report["test"]
    assert (workdir / "unreadable_checkpoints" / newest.name).is_dir()
    assert {path.name for path in (workdir / "checkpoints").iterdir()} >= {newest.name}
    strip = [{k: v for k, v in r.items() if "per_second" not in k} for r in records_of(workdir)]
    expected = [
        {k: v for k, v in r.items() if "per_second" not in k} for r in records_of(finished[0])
    ]
    assert strip == expected


def test_a_flipped_bit_is_noticed(finished, blobs, tmp_path):
    from ensemble.storage.checkpoint import _WHOLE
    from ensemble.storage.checksum import checksum

    arrays, meta = checkpoints_of(finished[0]).restore_latest()
    told = meta.pop(_WHOLE)
    assert checksum(arrays, meta) == told
    kernel = arrays["params"]["Dense_0"]["kernel"].copy()
    kernel.view(np.uint32)[0, 0, 0] ^= 1
    arrays["params"]["Dense_0"]["kernel"] = kernel
    assert checksum(arrays, meta) != told


def test_without_a_workdir_nothing_is_kept(blobs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = ensemble.train(small_config(num_epochs=1), data=blobs)
    assert result.report["live_members"] == [0, 1, 2, 3]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.check
def test_members_that_fail_are_named_and_left_out(blobs, tmp_path, caplog):
    config = small_config(model="explosive", ensemble_size=8, learning_rate=0.002, num_epochs=2)
    result = ensemble.train(config, data=blobs, workdir=str(tmp_path))
    failed = result.report["failed_members"]
    assert 0 < len(failed) < 8
    assert set(failed.values()) == {"non-finite"}
    live = result.report["live_members"]
    assert sorted([*live, *failed]) == list(range(8))
    for k in failed:
        assert f"Member {k} became non-finite" in caplog.text
    with np.load(tmp_path / "predictions" / "test.npz") as predictions:
        assert predictions["members"].tolist() == live
        assert np.isfinite(predictions["log_probs"]).all()
    assert len(result.report["test"]["scores"]["nll"]["members"]) == len(live)
    assert np.isfinite(result.report["test"]["scores"]["nll"]["value"])
    assert ensemble.load(tmp_path).members == tuple(live)
    last = records_of(tmp_path)[-1]
    assert last["failed_members"] == sorted(int(k) for k in failed)
    assert not any(f"/member_{int(k):02d}/" in tag for tag in last for k in failed)
    ensemble_scalars = {
        tag: value for r in records_of(tmp_path) for tag, value in r.items() if "/ensemble/" in tag
    }
    names = {tag.rpartition("/")[2] for tag in ensemble_scalars}
    assert names == values_in(result.report["validation"], "members").keys()
    assert all(value is not None for value in ensemble_scalars.values())
    again = ensemble.train(config, data=blobs, workdir=str(tmp_path))
    assert again.report["failed_members"] == failed


@pytest.mark.check
def test_on_nonfinite_stop_ends_the_run(blobs):
    config = small_config(model="explosive", ensemble_size=8, learning_rate=0.002)
    with pytest.raises(RunFailed, match=r"member \d .*non-finite"):
        ensemble.train({**config, "on_nonfinite": "stop"}, data=blobs)


@pytest.mark.check
def test_a_run_without_a_live_member_fails(blobs):
    config = small_config(model="explosive", learning_rate=1e6)
    with pytest.raises(RunFailed, match=r"all of the 4 members .*non-finite"):
        ensemble.train(config, data=blobs)


def test_the_ensemble_is_never_worse_in_nll_than_its_mean_member(finished):
    for split in ("validation", "test"):
        scores = finished[1].report[split]
        assert (
            scores["scores"]["nll"]["value"] <= np.mean(scores["scores"]["nll"]["members"]) + 1e-12
        )


@pytest.mark.check
def test_early_stopping_ends_the_run_and_is_reported(blobs, tmp_path, caplog):
    config = small_config(num_epochs=60, early_stopping_epochs=2, learning_rate=0.8)
    config["log_every_steps"] = 100
    caplog.set_level(logging.INFO, "ensemble")
    result = ensemble.train(config, data=blobs, workdir=str(tmp_path))
    assert result.report["stopped_early"] == [0, 1, 2, 3]
    assert records_of(tmp_path)[-1]["epoch"] < 60
    assert len(result.report["live_members"]) == 4
    (line,) = (line for line in caplog.messages if "stopped early" in line)
    found = re.fullmatch(r"All 4 members stopped early, at epochs (\d+) to (\d+); .*kept\.", line)
    last = max(record["epoch"] for record in records_of(tmp_path))
    assert 3 <= int(found[1]) < int(found[2]) == last
    assert any("; at most " in line for line in caplog.messages)


@pytest.mark.check
def test_one_member_scores_as_the_single_model(blobs):
    report = ensemble.train(small_config(ensemble_size=1), data=blobs).report
    for split in ("validation", "test"):
        single = {name: values[0] for name, values in values_in(report[split], "members").items()}
        ensemble_scores = values_in(report[split])
        assert {name: ensemble_scores[name] for name in single} == single
        assert report[split]["scores"]["disagreement"]["value"] == 0


@networks.register("faint")
class Faint(nn.Module):
    """Its parameters stay finite when its logits overflow."""

    num_classes: int

    @nn.compact
    def __call__(self, x):
        size = self.param("size", lambda key: 20.0 + 40.0 * nn.initializers.uniform(1.0)(key, ()))
        large = jnp.where(jnp.max(jnp.abs(x)) > 2.0, jnp.exp(2 * size), 0.0)
        return nn.Dense(self.num_classes)(x) + (large - large)


@pytest.mark.soak
@pytest.mark.parametrize("early_stopping_epochs", [0, 2])
def test_a_member_that_predicts_nan_is_left_out_too(blobs, tmp_path, early_stopping_epochs):
    config = small_config(
        model="faint",
        ensemble_size=8,
        num_epochs=2,
        learning_rate=1e-6,
        early_stopping_epochs=early_stopping_epochs,
        on_nonfinite="freeze",
    )
    quiet = {**blobs, "inputs": np.clip(blobs["inputs"], -1, 1)}
    data = {
        "train_inputs": quiet["inputs"][:100],
        "train_labels": quiet["labels"][:100],
        "validation_inputs": blobs["inputs"][100:] * 100,
        "validation_labels": blobs["labels"][100:],
        "test_inputs": blobs["inputs"][:50],
        "test_labels": blobs["labels"][:50],
    }
    report = ensemble.train(config, data=data, workdir=str(tmp_path)).report
    assert 0 < len(report["failed_members"]) < 8
    assert np.isfinite(report["test"]["scores"]["nll"]["value"])
    assert ensemble.load(tmp_path).members == tuple(report["live_members"])


def test_damaged_metrics_lose_only_the_damaged_lines(finished, blobs, tmp_path, caplog):
    workdir = tmp_path / "damaged"
    shutil.copytree(finished[0], workdir)
    content = (workdir / "metrics.jsonl").read_bytes()
    (workdir / "metrics.jsonl").write_bytes(b"\xff\n" + content[: len(content) // 2])
    result = ensemble.train(small_config(num_epochs=4), data=blobs, workdir=str(workdir))
    assert "metrics.jsonl is damaged" in caplog.text
    assert records_of(workdir)[-1]["epoch"] == 4
    assert result.report["live_members"] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["config.json", "report.json"])
@pytest.mark.parametrize(
    ("content", "line"),
    [('{"format": 99, "config": {}}', "has format 99, this version"), ("oops", "is not a file of")],
)
def test_files_of_another_format_are_refused(finished, blobs, tmp_path, name, content, line):
    workdir = tmp_path / "other"
    shutil.copytree(finished[0], workdir)
    (workdir / name).write_text(content)
    with pytest.raises(UserError, match=line):
        ensemble.train(small_config(), data=blobs, workdir=str(workdir))


@pytest.mark.check
def test_a_run_that_all_members_have_left_early_is_finished(blobs, tmp_path):
    config = small_config(num_epochs=60, early_stopping_epochs=2, learning_rate=0.8)
    config["log_every_steps"] = 100
    ensemble.train(config, data=blobs, workdir=str(tmp_path))
    before = records_of(tmp_path)
    ensemble.train(config, data=blobs, workdir=str(tmp_path))
    assert records_of(tmp_path) == before


def test_networks_that_do_not_fit_the_data_are_one_line(blobs):
    @networks.register("wide_outputs")
    class Wide(nn.Module):
        num_classes: int

        @nn.compact
        def __call__(self, x):
            return nn.Dense(self.num_classes + 1)(x)

    for name, line in [
        ("cnn", "cannot take inputs of shape"),
        ("wide_outputs", r"outputs .* must be \(2, 3\)"),
    ]:
        with pytest.raises(UserError, match=line):
            ensemble.train(small_config(model=name), data=blobs)
    images = {"inputs": np.zeros((40, 8, 8), np.uint8), "labels": np.arange(40) % 2}
    with pytest.raises(UserError, match="shift=8 "):
        ensemble.train(small_config(augment={"shift": 8}), data=images)


@pytest.mark.check
def test_a_run_may_learn_from_all_data_and_score_none(blobs, tmp_path):
    result = ensemble.train(small_config(hold_out=False), data=blobs, workdir=str(tmp_path))
    assert result.report["num_train_examples"] == 203
    assert result.report["live_members"] == [0, 1, 2, 3]
    assert not {"validation", "test"} & result.report.keys()
    assert not list((tmp_path / "predictions").iterdir())
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["training.png"]
    assert ensemble.load(tmp_path)(blobs["inputs"]).label.shape == (203,)


def test_splits_that_are_given_are_scored_and_none_is_carved(blobs):
    data = {"train_inputs": blobs["inputs"], "train_labels": blobs["labels"]}
    data |= {"test_inputs": blobs["inputs"][:50], "test_labels": blobs["labels"][:50]}
    report = ensemble.train(small_config(hold_out=False), data=data).report
    assert report["dataset"]["num_examples"] == {"train": 203, "test": 50}
    assert "validation" not in report
    assert report["test"]["scores"]["accuracy"]["value"] > 0.5
