"""Data come in the forms that people have, and the same examples train the same ensemble."""

import io

import names
import numpy as np
import pandas as pd
import PIL.Image
import pyarrow as pa
import pytest
from runs import classes
from small import files_in, refused, run_command, train

ARRAYS = classes(96)
X = ARRAYS["inputs"]
Y = ARRAYS["labels"]
BATCHES = [(X[:50], Y[:50]), (X[50:], Y[50:])]


def table(num_rows: int = 120) -> pd.DataFrame:
    """Columns of numbers with gaps, categories, truth values, dates, groups and times."""
    rng = np.random.default_rng(2)
    size = rng.normal(100, 20, num_rows).round(3)
    frame = pd.DataFrame(
        {
            "size": size,
            "age": np.where(np.arange(num_rows) % 9, rng.normal(size=num_rows).round(3), np.nan),
            "town": rng.choice(["here", "there"], num_rows),
            "new": rng.choice([True, False], num_rows),
            "sold": pd.date_range("2020-01-01", periods=num_rows).strftime("%Y-%m-%d"),
            "owner": [f"owner {i // 4}" for i in rng.permutation(num_rows)],
        }
    )
    frame["price"] = (size + 30 * (frame["town"] == "here") + rng.normal(size=num_rows)).round(3)
    frame["kind"] = np.where(size > 100, "large", "small")
    return frame


