"""Records on disk: the same data as in memory, whole or not at all, every damage in one line."""

import shutil

import names
import numpy as np
import pytest
from small import files_in, refused, refused_command, run_command, train

RNG = np.random.default_rng(0)
LABELS = np.arange(60) % 3
FEATURES = RNG.normal(3, 2, (60, 4))
PICTURES = RNG.integers(0, 200, (60, 5, 4, 3), np.uint8)
PICTURES[7] = PICTURES[50]
SPLITS = ("train", "validation", "test")
ARRAYS = {
    "pictures": {"inputs": PICTURES, "labels": np.array(["a", "b", "c"])[LABELS]},
    "weights": {"inputs": FEATURES, "labels": LABELS, "sample_weight": 1.0 + LABELS},
    "bright pictures": {"train_inputs": PICTURES * 1.5, "train_labels": LABELS},
    "targets": {"inputs": FEATURES, "targets": FEATURES[:, :2] ** 2},
    "splits": {
        **{f"{split}_inputs": PICTURES[i::3] for i, split in enumerate(SPLITS)},
        **{f"{split}_labels": LABELS[:20] for split in SPLITS},
    },
}


def write(folder, case="pictures"):
    """Writes arrays as an npz file and as records; returns the names of both."""
    folder.mkdir(exist_ok=True)
    np.savez(folder / "all.npz", **ARRAYS[case])
    run_command("convert", folder / "all.npz", folder / "records")
    return f"npz:{folder / 'all.npz'}", f"records:{folder / 'records'}"


@pytest.mark.parametrize("case", ARRAYS)
def test_they_are_learned_as_the_same_arrays_in_memory(tmp_path, case):
    new = ARRAYS[case].get("inputs", ARRAYS[case].get("train_inputs"))
    values = {"likelihood": "gaussian"} if case == "targets" else {}
    found = []
    for dataset in write(tmp_path, case):
        workdir = tmp_path / dataset.partition(":")[0]
        predictor = train({**values, "dataset": dataset}, None, workdir).predictor
        read = names.point if case == "targets" else names.probs
        found.append((read(predictor(new)), names.report(workdir)["dataset"]["num_examples"]))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_all_inputs_are_predicted(tmp_path):
    npz, records = write(tmp_path)
    train({"dataset": records}, None, tmp_path / "run")
    lines = []
    for source in (npz.removeprefix("npz:"), records):
        out = tmp_path / "predictions.jsonl"
        run_command("predict", f"--workdir={tmp_path / 'run'}", source, f"--out={out}")
        lines.append(out.read_text())
        out.unlink()
    assert lines[0] == lines[1]
    assert len(lines[0].splitlines()) == 60


def _pool(folder):
    (file,) = folder.glob("*.array_record")
    return file


def _flip(folder, *pictures):
    file = _pool(folder)
    content = file.read_bytes()
    for i in pictures:
        start = PICTURES[i].tobytes()[:20]
        assert start in content
        content = content.replace(start, bytes(20), 1)
    file.write_bytes(content)


def _cut(folder):
    _pool(folder).write_bytes(_pool(folder).read_bytes()[:-70_000])


def _exchange(folder):
    other = folder.parent / "other"
    np.savez(other.with_suffix(".npz"), inputs=PICTURES[::-1], labels=LABELS)
    run_command("convert", other.with_suffix(".npz"), other)
    shutil.copy(_pool(other), _pool(folder))


FAULTS = {
    "flipped": (lambda folder: _flip(folder, 35), "record 35", "is damaged"),
    "exchanged": (_exchange, "another folder"),
    "truncated": (_cut, "truncated"),
    "missing": (lambda folder: _pool(folder).unlink(), "is missing"),
    "no labels": (lambda folder: next(folder.glob("*.npz")).write_bytes(b"x"), "is damaged"),
    "no index": (lambda folder: (folder / "records.json").write_text("{}"), "is damaged"),
    "another type": (lambda folder: (folder / "records.json").write_text("[]"), "is damaged"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_is_damaged_is_one_line(tmp_path, case):
    spoil, *words = FAULTS[case]
    _, name = write(tmp_path)
    spoil(tmp_path / "records")
    refused(lambda: train({"dataset": name}, None, tmp_path / "run"), *words, str(tmp_path))


def test_damaged_records_are_counted_and_left_out(tmp_path):
    write(tmp_path)
    records = tmp_path / "records"
    new = tmp_path / "new"
    _flip(records, 3, 10)
    before = files_in(tmp_path)
    refused_command("convert", [records, new], ("record 3", "--skip_damaged"))
    assert files_in(tmp_path) == before
    done = run_command("convert", records, new, "--skip_damaged")
    assert done.stderr.count("left out: ") == 2
    assert "58 examples, 2 damaged" in done.stdout
    kept = np.delete(np.arange(60), [3, 10])
    arrays = {key: value[kept] for key, value in ARRAYS["pictures"].items()}
    found = [
        names.probs(train(values, data).predictor(PICTURES))
        for values, data in (({"dataset": f"records:{new}"}, None), ({}, arrays))
    ]
    np.testing.assert_array_equal(*found)
    refused_command("convert", [records, new], (f"{new} ",))


def test_data_in_a_bucket_are_to_be_mounted(tmp_path):
    refused(lambda: train({"dataset": "records:gs://bucket/x"}, None), "mount", "gs://bucket/x")
