"""`predict.py`: what it reads, what it refuses, what it prints, in which order."""

import csv
import importlib.util
import json
import logging
import subprocess
import sys

import numpy as np
import pandas as pd
import PIL.Image
import pyarrow.parquet
import pytest
from conftest import ROOT, make_blobs, small_config
from etils import epath
from programs import run_here

import ensemble
from ensemble import UserError
from ensemble.commands import predict
from ensemble.sources import to_predict
from ensemble.storage import memory


def make_images(channels: int, num_examples: int = 61) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(num_examples) % 3
    images = rng.integers(0, 80, (num_examples, 6, 4, channels)) + 80 * labels[:, None, None, None]
    return {
        "inputs": images.astype(np.uint8),
        "labels": labels,
        "class_names": np.array(["dark", "grey", "bright"]),
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(workdir, predictor, inputs) by the kind of data."""
    kinds = {"grey": make_images(1), "colour": make_images(3), "vectors": make_blobs()}
    kinds["explosive"] = make_blobs()
    results = {}
    for kind, data in kinds.items():
        workdir = tmp_path_factory.mktemp(kind) / "run"
        model = "explosive" if kind == "explosive" else "mlp"
        config = small_config(model=model, num_epochs=1, ensemble_size=2, learning_rate=1e-4)
        result = ensemble.train(config, data=data, workdir=str(workdir))
        results[kind] = str(workdir), result.predictor, data["inputs"]
    return results


def write_images(folder, images, names=None):
    folder.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(images):
        name = names[i] if names else f"{i}.png"
        PIL.Image.fromarray(image.squeeze()).save(folder / name)
    return str(folder)


def assert_says(document, predictor, inputs, names):
    """The document holds what the predictor says, largest total first."""
    expected = predictor(inputs)
    totals = [p["total"] for p in document["predictions"]]
    assert totals == sorted(totals, reverse=True)
    assert sorted(p["input"] for p in document["predictions"]) == sorted(names)
    for p in document["predictions"]:
        i = names.index(p["input"])
        assert p["label"] == expected.label[i]
        assert p["class"] == document["class_names"][p["label"]]
        np.testing.assert_allclose(p["probs"], expected.probs[i], atol=1e-6)
        for name in ("total", "aleatoric", "epistemic"):
            assert p[name] == pytest.approx(getattr(expected, name)[i], abs=1e-6)


@pytest.mark.check
def test_a_flat_folder_and_one_of_class_folders(trained, tmp_path):
    workdir, predictor, inputs = trained["grey"]
    flat = write_images(tmp_path / "flat", inputs[:5])
    document = json.loads(predict.answer(workdir, flat, as_json=True))
    assert document["class_names"] == ["dark", "grey", "bright"]
    assert document["members"] == 2
    assert_says(document, predictor, inputs[:5], [f"{i}.png" for i in range(5)])

    write_images(tmp_path / "nested" / "a", inputs[:2])
    write_images(tmp_path / "nested" / "b", inputs[2:4])
    (tmp_path / "nested" / ".hidden").write_text("ignored")
    document = json.loads(predict.answer(workdir, str(tmp_path / "nested"), as_json=True))
    names = ["a/0.png", "a/1.png", "b/0.png", "b/1.png"]
    assert_says(document, predictor, inputs[:4], names)


@pytest.mark.check
def test_grey_images_for_a_network_of_colour_ones(trained, tmp_path):
    """As in a training folder with both: the three channels are the same."""
    workdir, predictor, _ = trained["colour"]
    grey = trained["grey"][2][:3]
    folder = write_images(tmp_path / "grey", grey)
    document = json.loads(predict.answer(workdir, folder, as_json=True))
    names = ["0.png", "1.png", "2.png"]
    assert_says(document, predictor, np.repeat(grey, 3, axis=-1), names)


@pytest.mark.check
def test_colour_images_for_a_network_of_grey_ones(trained, tmp_path):
    workdir, predictor, _ = trained["grey"]
    pictures = [PIL.Image.fromarray(image) for image in trained["colour"][2][:3]]
    folder = write_images(tmp_path / "colour", [np.asarray(one) for one in pictures])
    document = json.loads(predict.answer(workdir, folder, as_json=True))
    grey = np.stack([np.asarray(one.convert("L")) for one in pictures])[..., None]
    assert_says(document, predictor, grey, ["0.png", "1.png", "2.png"])


@pytest.mark.check
def test_one_image_several_and_folders_too(trained, tmp_path):
    workdir, predictor, inputs = trained["grey"]
    folder = write_images(tmp_path / "folder", inputs[:4])
    files = [f"{folder}/{i}.png" for i in range(4)]
    document = json.loads(predict.answer(workdir, files[:1], as_json=True))
    assert_says(document, predictor, inputs[:1], files[:1])
    assert predict.answer(workdir, files[0]).splitlines()[2].split()[0].endswith("/0.png")
    document = json.loads(predict.answer(workdir, files[2:], as_json=True))
    assert_says(document, predictor, inputs[2:4], files[2:])
    other = write_images(tmp_path / "other", inputs[4:5])
    document = json.loads(predict.answer(workdir, [folder, f"{other}/0.png"], as_json=True))
    assert_says(document, predictor, inputs[:5], [*files, f"{other}/0.png"])


@pytest.mark.check
def test_more_answers_than_memory_holds_are_refused_before_inputs_are_read(
    trained, tmp_path, monkeypatch
):
    """A few kilobytes of an npz file may be many equal rows."""
    workdir, _, inputs = trained["vectors"]
    file, out = tmp_path / "many.npz", tmp_path / "many.jsonl"
    np.savez_compressed(file, inputs=np.repeat(inputs[:1], 20_000, axis=0))
    monkeypatch.setattr(memory, "memory_bytes", lambda: 15_000_000)
    with monkeypatch.context() as patch:
        patch.setattr(to_predict, "read_npz", lambda path: pytest.fail("read"))
        done = run_here("predict.py", f"--workdir={workdir}", file, "--json")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("predict.py: ")
    assert f"20,000 inputs of {file}" in line
    assert "--out=NAME.jsonl" in line
    assert run_here("predict.py", f"--workdir={workdir}", file, f"--out={out}").returncode == 0
    assert out.read_text().count("\n") == 20_000


@pytest.mark.check
def test_a_table_of_more_answers_than_memory_holds_is_refused_by_the_members_too(
    trained, tmp_path, monkeypatch
):
    workdir, _, inputs = trained["vectors"]
    np.savez(tmp_path / "some.npz", inputs=inputs[:50])
    monkeypatch.setattr(memory, "memory_bytes", lambda: 50 * 2000)
    with pytest.raises(UserError, match=r"50 inputs.*would take"):
        predict.answer(workdir, str(tmp_path / "some.npz"))


@pytest.mark.check
def test_large_images_are_no_warning_of_pillow(trained, tmp_path, monkeypatch):
    workdir, _, inputs = trained["grey"]
    folder = write_images(tmp_path / "folder", inputs[:2])
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 20)  # It refuses twice as many alone.
    done = run_here("predict.py", f"--workdir={workdir}", folder)
    assert done.returncode == 0, done.stderr
    assert "exceeds" not in done.stderr


@pytest.mark.check
def test_images_are_resized_as_the_training_images_were(tmp_path):
    """A run on images of several sizes predicts others: grey, large, turned by 90 degrees."""
    rng = np.random.default_rng(0)
    for i in range(24):
        side, value = 8 + i % 3, 60 + 120 * (i % 2)
        image = rng.integers(value - 50, value + 50, (side, side + i % 4, 3)).astype(np.uint8)
        write_images(tmp_path / "data" / ("dark", "light")[i % 2], [image], [f"{i}.png"])
    config = small_config(dataset=f"folder:{tmp_path / 'data'}", resize=6, num_epochs=2)
    result = ensemble.train(config, workdir=str(tmp_path / "run"), show_progress=False)
    assert result.predictor.dataset.input_shape == (6, 6, 3)
    light = np.full((50, 30), 190, np.uint8)
    path = write_images(tmp_path / "new", [light]) + "/0.png"
    document = json.loads(predict.answer(str(tmp_path / "run"), path, as_json=True))
    assert_says(document, result.predictor, np.full((1, 6, 6, 3), 190, np.uint8), [path])
    assert document["class_names"] == ["dark", "light"]


@pytest.mark.check
@pytest.mark.parametrize(
    ("kind", "arrays"),
    [
        ("grey", lambda x: {"inputs": np.moveaxis(x, -1, 1)}),
        ("colour", lambda x: {"inputs": np.moveaxis(x, -1, 1)}),
        ("grey", lambda x: {"inputs": x, "labels": np.zeros(len(x))}),
        ("grey", lambda x: {"anything": x[..., 0].astype(np.float64)}),
        ("vectors", lambda x: {"inputs": x.astype(np.float64)}),
    ],
)
def test_npz_files(trained, tmp_path, kind, arrays):
    workdir, predictor, inputs = trained[kind]
    np.savez(tmp_path / "new.npz", **arrays(inputs[:12]))
    document = json.loads(predict.answer(workdir, str(tmp_path / "new.npz"), as_json=True))
    assert_says(document, predictor, inputs[:12], [str(i) for i in range(12)])


@pytest.mark.check
def test_the_table_is_aligned_and_ranked(trained, tmp_path):
    workdir, predictor, inputs = trained["grey"]
    names = ["a.png", "a long name.png", "two\nlines.png", "d.png"]
    folder = write_images(tmp_path / "images", inputs[:4], names)
    header, rule, *rows = predict.answer(workdir, folder).splitlines()
    assert {len(row) for row in (header, rule, *rows)} == {len(header)}
    assert len(rows) == 4
    assert any(row.startswith("'two\\nlines.png'") for row in rows)
    totals = [float(row.split()[-3]) for row in rows]
    assert totals == sorted(totals, reverse=True)
    row = next(row for row in rows if row.startswith("d.png"))
    prediction = predictor(inputs[3:4])
    second, first = np.argsort(prediction.probs[0])[1:]
    class_names = ("dark", "grey", "bright")
    assert row.split()[1:5] == [
        class_names[first], f"{prediction.probs[0, first]:.4f}",
        class_names[second], f"{prediction.probs[0, second]:.4f}",
    ]  # fmt: skip


@pytest.mark.check
def test_it_says_where_it_abstains(trained, tmp_path):
    workdir, _, inputs = trained["vectors"]
    np.savez(tmp_path / "new.npz", inputs=inputs[:9])
    path, abstain = str(tmp_path / "new.npz"), "coverage=0.5"
    expected = ensemble.load(workdir, abstain=abstain)(inputs[:9]).accepted
    assert 0 < expected.sum() < 9
    document = json.loads(predict.answer(workdir, path, as_json=True, abstain=abstain))
    assert document["abstain"] == abstain
    accepted = {int(one["input"]): one["accepted"] for one in document["predictions"]}
    assert [accepted[i] for i in range(9)] == expected.tolist()
    header, _, *rows = predict.answer(workdir, path, abstain=abstain).splitlines()
    assert header.split()[1] == "decision"
    decisions = {int(row.split()[0]): row.split()[1] for row in rows}
    assert [decisions[i] for i in range(9)] == np.where(expected, "accept", "abstain").tolist()
    assert "accept" not in predict.answer(workdir, path)


def bad_inputs(folder, trained):
    """(kind of network, path, what the line says) of each."""
    grey = trained["grey"][2]
    (folder / "empty").mkdir()
    (folder / "text").mkdir()
    (folder / "text" / "a.png").write_text("no image")
    (folder / "notes.txt").write_text("no image")
    arrays = {
        "half": grey[:2] / 510,
        "negative": grey[:2].astype(int) - 300,
        "size": grey[:2, :3],
        "flat": grey[0, 0, :, 0],
        "none": grey[:0],
        "objects": np.array([{}, {}], object),
        "strings": np.array(["a", "b"]),
    }
    for name, array in arrays.items():
        np.savez(folder / f"{name}.npz", inputs=array)
    np.savez(folder / "two.npz", a=grey, b=grey)
    np.savez(folder / "nan.npz", inputs=np.full((2, 6), np.nan, np.float32))
    np.savez(folder / "huge.npz", inputs=np.full((2, 6), 3e38, np.float32))
    write_images(folder / "sizes", [grey[0], grey[1][:3]])
    write_images(folder / "deep" / "a" / "b", grey[:1])
    return [
        ("grey", "empty", "holds no images"),
        ("grey", "text", "is not an image"),
        ("grey", "sizes", "all images must have one size"),
        ("grey", "deep", "is not an image"),
        ("grey", "notes.txt", "Pillow"),
        (
            "grey",
            write_images(folder / "small", grey[:2, :3]),
            "3x4 pixels",
        ),
        ("vectors", write_images(folder / "images", grey[:2]), "training data were float32"),
        ("grey", "half.npz", "whole numbers 0..255"),
        ("grey", "negative.npz", "whole numbers 0..255"),
        ("grey", "size.npz", "takes [N, 6, 4, 1]"),
        ("grey", "flat.npz", "[N, F]"),
        ("grey", "none.npz", "which is empty"),
        ("grey", "objects.npz", "pickled Python objects"),
        ("grey", "strings.npz", "integers or floating-point"),
        ("grey", "two.npz", "arrays a, b"),
        ("vectors", "nan.npz", "every value must be finite"),
        ("explosive", "huge.npz", "output overflows"),
        ("grey", "missing", "there is no file or folder /"),
    ]


@pytest.mark.check
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # Of huge.npz.
def test_bad_inputs_are_one_line(trained, tmp_path):
    for kind, name, expected in bad_inputs(tmp_path, trained):
        path = str(tmp_path / name)
        with pytest.raises(UserError) as caught:
            predict.answer(trained[kind][0], path)
        line = str(caught.value)
        assert expected in line, (name, line)
        assert path in line
        assert "\n" not in line


def _lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def _flat(document):
    """Entries of a document of classes as rows have them, by input."""
    names = [f"prob_{name}" for name in document["class_names"]]
    return {
        one.pop("input"): one | dict(zip(names, one.pop("probs"), strict=True))
        for one in document["predictions"]
    }


@pytest.mark.check
def test_any_number_of_inputs_is_written_in_pieces(trained, tmp_path, monkeypatch):
    """The same predictions as in a document, in the order of the inputs, whatever holds them."""
    monkeypatch.setattr(predict, "_MAX_PIECE", 5)
    workdir, _, inputs = trained["grey"]
    np.savez(tmp_path / "new.npz", inputs=inputs[:12], labels=np.arange(12) % 3)
    np.savez(
        tmp_path / "parts.npz",
        **{f"{p}_inputs": inputs[:12] for p in ("train", "test")},
        **{f"{p}_labels": np.arange(12) % 3 for p in ("train", "test")},
    )
    done = run_here("ensemble.__main__", "convert", tmp_path / "parts.npz", tmp_path / "records")
    assert done.returncode == 0, done.stderr
    folder = write_images(tmp_path / "images", inputs[:12], [f"{i:02d}.png" for i in range(12)])
    document = json.loads(predict.answer(workdir, str(tmp_path / "new.npz"), as_json=True))
    expected = _flat(document)
    numbers = [str(i) for i in range(12)]
    names = {
        str(tmp_path / "new.npz"): numbers,
        f"npz:{tmp_path / 'new.npz'}": numbers,
        folder: [f"{i:02d}.png" for i in range(12)],
        f"records:{tmp_path / 'records'}": [f"{p}/{i}" for p in ("train", "test") for i in numbers],
    }
    out = tmp_path / "out.jsonl"
    for path, shown in names.items():
        done = run_here("predict.py", path, f"--workdir={workdir}", f"--out={out}")
        assert done.returncode == 0, done.stderr
        assert f"predictions of {len(shown)} inputs" in done.stdout
        assert "of 2 members" in done.stderr
        lines = _lines(out)
        out.unlink()
        assert [one.pop("input") for one in lines] == shown
        for i, one in enumerate(lines):
            of_one = expected[str(i % 12)]
            assert one.keys() == of_one.keys()
            assert one.pop("class") == of_one["class"]
            for name, value in one.items():
                np.testing.assert_allclose(value, of_one[name], atol=1e-6)
    whole = json.loads(predict.answer(workdir, f"records:{tmp_path / 'records'}", as_json=True))
    assert {one["input"] for one in whole["predictions"]} == set(names.popitem()[1])


@pytest.mark.check
def test_what_cannot_be_written_is_one_line(trained, tmp_path):
    workdir, _, inputs = trained["grey"]
    np.savez(tmp_path / "new.npz", inputs=inputs)
    (tmp_path / "there").mkdir()
    faults = {
        "must name a file in a folder": [tmp_path / "new.npz", f"--out={tmp_path / 'there'}"],
        "no folder": [f"records:{tmp_path / 'none'}", f"--out={tmp_path / 'out.jsonl'}"],
        "give it alone": [f"npz:{tmp_path / 'new.npz'}", "x", f"--out={tmp_path / 'out.jsonl'}"],
        "out.txt must end in .jsonl": [tmp_path / "new.npz", f"--out={tmp_path / 'out.txt'}"],
        "--keep=id is for CSV": [tmp_path / "new.npz", "--keep=id"],
        "images has no named columns": [write_images(tmp_path / "images", inputs[:1]), "--keep=id"],
        "kept.jsonl": [
            tmp_path / "new.npz",
            f"--out={tmp_path / 'kept.jsonl'}",
        ],
    }
    (tmp_path / "kept.jsonl").write_text("before")
    for line, arguments in faults.items():
        done = run_here("predict.py", f"--workdir={workdir}", *arguments)
        assert done.returncode == 2, done.stderr
        assert line in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not list(tmp_path.glob("out*"))
    assert (tmp_path / "kept.jsonl").read_text() == "before"


@pytest.mark.check
def test_the_program(trained, tmp_path):
    """Nothing but the answer on stdout; one line and exit status 2 for what is wrong."""
    workdir, predictor, inputs = trained["grey"]
    (tmp_path / "unfinished").mkdir()
    np.savez(tmp_path / "new.npz", inputs=inputs)
    npz = tmp_path / "new.npz"
    good = run_here("predict.py", npz, "--json", f"--workdir={workdir}")
    assert good.returncode == 0, good.stderr
    assert_says(json.loads(good.stdout), predictor, inputs, [str(i) for i in range(len(inputs))])
    bad = {
        f"{tmp_path} is": [f"--workdir={tmp_path}", npz],
        "INPUTS...": [f"--workdir={workdir}"],
        "--workdir": [npz],
        "new.npz is an npz file": [f"--workdir={workdir}", npz, tmp_path],
        "there is no file": [f"--workdir={workdir}", tmp_path, "extra"],
    }
    for line, arguments in bad.items():
        done = run_here("predict.py", *arguments)
        assert done.returncode == 2, done.stderr
        assert not done.stdout
        assert done.stderr.startswith("predict.py: ")
        assert len(done.stderr.splitlines()) == 1
        assert line in done.stderr


@pytest.mark.check
def test_a_reader_that_has_enough_is_no_error(trained, tmp_path):
    workdir, _, inputs = trained["grey"]
    np.savez(tmp_path / "many.npz", inputs=np.concatenate([inputs] * 100))  # More than a pipe.
    command = [sys.executable, ROOT / "predict.py", f"--workdir={workdir}", tmp_path / "many.npz"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("input ")
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=120) == 0, stderr
    assert "Error" not in stderr
    assert "Exception" not in stderr


@pytest.mark.check
def test_numbers_come_with_intervals_the_widest_first(tmp_path):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(120, 3))
    data = {"inputs": inputs, "targets": 1e3 * inputs[:, 0] + rng.normal(size=120)}
    config = small_config(likelihood="gaussian", num_epochs=2, ensemble_size=2, learning_rate=1e-3)
    predictor = ensemble.train(config, data, str(tmp_path / "run"), show_progress=False).predictor
    np.savez(tmp_path / "new.npz", inputs=inputs[:5])
    path, expected = str(tmp_path / "new.npz"), predictor(inputs[:5].astype(np.float32))
    document = json.loads(predict.answer(str(tmp_path / "run"), path, as_json=True))
    assert document["levels"] == expected.levels.tolist()
    for one in document["predictions"]:
        i = int(one["input"])
        assert one["mean"] == pytest.approx(expected.mean[i], rel=1e-5)
        assert one["quantiles"] == pytest.approx(expected.quantiles[i].tolist(), rel=1e-5)
    order = [int(one["input"]) for one in document["predictions"]]
    assert order == np.argsort(-expected.standard_deviation, kind="stable").tolist()
    table = predict.answer(str(tmp_path / "run"), path)
    assert table.splitlines()[0].split("  ")[0] == "input"
    assert f"{expected.mean[order[0]]:.4f}" in table.splitlines()[2]


@pytest.mark.check
def test_rows_of_a_table_are_written_in_their_order(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(predict, "_MAX_PIECE", 7)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=60), "town": rng.choice(["a", "b", "c"], 60)})
    frame["price"] = frame["size"] + (frame["town"] == "b") + rng.normal(0, 0.1, 60)
    config = small_config(target="price", likelihood="gaussian", ensemble_size=2, num_epochs=2)
    run = str(tmp_path / "run")
    predictor = ensemble.train(config, frame, run, show_progress=False).predictor
    file, out = tmp_path / "new.csv", tmp_path / "out.jsonl"
    frame[["town", "size"]].to_csv(file, index=False)
    assert predict.write_answers(run, [str(file)], epath.Path(out)) == 60
    lines = _lines(out)
    assert [one["input"] for one in lines] == [str(i) for i in range(60)]
    expected = predictor(frame).mean
    np.testing.assert_allclose([one["mean"] for one in lines], expected, rtol=1e-5)
    np.savez(tmp_path / "new.npz", inputs=rng.normal(size=(3, 4)))
    with pytest.raises(UserError, match="learned a table"):
        predict.write_answers(run, [str(tmp_path / "new.npz")], epath.Path(out))
    frame.loc[[3, 40], "town"] = "elsewhere"  # In two pieces, and said of both.
    frame.to_csv(file, index=False)
    with caplog.at_level(logging.INFO):
        predict.write_answers(run, [str(file)], epath.Path(out))
    assert len([one for one in caplog.messages if "2 of 60 rows" in one]) == 1
    file.write_text(file.read_text().replace(str(frame["size"][46]), "abc"))
    with pytest.raises(UserError, match=r"new.csv: .*'abc' in row 47"):
        predict.write_answers(run, [str(file)], epath.Path(out))


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """(folder with new.csv and new.parquet, their frame, workdirs by what they have learned)."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "id": [f"{i:03d}" for i in range(40)],
            "note": [' "a", b ', "NA", "", "\u017b\n1"] * 10,
            "count": pd.array([2**60 + 1, None] * 20, "Int64"),
            "weight": [0.1, np.nan] * 20,
            "when": pd.Timestamp("2024-02-29 08:00") + pd.to_timedelta(np.arange(40), "D"),
            "size": rng.normal(size=40),
        }
    )
    frame["mean"] = frame["size"]
    frame.to_csv(folder / "new.csv", index=False)
    frame.to_parquet(folder / "new.parquet", index=False)
    targets = {
        "gaussian": frame["size"] + rng.normal(size=40),
        "quantiles": frame["size"] + rng.normal(size=40),
        "categorical": np.where(frame["size"] > 0, "up", "down"),
    }
    runs = {}
    for name, target in targets.items():
        config = small_config(likelihood=name, method="sgd", ensemble_size=2, num_epochs=1)
        data = (frame[["size"]], target)
        runs[name] = str(folder / name)
        ensemble.train(config, data, runs[name], show_progress=False)
    return folder, frame, runs


