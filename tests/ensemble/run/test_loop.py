"""`ensemble.train`: what a run leaves in its workdir, and how it goes on."""

import json
import shutil

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from run_parts import held

import ensemble
from ensemble import InputError, TrainingError


def records_of(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(blobs, tmp_path_factory):
    """A workdir and the result of the run that made it."""
    workdir = tmp_path_factory.mktemp("finished")
    return workdir, ensemble.train(small_config(), data=blobs, workdir=str(workdir))


def test_the_same_command_on_a_finished_run_changes_nothing(finished, blobs):
    workdir, result = finished
    before = records_of(workdir)
    again = ensemble.train(small_config(), data=blobs, workdir=str(workdir))
    assert records_of(workdir) == before
    assert again.report["metrics"]["test"] == result.report["metrics"]["test"]


def test_a_workdir_that_is_moved_is_not_made_again(finished, blobs, tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    shutil.copytree(finished[0], workdir)
    monkeypatch.setattr(
        "ensemble.runtime.method.Report.judge", lambda *_: shutil.move(workdir, tmp_path / "moved")
    )
    with pytest.raises(InputError, match=f"{workdir} cannot be written: .*config.json is gone"):
        ensemble.train(small_config(), data=blobs, workdir=str(workdir), show_progress=False)
    assert not workdir.exists()


class NaNAtFirst(nn.Module):
    """Predicts NaN, of some members, until it has taken as many steps as there are in an epoch."""

    num_outputs: int

    @nn.compact
    def __call__(self, x, train=False):
        steps = self.variable("batch_stats", "steps", jnp.zeros, ())
        bias = self.param("bias", nn.initializers.normal(), ())
        if train and not self.is_initializing():
            steps.value = steps.value + 1
        outputs = nn.Dense(self.num_outputs)(x.reshape(len(x), -1))
        return jnp.where((not train) & (bias > 0) & (steps.value < 8), jnp.nan, outputs)


def test_a_member_that_has_predicted_nan_stays_failed(blobs, tmp_path):
    config = small_config(model=NaNAtFirst, ensemble_size=6, num_epochs=4, eval_every_epochs=1)
    found = ensemble.train(config, data=blobs, workdir=str(tmp_path), show_progress=False)
    failed = found.report["failed_members"]
    assert 0 < len(failed) < 6
    assert set(failed.values()) == {"non-finite"}
    longer = {**config, "num_epochs": 5}
    again = ensemble.train(longer, data=blobs, workdir=str(tmp_path), show_progress=False)
    assert again.report["failed_members"] == failed


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
        result.report["metrics"]["test"]["nll"]["members"],
        straight.report["metrics"]["test"]["nll"]["members"],
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"learning_rate": 0.2}, "learning_rate: 0.1 -> 0.2"),
        ({"model": "mlp"}, "model: 'small_runs:Tiny' -> 'mlp'"),
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"ensemble_size": 3}, "has 4 members"),
        ({"num_epochs": 2}, "more than the"),
    ],
)
def test_another_experiment_is_refused_in_an_old_workdir(finished, blobs, change, line):
    with pytest.raises(InputError, match=line):
        ensemble.train(small_config(**change), data=blobs, workdir=str(finished[0]))


def test_other_data_are_refused_in_an_old_workdir(finished, blobs):
    data = {**blobs, "inputs": blobs["inputs"] + 1}
    with pytest.raises(InputError, match="other data"):
        ensemble.train(small_config(), data=data, workdir=str(finished[0]))


def test_a_second_run_in_a_live_workdir_is_refused(blobs, tmp_path):

    with held(tmp_path), pytest.raises(InputError, match="in use"):
        ensemble.train(small_config(), data=blobs, workdir=str(tmp_path))


def test_a_run_whose_checkpoints_are_gone_starts_again(finished, blobs, tmp_path):
    workdir = tmp_path / "gone"
    shutil.copytree(finished[0], workdir)
    shutil.rmtree(workdir / "checkpoints")
    result = ensemble.train(small_config(), data=blobs, workdir=str(workdir))
    assert result.report["metrics"]["test"] == finished[1].report["metrics"]["test"]


def test_without_a_workdir_nothing_is_kept(blobs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = ensemble.train(small_config(num_epochs=1), data=blobs)
    assert result.report["active_members"] == [0, 1, 2, 3]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.check
def test_a_run_without_a_live_member_fails(blobs):
    config = small_config(model="small_runs:Explosive", learning_rate=1e6)
    with pytest.raises(TrainingError, match=r"all of the 4 members .*non-finite"):
        ensemble.train(config, data=blobs)


def test_damaged_metrics_lose_only_the_damaged_lines(finished, blobs, tmp_path):
    workdir = tmp_path / "damaged"
    shutil.copytree(finished[0], workdir)
    content = (workdir / "metrics.jsonl").read_bytes()
    (workdir / "metrics.jsonl").write_bytes(b"\xff\n" + content[: len(content) // 2])
    result = ensemble.train(small_config(num_epochs=4), data=blobs, workdir=str(workdir))
    assert records_of(workdir)[-1]["epoch"] == 4
    assert result.report["active_members"] == [0, 1, 2, 3]


@pytest.mark.check
def test_a_run_that_all_members_have_left_early_is_finished(blobs, tmp_path):
    config = small_config(num_epochs=60, early_stopping_epochs=2, learning_rate=0.8)
    config["log_every_steps"] = 100
    ensemble.train(config, data=blobs, workdir=str(tmp_path))
    before = records_of(tmp_path)
    ensemble.train(config, data=blobs, workdir=str(tmp_path))
    assert records_of(tmp_path) == before


def test_networks_that_do_not_fit_the_data_are_one_line(blobs):
    class Wide(nn.Module):
        num_classes: int

        @nn.compact
        def __call__(self, x):
            return nn.Dense(self.num_classes + 1)(x)

    for name, line in [
        ("cnn", "on inputs of shape"),
        (Wide, r"outputs .* must be \(2, 3\)"),
    ]:
        with pytest.raises(InputError, match=line):
            ensemble.train(small_config(model=name), data=blobs)
    images = {"inputs": np.zeros((40, 8, 8), np.uint8), "labels": np.arange(40) % 2}
    with pytest.raises(InputError, match="shift=8 "):
        ensemble.train(small_config(augment={"shift": 8}), data=images)


@pytest.mark.check
def test_a_run_may_learn_from_all_data_and_score_none(blobs, tmp_path):
    result = ensemble.train(small_config(train_on_all=True), data=blobs, workdir=str(tmp_path))
    assert result.report["num_train_examples"] == 203
    assert result.report["active_members"] == [0, 1, 2, 3]
    assert not {"validation", "test"} & result.report.keys()
    assert not (tmp_path / "predictions").exists()
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["training.png"]
    assert ensemble.load(tmp_path)(blobs["inputs"]).labels.shape == (203,)
