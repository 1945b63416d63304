"""`ensemble.evaluate` on real workdirs: finished and in training, alone and compared."""

import json
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT, small_config
from formulas import summarise
from markdown_pages import of_evaluations

import ensemble
from ensemble import UserError, metrics
from ensemble.evaluation import derived
from ensemble.evaluation.shift import SHIFTS
from ensemble.evaluation.table_shift import TABLE_SHIFTS
from ensemble.scoring.sections import values_in


def make_images(num_classes=3, side=6, num_examples=203):
    """Noisy stripes: images [N, side, side, 1] uint8 of as many kinds as classes."""
    rng = np.random.default_rng(0)
    labels = rng.integers(num_classes, size=num_examples)
    rows = np.arange(side)[:, None]
    clean = 90 * (rows % (labels[:, None, None] + 2) == 0) + np.zeros((1, 1, side))
    inputs = np.clip(clean + rng.normal(0, 60, clean.shape) + 60, 0, 255).astype(np.uint8)
    return {"inputs": inputs[..., None], "labels": labels}


@pytest.fixture(scope="module")
def images_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "images.npz"
    np.savez(path, **make_images())
    return path


@pytest.fixture(scope="module")
def other_images_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "other.npz"
    data = make_images(num_classes=2, num_examples=40)
    np.savez(path, inputs=255 - data["inputs"], labels=data["labels"])
    return path