def _rows_of(path):
    """Rows of a file in any form, and the types of a Parquet file's columns."""
    if path.suffix == ".jsonl":
        return _lines(path)
    if path.suffix == ".csv":
        with open(path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    return pyarrow.parquet.read_table(path).to_pylist()


KEPT = ("id", "note", "count", "weight", "when")


@pytest.mark.check
@pytest.mark.parametrize("kind", ["gaussian", "quantiles", "categorical"])
def test_files_of_every_form_say_the_same(tables, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(predict, "_MAX_PIECE", 7)
    folder, _, runs = tables
    abstain = None if kind == "quantiles" else "coverage=0.5"
    found = {}
    for ending in (".jsonl", ".csv", ".parquet"):
        out = epath.Path(tmp_path / f"out{ending}")
        files = [str(folder / "new.csv")]
        assert predict.write_answers(runs[kind], files, out, False, abstain, ["id"]) == 40
        found[ending] = _rows_of(tmp_path / f"out{ending}")
    lines = found[".jsonl"]
    assert found[".parquet"] == lines
    assert found[".csv"] == [{name: str(value) for name, value in one.items()} for one in lines]
    prediction = ensemble.load(runs[kind], abstain=abstain)(tables[1])
    expected = {
        "gaussian": lambda: {
            "mean": prediction.mean,
            "standard_deviation": prediction.standard_deviation,
            "quantile_0.05": prediction.quantiles[:, 1],
            "quantile_0.975": prediction.quantiles[:, 6],
        },
        "quantiles": lambda: {
            "median": prediction.median,
            **{
                f"quantile_{level}": values
                for level, values in zip(prediction.levels, prediction.quantiles.T, strict=True)
            },
        },
        "categorical": lambda: {
            "prob_down": prediction.probs[:, 0],
            "prob_up": prediction.probs[:, 1],
            "label": prediction.label,
            "total": prediction.total,
        },
    }[kind]()
    for name, values in expected.items():
        np.testing.assert_allclose([one[name] for one in lines], values, rtol=1e-5, atol=1e-6)
    if abstain:
        assert [one["accepted"] for one in lines] == prediction.accepted.tolist()
    if kind == "categorical":
        assert [one["class"] for one in lines] == prediction.class_name.tolist()


@pytest.mark.check
def test_kept_columns_are_as_in_the_file(tables, tmp_path):
    folder, _, runs = tables

    def kept(source, ending):
        out = epath.Path(tmp_path / f"{source}{ending}")
        predict.write_answers(runs["gaussian"], [str(folder / source)], out, keep=KEPT)
        return [{name: one[name] for name in KEPT} for one in _rows_of(tmp_path / out.name)]

    with open(folder / "new.csv", newline="", encoding="utf-8") as file:
        texts = [{name: one[name] for name in KEPT} for one in csv.DictReader(file)]
    assert texts[0]["note"] == ' "a", b '  # Neither trimmed nor taken for missing.
    for ending in (".jsonl", ".csv", ".parquet"):
        assert kept("new.csv", ending) == texts
    kept("new.parquet", ".parquet")
    before = pyarrow.parquet.read_table(folder / "new.parquet", columns=[*KEPT])
    assert pyarrow.parquet.read_table(tmp_path / "new.parquet.parquet").select(KEPT) == before
    first, second, *_ = kept("new.parquet", ".jsonl")
    assert first == {
        "id": "000",
        "note": ' "a", b ',
        "count": 2**60 + 1,
        "weight": 0.1,
        "when": "2024-02-29 08:00:00.000000",
    }
    assert (second["count"], second["weight"], second["note"]) == (None, None, "NA")
    assert kept("new.parquet", ".csv")[1]["weight"] == ""
    document = json.loads(
        predict.answer(runs["gaussian"], str(folder / "new.csv"), as_json=True, keep=["id"])
    )
    assert all(int(one["id"]) == int(one["input"]) for one in document["predictions"])
    assert list(document["predictions"][0])[:3] == ["input", "id", "mean"]
    _, _, *rows = predict.answer(runs["gaussian"], str(folder / "new.csv"), keep=["id"]).split("\n")
    assert all(int(row.split()[0]) == int(row.split()[1]) for row in rows)


@pytest.mark.check
def test_rows_have_a_semicolon_and_decimal_commas(tables, tmp_path):
    _, frame, runs = tables
    frame[["weight", "size"]].to_csv(tmp_path / "new.csv", sep=";", decimal=",", index=False)
    out = epath.Path(tmp_path / "out.jsonl")
    predict.write_answers(runs["gaussian"], [str(tmp_path / "new.csv")], out, keep=["weight"])
    assert [one["weight"] for one in _lines(out)] == ["0,1", ""] * 20


@pytest.mark.check
def test_a_kept_column_is_not_told_to_be_left_out(tables, tmp_path, caplog):
    _, frame, runs = tables
    frame[["size"]].assign(badge="x").to_csv(tmp_path / "new.csv", index=False)
    for keep, is_told in ((["badge"], False), ([], True)):
        predict.answer(runs["gaussian"], str(tmp_path / "new.csv"), keep=keep)
        assert any("left out: 'badge'" in line for line in caplog.messages) == is_told


@pytest.mark.check
def test_what_cannot_be_kept_is_one_line(tables, tmp_path):
    folder, _, runs = tables
    odd = pyarrow.table({"size": [0.5, 0.6], "far": [1.0, np.inf]})
    pyarrow.parquet.write_table(odd, tmp_path / "odd.parquet")
    new, out = folder / "new.csv", f"--out={tmp_path / 'out.jsonl'}"
    faults = {
        "--keep=idd is no column": [new, "--keep=idd", out],
        "did you mean 'id'?": [new, "--keep=idd"],
        "'id' twice": [new, "--keep=id,id", out],
        "--keep=mean: predictions have a 'mean'": [new, "--keep=mean", out],
        "--keep=far": [tmp_path / "odd.parquet", "--keep=far", out],
    }
    for line, arguments in faults.items():
        done = run_here("predict.py", f"--workdir={runs['gaussian']}", *arguments)
        assert done.returncode == 2, done.stderr
        assert line in done.stderr.splitlines()[-1]
        assert done.stderr.splitlines()[-1].startswith("predict.py: ")
        assert not list(tmp_path.glob("out*"))
    for flags in ([], ["--json"]):
        done = run_here("predict.py", f"--workdir={runs['gaussian']}", new, "--keep=mean", *flags)
        assert done.returncode == 2
        assert "have a 'mean'" in done.stderr
    clear = run_here("predict.py", f"--workdir={runs['categorical']}", new, "--keep=mean", out)
    assert clear.returncode == 0, clear.stderr


@pytest.mark.check
def test_parquet_without_pyarrow_is_one_line(tables, tmp_path, monkeypatch):
    folder, _, runs = tables
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find(name)
    )
    out = f"--out={tmp_path / 'out.parquet'}"
    done = run_here("predict.py", f"--workdir={runs['gaussian']}", folder / "new.csv", out)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "out.parquet needs pyarrow: pip install" in line