def pictures(num_pictures: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Grey pictures uint8 [N, 6, 5, 1] of two classes."""
    rng = np.random.default_rng(3)
    labels = np.arange(num_pictures) % 2
    images = rng.integers(0, 60, (num_pictures, 6, 5, 1)) + 120 * labels[:, None, None, None]
    return images.astype(np.uint8), labels


def write_pictures(folder, images=None, suffix="png"):
    """A folder for each class."""
    images, labels = pictures() if images is None else (images, np.arange(len(images)) % 2)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / f"class {label}" / f"{i:02d}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(image.squeeze(-1)).save(path)
    return folder


def npz(folder):
    np.savez(folder / "all.npz", **ARRAYS)
    return f"npz:{folder / 'all.npz'}"


def npy(folder):
    for name, array in ARRAYS.items():
        np.save(folder / f"{name}.npy", array)
    return f"npy:{folder}"


def records(folder):
    run_command("convert", npz(folder).removeprefix("npz:"), folder / "records")
    return f"records:{folder / 'records'}"


ARRAY_FORMS = {
    "mapping": lambda _: ARRAYS,
    "pair": lambda _: (X, Y),
    "lists": lambda _: (X.tolist(), Y.tolist()),
    "X and y": lambda _: {"X": X, "y": Y},
    "bunch": lambda _: {"data": X, "target": Y, "target_names": None, "DESCR": "of whatever"},
    "batches": lambda _: BATCHES,
    "examples": lambda _: list(zip(X, Y, strict=True)),
    "batches by name": lambda _: [{"image": x, "label": y} for x, y in BATCHES],
    "npz": npz,
    "npy": npy,
    "records": records,
}
"""Functions of a folder: data, or the name of a data set."""
TABLE_FORMS = {
    "pandas": lambda _: table(),
    "pyarrow": lambda _: pa.Table.from_pandas(table()),
    "csv": lambda folder: write_table(folder, "csv"),
    "semicolons": lambda folder: write_table(folder, "csv", sep=";", decimal=","),
    "parquet": lambda folder: write_table(folder, "parquet"),
}


def write_table(folder, kind, **options):
    path = folder / f"all.{kind}"
    if kind == "csv":
        table().to_csv(path, index=False, **options)
    else:
        table().to_parquet(path, index=False)
    return f"{kind}:{path}"


def learn(data, values, workdir=None):
    """Trains with data, or with the data set of a name."""
    if isinstance(data, str):
        return train({**values, "dataset": data}, None, workdir)
    return train(values, data, workdir)


ONE = {"ensemble_size": 1, "num_epochs": 1}
TABLE = {**ONE, "target": "price", "likelihood": "auto", "method": "deep_ensemble"}


@pytest.fixture(scope="module")
def expected():
    """What is predicted by a network that has learned the mapping, and the frame."""
    return {
        "arrays": names.probs(learn(ARRAYS, ONE).predictor(X)),
        "table": names.point(learn(table(), TABLE).predictor(table())),
    }


def marked(forms, quick):
    return [one if one in quick else pytest.param(one, marks=pytest.mark.check) for one in forms]


@pytest.mark.parametrize("form", marked(ARRAY_FORMS, ["pair", "npz", "npy", "records"]))
def test_arrays_in_every_form_are_learned_alike(form, expected, tmp_path):
    found = learn(ARRAY_FORMS[form](tmp_path), ONE).predictor(X)
    np.testing.assert_array_equal(names.probs(found), expected["arrays"])


LABELS = {
    "nullable": lambda y: pd.Series(y > 0).astype("boolean"),
    "floats": lambda y: (y > 0).astype(float),
    "one-hot": lambda y: np.eye(2)[(y > 0).astype(int)],
}


@pytest.mark.check
@pytest.mark.parametrize("form", LABELS)
def test_labels_of_every_type_are_the_same_classes(form, tmp_path):
    found = []
    for name, labels in (("expected", (Y > 0).astype(int)), ("found", LABELS[form](Y))):
        train(ONE, {"inputs": X, "labels": labels}, tmp_path / name)
        found.append(names.report(tmp_path / name)["dataset"])
    assert found[0]["fingerprint"] == found[1]["fingerprint"]
    assert found[0]["class_names"] == found[1]["class_names"] == ["0", "1"]


@pytest.mark.check
def test_the_only_row_of_a_class_ends_no_run(tmp_path):
    labels = np.where(np.arange(len(Y)) == 7, "rare", np.where(X[:, 0] > 0, "high", "low"))
    result = train(ONE, (X, labels), tmp_path)
    found = names.probs(result.predictor(X))
    assert found.shape == (len(X), 3)
    assert np.isfinite(found).all()
    assert np.isfinite(names.number(names.report(tmp_path), "nll"))


@pytest.mark.parametrize("form", marked(TABLE_FORMS, ["csv", "parquet"]))
def test_tables_in_every_form_are_learned_alike(form, expected, tmp_path):
    found = learn(TABLE_FORMS[form](tmp_path), TABLE).predictor(table())
    np.testing.assert_allclose(names.point(found), expected["table"], rtol=1e-5)


@pytest.mark.check
@pytest.mark.parametrize("form", ["folder", "resized", "records"])
def test_folders_of_pictures_are_learned(form, tmp_path):
    images, labels = pictures()
    source = f"folder:{write_pictures(tmp_path / 'pictures')}"
    values = {"num_epochs": 5, "learning_rate": 0.05}
    if form == "resized":
        values["resize"] = 8
    if form == "records":
        run_command("convert", tmp_path / "pictures", tmp_path / "records")
        source = f"records:{tmp_path / 'records'}"
    result = learn(source, values, tmp_path / "run")
    dataset = names.report(tmp_path / "run")["dataset"]
    assert dataset["input_shape"] == ([8, 8, 1] if form == "resized" else [6, 5, 1])
    assert dataset["class_names"] == ["class 0", "class 1"]
    if form != "resized":
        assert (names.labels(result.predictor(images)) == labels).mean() > 0.95
    out = tmp_path / "new.jsonl"
    run_command("predict", f"--workdir={tmp_path / 'run'}", tmp_path / "pictures", f"--out={out}")
    assert len(out.read_text().splitlines()) == len(labels)


# Splits.


def test_splits_are_drawn_at_random_with_every_class(tmp_path):
    train(ONE, (np.random.default_rng(0).normal(size=(200, 3)), np.arange(200) % 2), tmp_path)
    sizes = names.report(tmp_path)["dataset"]["num_examples"]
    assert sizes == {"train": 140, "validation": 20, "calibration": 20, "test": 20}
    for split in ("validation", "calibration", "test"):
        assert names.stored(tmp_path, split)["targets"].sum() == 10


def test_given_splits_are_kept(tmp_path):
    data = {"train": (X, Y), "validation": (X[:12], Y[:12]), "test": (X[:30], Y[:30])}
    train(ONE, data, tmp_path)
    sizes = names.report(tmp_path)["dataset"]["num_examples"]
    assert sizes == {"train": 86, "validation": 12, "calibration": 10, "test": 30}
    np.testing.assert_array_equal(names.stored(tmp_path)["targets"], Y[:30])
    np.testing.assert_array_equal(names.stored(tmp_path, "validation")["targets"], Y[:12])


def test_groups_stay_together_and_the_latest_rows_test(tmp_path):
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(30), 5)
    frame = pd.DataFrame({"x": rng.normal(size=150), "group": [f"g{one}" for one in group]})
    frame["day"] = rng.permutation(150)
    frame["y"] = group + np.arange(150) / 1000  # It says whose it is.
    values = {**TABLE, "target": "y"}
    others = ("validation", "calibration", "test")
    train({**values, "split_by": "group:group"}, frame, tmp_path / "group")
    found = [set(names.stored(tmp_path / "group", one)["targets"].astype(int)) for one in others]
    assert all(found)
    assert sum(map(len, found)) == len(set.union(*found))
    for split, groups in zip(others, found, strict=True):
        assert len(names.stored(tmp_path / "group", split)["targets"]) == 5 * len(groups)
    train({**values, "split_by": "time:day"}, frame, tmp_path / "time")
    latest = frame.nlargest(15, "day")["y"]
    np.testing.assert_allclose(
        np.sort(names.stored(tmp_path / "time")["targets"]), np.sort(latest), rtol=1e-6
    )


# Targets and weights.


@pytest.mark.parametrize(("target", "kind"), [("kind", "classes"), ("price", "numbers")])
def test_the_column_says_whether_it_is_classes_or_numbers(target, kind):
    values = {**TABLE, "target": target, "num_epochs": 30, "learning_rate": 0.02}
    frame = table()
    found = train({**values, "optimizer": "adam"}, frame).predictor(frame)
    if kind == "classes":
        assert (names.label_names(found) == frame["kind"]).mean() > 0.8
    else:
        assert np.corrcoef(names.point(found), frame["price"])[0, 1] > 0.8


@pytest.mark.check
def test_several_targets_are_predicted_together(tmp_path):
    targets = np.stack([X[:, 0], 100 * X[:, 1]], axis=1)
    values = {"likelihood": "gaussian", "num_epochs": 30, "optimizer": "adam"}
    data = {"inputs": X, "targets": targets}
    result = train({**values, "learning_rate": 0.03}, data, tmp_path)
    found = result.predictor(X)
    assert found.mean.shape == (len(X), 2)
    for k in range(2):
        one = names.of_target(found, k)
        np.testing.assert_array_equal(one.mean, found.mean[:, k])
        assert np.corrcoef(one.mean, targets[:, k])[0, 1] > 0.7
    each = [one["metrics"]["rmse"]["value"] for one in names.of_targets(tmp_path)]
    assert names.number(names.report(tmp_path), "rmse") == pytest.approx(np.mean(each))


def rare(weights):
    """The mean probability of a rare class that the inputs do not tell."""
    labels = (np.arange(400) % 10 == 0).astype(int)
    inputs = np.random.default_rng(0).normal(size=(400, 2))
    values = {"class_weights": weights, "num_epochs": 20, "learning_rate": 0.02}
    result = train(values, (inputs, labels))
    return names.probs(result.predictor(inputs))[:, 1].mean()


@pytest.mark.check
def test_class_weights_do_not_bias_the_probability_of_a_rare_class():
    for weights in ("none", "balanced", "1,3"):
        assert rare(weights) == pytest.approx(0.1, abs=0.05)


@pytest.mark.check
def test_rows_of_hardly_any_weight_teach_nothing():
    """Half of the labels are wrong, and count or do not."""
    wrong = np.arange(len(Y)) % 2 == 0
    labels = np.where(wrong, (Y + 1) % 3, Y)
    values = {"num_epochs": 40, "optimizer": "adam", "learning_rate": 0.03}
    found = []
    for weight in (1e-6, 1.0):
        weights = np.where(wrong, weight, 1.0)
        data = {"inputs": X, "labels": labels, "sample_weight": weights}
        p = train(values, data).predictor(X)
        found.append(np.log(names.probs(p)[np.arange(len(Y)), Y]).mean())
    assert found[0] > found[1] + 0.2


# What is refused.


def text(content):
    return lambda folder: (folder / "a.csv").write_text(content) and f"csv:{folder / 'a.csv'}"


def spoiled(change):
    """A folder of pictures that is no such any more."""

    def write(folder):
        change(write_pictures(folder / "pictures") / "class 1")
        return f"folder:{folder / 'pictures'}"

    return write


def stored(**arrays):
    def write(folder):
        np.savez(folder / "a.npz", **arrays)
        return f"npz:{folder / 'a.npz'}"

    return write


def cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def png(size):
    content = io.BytesIO()
    PIL.Image.new("L", size).save(content, "png")
    return content.getvalue()


def with_value(value):
    inputs = X.copy()
    inputs[4, 1] = value
    return lambda _: (inputs, Y)


BAD = {
    "no targets": (lambda _: X, {}, "targets"),
    "a number": (lambda _: 3, {}, "targets"),
    "batches of other shapes": (lambda _: [(X, Y), (X[:, :2], Y)], {}, "shapes"),
    "names of batches": (lambda _: [{"image": X, "number": Y}], {}, "inputs, number"),
    "inputs twice": (lambda _: {"X": X, "inputs": X, "y": Y}, {}, "'inputs'"),
    "lengths": (lambda _: {"inputs": X, "labels": Y[:5]}, {}, "96", "5"),
    "empty": (lambda _: (X[:0], Y[:0]), {}, "empty"),
    "nan": (with_value(np.nan), {}, "nan", "example 4"),
    "infinity": (with_value(-np.inf), {}, "-inf", "example 4"),
    "text": (lambda _: (np.full((6, 2), "a"), Y[:6]), {}, "<U1"),
    "ragged": (lambda _: {"inputs": [[1, 2], [1]] * 3, "labels": Y[:6]}, {}, "ragged"),
    "a negative label": (lambda _: {"inputs": X, "labels": Y - 1}, {}, "-1"),
    "one class": (lambda _: (X, Y * 0), {}, "one class"),
    "names of classes": (
        lambda _: {**ARRAYS, "class_names": ["a", "b"]},
        {},
        "labels holds 2",
        "2 class_names",
    ),
    "a negative weight": (
        lambda _: {**ARRAYS, "sample_weight": np.arange(96) - 1.0},
        {},
        "sample_weight",
        "-1",
    ),
    "a target that is no number": (
        lambda _: {"inputs": X, "targets": np.where(Y == 1, np.nan, 1.0)},
        {"likelihood": "gaussian"},
        "nan",
    ),
    "counts": (
        lambda _: {"inputs": X, "targets": Y - 0.5},
        {"likelihood": "poisson"},
        "-0.5",
        "poisson",
    ),
    "no such file": (lambda _: "npz:/nowhere.npz", {}, "/nowhere.npz"),
    "no such folder": (lambda _: "folder:/nowhere", {}, "/nowhere"),
    "no such records": (lambda _: "records:/nowhere", {}, "/nowhere"),
    "no such set": (lambda _: "mnits", {}, "mnits", "mnist"),
    "arrays of other names": (stored(a=X, b=Y), {}, "a, b", "inputs"),
    "pickles": (stored(inputs=np.array([{}] * 96, object), labels=Y), {}, "pickle"),
    "no such column": (lambda _: table(), {**TABLE, "target": "prize"}, "'prize'", "price"),
    "no target": (lambda _: table(), {**TABLE, "target": ""}, "target"),
    "no such group": (lambda _: table(), {**TABLE, "split_by": "group:x"}, "'x'"),
    "no such split": (lambda _: table(), {**TABLE, "split_by": "random"}, "'random'"),
    "columns": (lambda _: table(), {**TABLE, "column_types": "size=big"}, "size=big"),
    "a text among numbers": (
        text("x,y\n" + "1,2\n" * 60 + "3,x\n"),
        {**TABLE, "target": "y", "likelihood": "gaussian"},
        "'x'",
    ),
    "a missing target": (
        text("x,y\n" + "1,2\n2,3.5\n" * 30 + "3,\n"),
        {**TABLE, "target": "y"},
        "y",
    ),
    "a short row": (text("x,y\n1,2\n3\n"), {**TABLE, "target": "y"}, "a.csv"),
    "an empty file": (text("\n"), {**TABLE, "target": "y"}, "a.csv"),
    "a cut picture": (spoiled(lambda folder: cut(folder / "01.png")), {}, "01.png is damaged"),
    "no picture": (spoiled(lambda folder: (folder / "x.txt").write_text("x")), {}, "x.txt"),
    "a picture of another size": (
        spoiled(lambda folder: (folder / "99.png").write_bytes(png((9, 9)))),
        {},
        "99.png",
        "resize",
    ),
    "pictures for a table": (lambda _: table(), {**TABLE, "resize": 8}, "resize"),
    "weights of classes": (lambda _: ARRAYS, {"class_weights": "1,2"}, "class_weights"),
}
"""Functions of a folder, keys, and words of the line."""


@pytest.mark.parametrize("case", BAD)
def test_bad_data_are_one_line_and_nothing_is_written(case, tmp_path):
    make, values, *words = BAD[case]
    data = make(tmp_path)
    before = files_in(tmp_path)
    refused(lambda: learn(data, {**ONE, **values}, tmp_path / "run"), *words)
    assert files_in(tmp_path) == before