@pytest.fixture(scope="module")
def trained(images_file, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run") / "stripes"
    config = small_config(dataset=f"npz:{images_file}", num_epochs=2)
    ensemble.train(config, workdir=str(workdir))
    return workdir


@pytest.fixture(scope="module")
def other(trained, tmp_path_factory):
    """A longer run on the same images."""
    workdir = tmp_path_factory.mktemp("run") / "other"
    config = json.loads((trained / "config.json").read_text())["config"] | {"num_epochs": 8}
    ensemble.train(config, workdir=str(workdir))
    return workdir


def snapshot(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "evaluation" not in path.relative_to(folder).parts
    }


@pytest.fixture(scope="module")
def evaluated(trained, other_images_file):
    """A workdir, its evaluation, and the files of the workdir before it."""
    before = snapshot(trained)
    datasets = ["shift", "uniform", "constant", f"npz:{other_images_file}"]
    return trained, ensemble.evaluate(trained, datasets=datasets), before


@pytest.mark.check
def test_it_changes_nothing_but_its_own_folder(evaluated):
    workdir, _, before = evaluated
    assert snapshot(workdir) == before
    assert {path.name for path in (workdir / "evaluation").iterdir()} == {
        "evaluation.json",
        "report.html",
        "predictions",
    }


@pytest.mark.check
def test_evaluation_json_holds_what_was_returned(evaluated):
    workdir, evaluation, _ = evaluated
    stored = json.loads((workdir / "evaluation" / "evaluation.json").read_text())
    assert stored == json.loads(json.dumps(evaluation))
    assert stored["version"] == 2
    assert stored["is_finished"] is True


@pytest.mark.check
def test_scores_are_those_of_the_stored_predictions(evaluated):
    workdir, evaluation, _ = evaluated
    report = json.loads((workdir / "report.json").read_text())
    assert json.loads(json.dumps(evaluation["test"])) == report["test"]
    assert evaluation["members"] == report["live_members"]
    assert evaluation["calibrated"]["num_rows"] == 20
    assert sum(evaluation["classes"]["counts"]) == evaluation["test"]["num_rows"]


@pytest.mark.check
def test_shifted_scores_are_those_of_the_shifted_images(evaluated):
    from ensemble.evaluation.shift import shift_images
    from ensemble.sources.catalogue import load_dataset

    workdir, evaluation, _ = evaluated
    assert evaluation["shift"].keys() == SHIFTS.keys()
    report = json.loads((workdir / "report.json").read_text())
    splits = load_dataset(report["dataset"]["name"]).splits
    train, (inputs, labels) = splits["train"].inputs, splits["test"]
    value_range = int(train.min()), int(train.max())
    predictor = ensemble.load(workdir)
    for kind, severity in [("rotation", 1), ("noise", 5)]:
        shifted = shift_images(inputs, kind, severity, value_range=value_range)
        expected = summarise(predictor.member_arrays(shifted)["log_probs"], labels)
        section = evaluation["shift"][kind]
        assert section["amounts"] == list(SHIFTS[kind].amounts)
        for name in metrics.SCORES:
            ours = section["scores"][name][severity]
            assert ours == pytest.approx(expected["ensemble"][name], rel=1e-6, abs=1e-9)
            mean = np.mean(expected["members"][name])
            assert section["mean"][name][severity] == pytest.approx(mean, rel=1e-6, abs=1e-9)


@pytest.mark.check
def test_other_sets_are_told_from_the_test_split(evaluated, other_images_file):
    _, evaluation, _ = evaluated
    sections = evaluation["out_of_distribution"]
    assert list(sections) == ["uniform", "constant", f"npz:{other_images_file}"]
    other = sections[f"npz:{other_images_file}"]
    assert other["num_rows"] == 40  # All of a set that has no test split.
    assert sections["uniform"]["num_rows"] == evaluation["test"]["num_rows"]
    for section in sections.values():
        assert 0 <= section["entropy"]["auroc"] <= 1


@pytest.mark.check
def test_a_second_evaluation_needs_no_model_and_says_the_same(evaluated, monkeypatch):
    workdir, evaluation, _ = evaluated
    monkeypatch.setattr("ensemble.predictor.restore", lambda _: pytest.fail("the model was loaded"))
    again = ensemble.evaluate(workdir, datasets=list(derived_names(evaluation)))
    for key in evaluation.keys() - {"environment"}:
        assert again[key] == evaluation[key], key


def derived_names(evaluation):
    return ["shift", *evaluation["out_of_distribution"]]


@pytest.mark.soak
def test_kept_predictions_of_other_members_are_not_used(trained, other, tmp_path):
    first = ensemble.evaluate(trained, tmp_path / "out", ["uniform"])
    kept = (tmp_path / "out" / "predictions" / "uniform.npz").read_bytes()
    second = ensemble.evaluate(other, tmp_path / "out", ["uniform"])
    assert (tmp_path / "out" / "predictions" / "uniform.npz").read_bytes() != kept
    assert first["out_of_distribution"] != second["out_of_distribution"]


@pytest.mark.soak
def test_damaged_kept_predictions_are_made_again(trained, tmp_path):
    first = ensemble.evaluate(trained, tmp_path, ["constant"])
    (tmp_path / "predictions" / "constant.npz").write_bytes(b"damaged")
    assert (
        ensemble.evaluate(trained, tmp_path, ["constant"])["out_of_distribution"]
        == (first["out_of_distribution"])
    )


@pytest.mark.check
def test_a_finished_run_in_an_object_store(trained, bucket):
    for path in trained.rglob("*"):
        relative = path.relative_to(trained)
        if path.is_file() and not {"evaluation", "checkpoints"} & {*relative.parts}:
            (bucket.path / relative).write_bytes(path.read_bytes())
    evaluation = ensemble.evaluate("gs://bucket/run", datasets=[])
    report = json.loads(bucket.report.read_text())
    assert evaluation["test"]["scores"]["nll"]["value"] == report["test"]["scores"]["nll"]["value"]
    written = json.loads((bucket.path / "evaluation" / "evaluation.json").read_text())
    assert written["findings"] == json.loads(json.dumps(evaluation["findings"]))
    assert "</html>" in (bucket.path / "evaluation" / "report.html").read_text()
    with pytest.raises(UserError, match="gs://bucket/run/plots"):
        ensemble.evaluate("gs://bucket/run", "gs://bucket/run/plots", [])


@pytest.mark.check
def test_any_number_of_devices_gives_the_same(trained, tmp_path):
    one = ensemble.evaluate(trained, tmp_path / "one", ["uniform"], num_devices=1)
    eight = ensemble.evaluate(trained, tmp_path / "eight", ["uniform"], num_devices=8)
    ours, theirs = (each["out_of_distribution"]["uniform"]["entropy"] for each in (one, eight))
    assert ours["auroc"] == pytest.approx(theirs["auroc"], abs=1e-3)


@pytest.mark.check
def test_compared_with_itself_nothing_differs(trained, tmp_path):
    evaluation = ensemble.evaluate(trained, tmp_path, [], compare=[trained])
    (other,) = evaluation["compare"]
    assert other["agreement"] == 1
    assert other["total_variation"] == 0
    assert set(values_in(other, "difference").values()) == {0.0}
    assert other["scores"]["nll"]["interval"] == (0.0, 0.0)
    low, high = other["scores"]["accuracy"][
        "interval"
    ]  # Of none of few examples on which they differ.
    assert low == -high < 0
    assert other["scores"]["ece"]["interval"] is None


@pytest.mark.check
def test_compared_with_another_run_the_scores_differ(trained, other, tmp_path):
    evaluation = ensemble.evaluate(trained, tmp_path / "out", [], compare=[other])
    (other,) = evaluation["compare"]
    for name in metrics.SCORES:
        expected = other["scores"][name]["value"] - evaluation["test"]["scores"][name]["value"]
        assert other["scores"][name]["difference"] == pytest.approx(expected)
    assert 0 < other["total_variation"] < 1
    low, high = other["scores"]["nll"]["interval"]
    assert low < other["scores"]["nll"]["difference"] < high
    section = other["recipe"]
    assert section["over"] == "members and examples"
    assert section["difference"] == pytest.approx(other["scores"]["nll"]["difference"])
    found = [one for one in evaluation["findings"] if one["code"].startswith("comparison.")]
    assert [one["about"] for one in found] == [f"compare/{other['workdir']}"]
    assert found[0]["numbers"]["difference"] == section["difference"]


@pytest.mark.check
def test_one_member_is_fine(images_file, tmp_path):
    config = small_config(
        dataset=f"npz:{images_file}", num_epochs=1, ensemble_size=1, num_devices=1
    )
    ensemble.train(config, workdir=str(tmp_path))
    evaluation = ensemble.evaluate(tmp_path, datasets=["uniform"])
    assert evaluation["test"]["scores"]["nll"]["sd"] == 0
    assert "next_member.one" in {one["code"] for one in evaluation["findings"]}
    assert (tmp_path / "evaluation" / "report.html").stat().st_size > 10_000


@pytest.mark.check
def test_a_run_on_arrays_is_scored_and_with_them_shifted_too(blobs, blobs_run, tmp_path):
    shutil.copytree(blobs_run, tmp_path / "run")
    alone = ensemble.evaluate(tmp_path / "run")
    assert alone["out_of_distribution"] == {}
    given = ensemble.evaluate(tmp_path / "run", tmp_path / "out", data=blobs)
    assert given["test"] == alone["test"]
    assert list(given["out_of_distribution"]) == ["uniform", "constant"]  # No images to shift.
    wrong = {**blobs, "labels": blobs["labels"][::-1]}
    with pytest.raises(UserError, match="arrays"):
        ensemble.evaluate(tmp_path / "run", tmp_path / "out", data=wrong)
    with pytest.raises(UserError, match=r"ensemble.evaluate\(.*npz"):
        ensemble.evaluate(tmp_path / "run", tmp_path / "out", ["uniform"])


@pytest.mark.check
def test_a_run_without_calibration_data_says_so(blobs, tmp_path):
    data = {"train_inputs": blobs["inputs"], "train_labels": blobs["labels"]}
    data |= {"test_inputs": blobs["inputs"][:50], "test_labels": blobs["labels"][:50]}
    ensemble.train(small_config(hold_out=False), data=data, workdir=str(tmp_path))
    evaluation = ensemble.evaluate(tmp_path)
    calibrated = evaluation["calibrated"]
    assert "not available" in calibrated["reason"]
    assert "not available" in evaluation["conformal"]["sets"]["reason"]
    assert all("not available" in one["reason"] for one in evaluation["abstention"])
    assert "not available" in (tmp_path / "evaluation" / "report.html").read_text()


@pytest.mark.check
def test_a_run_in_training_is_predicted_from_its_newest_checkpoint(images_file, tmp_path):
    """The real thing: a run is killed in the middle, and evaluated as it lies."""
    workdir = tmp_path / "run"
    script = f"""
import sys
import time
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
import conftest, ensemble
config = conftest.small_config(dataset='npz:{images_file}', num_epochs=100000)
ensemble.train(config, workdir={str(workdir)!r})
"""
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        try:
            while not any(path.name.isdigit() for path in workdir.glob("checkpoints/*")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            evaluation = ensemble.evaluate(workdir, tmp_path / "alive", ["constant"])
            assert process.poll() is None
        finally:
            process.kill()
    assert evaluation["is_finished"] is False
    assert evaluation["step"] > 0
    assert evaluation["members"] == [0, 1, 2, 3]
    assert evaluation["conformal"]["sets"]["coverage"] > 0
    before = snapshot(workdir)
    ensemble.evaluate(workdir, tmp_path / "dead", [])
    assert snapshot(workdir) == before


# Bad input: one line, and what was there stays.


@pytest.mark.check
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"datasets": ["mnistt"]}, "--datasets=mnistt"),
        (
            {"datasets": ["digits"]},
            r"\(8, 8, 1\).*ensemble.*\(6, 6, 1\)",
        ),
        ({"datasets": ["npz:/nowhere.npz"]}, "there is no file /nowhere.npz"),
        ({"datasets": ["shift", "none"]}, "--datasets=shift,none: none stands alone"),
        ({"compare": ["/nowhere"]}, "/nowhere is not a workdir"),
        ({"num_devices": 99}, "99"),
    ],
)
def test_what_cannot_be_evaluated_is_one_line(trained, tmp_path, arguments, line):
    with pytest.raises(UserError, match=line) as error:
        ensemble.evaluate(trained, tmp_path / "out", **arguments)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "evaluation.json").exists()
    assert not (tmp_path / "out" / "report.html").exists()


@pytest.mark.check
def test_what_the_ensemble_has_learned_is_not_out_of_distribution(trained, images_file, tmp_path):
    with pytest.raises(UserError, match="ensemble has learned"):
        ensemble.evaluate(trained, tmp_path, [f"npz:{images_file}"])


@pytest.mark.check
def test_what_is_no_workdir_or_has_no_checkpoint(trained, tmp_path):
    with pytest.raises(UserError, match="not a workdir"):
        ensemble.evaluate(tmp_path)
    assert not list(tmp_path.iterdir())
    shutil.copy(trained / "config.json", tmp_path)
    with pytest.raises(UserError, match="no checkpoint"):
        ensemble.evaluate(tmp_path)


@pytest.mark.check
@pytest.mark.parametrize("out", ["checkpoints", "predictions/new", "plots", "events"])
def test_what_a_run_writes_is_no_place_for_the_results(trained, out):
    before = snapshot(trained)
    with pytest.raises(UserError, match=out):
        ensemble.evaluate(trained, trained / out)
    assert snapshot(trained) == before


@pytest.mark.check
def test_a_folder_of_ones_own_in_the_workdir_is(trained):
    ensemble.evaluate(trained, trained / "evaluation of mine", "none")
    assert (trained / "evaluation of mine" / "report.html").exists()


@pytest.mark.check
def test_names_may_be_written_as_in_a_terminal(trained, tmp_path):
    evaluation = ensemble.evaluate(trained, tmp_path, "constant,uniform", abstain="coverage=0.8")
    assert list(evaluation["out_of_distribution"]) == ["constant", "uniform"]


@pytest.mark.check
def test_one_name_needs_no_list(trained, tmp_path):
    evaluation = ensemble.evaluate(trained, tmp_path, "constant", compare=trained)
    assert evaluation.keys() <= of_evaluations()
    assert list(evaluation["out_of_distribution"]) == ["constant"]
    assert len(evaluation["compare"]) == 1


@pytest.mark.check
def test_rows_of_a_table_are_shifted_on_request(blobs, blobs_run, tmp_path):
    evaluation = ensemble.evaluate(blobs_run, tmp_path / "out", ["shift", "box"], data=blobs)
    assert evaluation["shift"].keys() == TABLE_SHIFTS.keys()
    assert list(evaluation["out_of_distribution"]) == ["box"]


@pytest.mark.check
def test_images_are_no_table_and_nothing_is_left(trained, tmp_path):
    with pytest.raises(UserError, match="--datasets=box"):
        ensemble.evaluate(trained, tmp_path / "out", ["box"])
    assert not (tmp_path / "out").exists()


@pytest.mark.check
def test_a_workdir_is_no_place_for_the_results(trained):
    with pytest.raises(UserError, match=r"is the workdir"):
        ensemble.evaluate(trained, trained)


@pytest.mark.check
def test_predictions_of_another_run_are_refused(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation"))
    config = json.loads((trained / "config.json").read_text())["config"] | {"seed": 2}
    ensemble.train(config, workdir=str(tmp_path / "other"))
    shutil.copy(tmp_path / "other/predictions/test.npz", tmp_path / "run/predictions/test.npz")
    with pytest.raises(UserError, match=r"test\.npz.*\w{8}.*config.json"):
        ensemble.evaluate(tmp_path / "run")
    assert not (tmp_path / "run" / "evaluation" / "report.html").exists()


@pytest.mark.check
def test_runs_on_other_data_cannot_be_compared(trained, blobs_run, tmp_path):
    with pytest.raises(UserError, match=blobs_run.name):
        ensemble.evaluate(trained, tmp_path / "out", [], compare=[blobs_run])


def test_a_run_without_a_test_split_cannot_be_scored(blobs, tmp_path):
    ensemble.train(small_config(hold_out=False), data=blobs, workdir=str(tmp_path))
    with pytest.raises(UserError, match="test split"):
        ensemble.evaluate(tmp_path)


@pytest.mark.soak
def test_dead_members_are_left_out_and_all_dead_are_refused(blobs, tmp_path):
    config = small_config(model="explosive", ensemble_size=8, learning_rate=0.002, num_epochs=2)
    ensemble.train(config, data=blobs, workdir=str(tmp_path / "some"))
    evaluation = ensemble.evaluate(tmp_path / "some", data=blobs)
    assert 0 < len(evaluation["failed_members"]) < 8
    assert sorted([*evaluation["members"], *map(int, evaluation["failed_members"])]) == [*range(8)]
    with pytest.raises(ensemble.RunFailed):
        ensemble.train({**config, "learning_rate": 1e6}, data=blobs, workdir=str(tmp_path / "all"))
    with pytest.raises(UserError, match=r"no live member|no checkpoint"):
        ensemble.evaluate(tmp_path / "all", data=blobs)


def test_names_of_kept_predictions_never_leave_their_folder():
    from etils import epath

    folder = epath.Path("/kept")
    names = [
        "shift/noise/1",
        "npz:/a/../../b.npz",
        "npz:/a/b.npz",
        "npz:/a_b.npz",
        "folder:" + "x" * 400,
    ]
    paths = [derived._path(folder, name) for name in names]
    assert all(path.parent == folder for path in paths)
    assert len(set(paths)) == len(names)
    assert all(len(path.name) < 120 for path in paths)
