"""Tables from end to end: splits, fingerprints, training, workdirs, predictions and exports."""

import json

import jax.export
import numpy as np
import pandas as pd
import pytest
from programs import run_here
from run_parts import config_of, loaded_table
from small_runs import small_config

import ensemble
from ensemble import UserError
from ensemble.commands.predict import answer
from ensemble.export import TABLE_READER, export, table_json
from ensemble.read_model import Model
from ensemble.sources.data_forms import recognise
from ensemble.sources.tables.raw_columns import Column, kind_of_target
from ensemble.sources.tables.read_table import encode, read_csv
from ensemble.storage.schema import check_description
from ensemble.storage.table_schema import num_features


def make_table(num_rows: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": rng.normal(50, 20, num_rows).round(3),
            "town": rng.choice(["here", "there", "yonder"], num_rows),
            "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(num_rows), "D"),
            "agent": rng.integers(0, 25, num_rows).astype(str),
        }
    )
    frame["price"] = (
        frame["size"] * (1 + (frame["town"] == "here")) + rng.normal(size=num_rows)
    ).round(4)
    frame.loc[::9, "size"] = np.nan
    return frame


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(workdir, the CSV file, its frame, result)."""
    folder, frame = tmp_path_factory.mktemp("tables"), make_table()
    frame.to_csv(folder / "t.csv", index=False)
    config = small_config(
        dataset=f"csv:{folder / 't.csv'}",
        target="price",
        likelihood="auto",
        split="group:agent",
        columns={"sold": "drop"},
    )
    result = ensemble.train(config, workdir=str(folder / "run"), show_progress=False)
    return folder / "run", folder / "t.csv", frame, result


@pytest.mark.check
def test_a_workdir_predicts_tables_by_the_names_of_columns(trained):
    workdir, file, frame, result = trained
    report = json.loads((workdir / "report.json").read_text())
    assert report["config"]["likelihood"] == "gaussian"
    assert [one["kind"] for one in report["dataset"]["table"]["columns"]] == [
        "number", "category", "drop", "drop",
    ]  # fmt: skip
    expected = result.predictor(frame).mean
    predictor = ensemble.load(workdir)
    np.testing.assert_array_equal(predictor(frame[["town", "size"]][::-1]).mean, expected[::-1])
    np.testing.assert_array_equal(predictor(read_csv(file)).mean, expected)
    written = json.loads(answer(str(workdir), str(file), as_json=True))["predictions"]
    by_row = {int(one["input"]): one["mean"] for one in written}
    np.testing.assert_allclose([by_row[i] for i in range(len(frame))], expected, 1e-6)
    with pytest.raises(UserError, match="'size'"):
        predictor(frame.drop(columns="size"))
    np.savez(workdir.parent / "x.npz", inputs=np.zeros((2, 4)))
    with pytest.raises(UserError, match=r"x\.npz|table"):
        answer(str(workdir), str(workdir.parent / "x.npz"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(workdir, a CSV file with texts of its own for dates and gaps, the plain frame, result)."""
    folder, frame = tmp_path_factory.mktemp("written"), make_table().drop(columns="agent")
    frame.loc[::7, "town"] = None
    texts = frame.assign(sold=frame["sold"].dt.strftime("%d.%m.%Y"))
    texts = texts.fillna({"size": -999, "town": "Unknown"})
    texts.to_csv(folder / "t.csv", index=False)
    config = small_config(
        dataset=f"csv:{folder / 't.csv'}",
        target="price",
        likelihood="gaussian",
        split="time:sold",
        columns={"sold": "date"},
        date_format="%d.%m.%Y",
        na_values="unknown, -999",
    )
    result = ensemble.train(config, workdir=str(folder / "run"), show_progress=False)
    return folder / "run", folder / "t.csv", frame, result


@pytest.mark.check
def test_how_a_table_writes_dates_and_gaps_is_kept(written):
    """Loaded and exported ensembles read it alike, and as the frame that needs no such words."""
    workdir, file, frame, result = written
    report = json.loads((workdir / "report.json").read_text())
    table = report["dataset"]["table"]
    assert (table["format"], table["missing"]) == (2, ["unknown", "-999"])
    by_name = {one["name"]: one for one in table["columns"]}
    assert (by_name["sold"]["kind"], by_name["sold"]["form"]) == ("date", "%d.%m.%Y")
    assert by_name["size"]["flag"]
    assert by_name["town"]["categories"] == ["", "here", "there", "yonder"]
    predictor, texts = ensemble.load(workdir), pd.read_csv(file)
    expected = predictor(frame).mean
    np.testing.assert_array_equal(predictor(texts).mean, expected)
    np.testing.assert_allclose(result.predictor(read_csv(file)).mean, expected, rtol=1e-5)
    content = json.loads(table_json(predictor.dataset.table))
    inputs, warnings = encode(read_csv(file), content)
    np.testing.assert_array_equal(inputs, predictor.dataset.table.encode(frame))
    assert warnings == []
    check_description(report["dataset"], "gaussian")
    for forged in ({"missing": [3]}, {"missing": "x"}, {"format": 3}):
        with pytest.raises(ValueError, match=r"dataset\.table"):
            check_description(report["dataset"] | {"table": table | forged}, "gaussian")
    for form in ("%d", "%d.%m.%Y %d", "%d.%m.", "%Q", "", 3, "%d.%m.%Y" * 9):
        columns = [one | ({"form": form} if "form" in one else {}) for one in table["columns"]]
        forged = {"table": table | {"columns": columns}}
        with pytest.raises(ValueError, match="'sold'"):
            check_description(report["dataset"] | forged, "gaussian")


@pytest.mark.check
def test_a_split_by_time_reads_dates_as_they_are_written(written):
    _, file, frame, _ = written
    keys = {"split": "time:sold", "date_format": "%d.%m.%Y"}
    last = (frame["sold"].max() - pd.Timestamp("1970-01-01")).days
    assert loaded_table(f"csv:{file}", "price", **keys).strata("test").values.max() == last
    with pytest.raises(UserError, match=r"'01.01.2020'.*config.date_format"):
        loaded_table(f"csv:{file}", "price", split="time:sold")


@pytest.mark.check
@pytest.mark.parametrize("is_frame", [False, True])
def test_a_target_that_stands_for_a_missing_one_is_refused(written, is_frame, tmp_path):
    _, _, frame, _ = written
    frame = frame.assign(price=frame["price"].where(frame.index != 4, -999.0))
    frame.to_csv(tmp_path / "t.csv", index=False)
    config = small_config(target="price", likelihood="gaussian", na_values=[-999])
    given = {"data": frame} if is_frame else {"dataset": f"csv:{tmp_path / 't.csv'}"}
    data = given.pop("data", None)
    with pytest.raises(UserError, match=r"'price'.*1.*120 rows"):
        ensemble.train({**config, **given}, data, show_progress=False)


@pytest.mark.check
def test_gaps_of_a_column_of_another_kind_are_those_of_training():
    """Numbers that are learned as flags have their gaps where training has them."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"b": rng.choice([0, 1, -1], 60), "x": rng.normal(size=60)})
    config = small_config(
        target="y", columns={"b": "boolean"}, na_values=[-1], likelihood="gaussian", num_epochs=1
    )
    data = frame.assign(y=rng.normal(size=60))
    result = ensemble.train(config, data, show_progress=False)
    inputs = result.predictor.dataset.table.encode(frame)
    is_gap = (frame["b"] == -1).to_numpy()
    plain = result.predictor.dataset.table.encode(frame.assign(b=frame["b"].replace(-1, np.nan)))
    np.testing.assert_array_equal(inputs, plain)
    assert len(np.unique(inputs[is_gap][:, 0])) == 1


@pytest.mark.check
def test_the_two_programs_beside_an_export_say_what_the_run_does(trained, tmp_path):
    _, file, frame, result = trained
    predictor, path = result.predictor, tmp_path / "model.bin"
    path.write_bytes(export(predictor))
    inputs, _ = encode(read_csv(file), json.loads(table_json(predictor.dataset.table)))
    raw = jax.export.deserialize(bytearray(path.read_bytes())).call(inputs)
    model = Model(path)
    found = model(inputs)
    np.testing.assert_allclose(raw["mean"], predictor(frame).mean, 1e-5)
    assert found.keys() == raw.keys()
    for name, one in found.items():
        np.testing.assert_allclose(one, raw[name], rtol=1e-3, err_msg=name)
    inputs[3, 0] = np.nan  # The search for quantiles would make finite numbers of it.
    found = model(inputs)["quantiles"]
    assert np.isnan(found[3]).all()
    np.testing.assert_allclose(np.delete(found, 3, 0), np.delete(raw["quantiles"], 3, 0), 1e-3)


@pytest.mark.check
def test_an_export_takes_no_file_s_place(trained, tmp_path):
    workdir = trained[0]
    reader, table = tmp_path / "read_table.py", tmp_path / "a.bin.table.json"

    def done(name):
        return run_here(
            "ensemble.__main__", "export", f"--workdir={workdir}", f"--out={tmp_path / name}"
        )

    def refused(name, line):
        before = {path: path.read_text() for path in tmp_path.iterdir()}
        ended = done(name)
        assert ended.returncode == 2
        assert line in ended.stderr.splitlines()[-1]
        assert {path: path.read_text() for path in tmp_path.iterdir()} == before

    refused("read_table.py", f"{reader} is to be written beside it, and is the same file; choose")
    for mine, choose in ((reader, "with other content; choose another folder"), (table, "name or")):
        mine.write_text("mine")
        refused("a.bin", f"{mine} is to be written beside it, and is there already")
        refused("a.bin", choose)
        mine.unlink()
    assert [done(name).returncode for name in ("a.bin", "b.bin")] == [
        0,
        0,
    ]  # With one of each reader.
    assert len(list(tmp_path.iterdir())) == 6
    assert reader.read_bytes() == TABLE_READER.read_bytes()


@pytest.mark.check
def test_data_frames_learn_what_the_file_does(trained):
    _, _, frame, result = trained
    config = small_config(
        target="price", split="group:agent", columns={"sold": "drop"}, method="sgd"
    )
    again = ensemble.train(config, data=frame, show_progress=False)
    shared = {key: result.report["config"][key] for key in ("optimizer", "schedule", "likelihood")}
    assert again.report["config"] | shared == again.report["config"]
    np.testing.assert_allclose(again.predictor(frame).mean, result.predictor(frame).mean, 1e-5)


@pytest.mark.check
def test_a_workdir_goes_on_with_the_same_table_only(trained, tmp_path):
    workdir, file, frame, _ = trained
    config = config_of(workdir)
    changed = frame.assign(size=frame["size"] * 2)  # Standardised they are the same.
    assert ensemble.train(config, workdir=str(workdir), show_progress=False).report
    changed.to_csv(file, index=False)
    try:
        with pytest.raises(UserError, match="other data"):
            ensemble.train(config, workdir=str(workdir), show_progress=False)
    finally:
        frame.to_csv(file, index=False)


@pytest.mark.check
def test_strata_are_those_of_the_rows(trained):
    _, file, frame, _ = trained
    dataset = loaded_table(f"csv:{file}", "price", split="time:sold")
    strata = {split: dataset.strata(split) for split in dataset.sizes}
    first = (frame["sold"].min() - pd.Timestamp("1970-01-01")).days
    assert strata["train"].values.tolist() == [first + i for i in range(84)]
    assert strata["test"].values.max() == first + 119
    np.testing.assert_array_equal(
        dataset.targets("test"), frame["price"].to_numpy(np.float32)[-12:]
    )
    assert dataset.table.columns[2] == {
        "name": "sold", "kind": "drop", "why": "config.split is by its times",
    }  # fmt: skip


@pytest.mark.check
def test_an_evaluation_tells_groups_apart(tmp_path):
    frame = make_table().assign(town=lambda f: f["town"] == "here")
    config = small_config(target="town", split="group:agent", likelihood="auto")
    ensemble.train(config, data=frame, workdir=str(tmp_path / "run"), show_progress=False)
    frame[:30].drop(columns="town").to_csv(tmp_path / "others.csv", index=False)
    others = f"csv:{tmp_path / 'others.csv'}"
    evaluation = ensemble.evaluate(
        tmp_path / "run", data=frame, datasets=others, show_progress=False
    )
    assert evaluation["out_of_distribution"][others]["num_rows"] == 30
    assert any(one["code"].startswith("strata.groups") for one in evaluation["findings"])
    groups = evaluation["conformal"]["sets"]["by_stratum"]
    sizes = [one["num_rows"] for one in groups]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == evaluation["dataset"]["num_examples"]["test"]
    page = (tmp_path / "run" / "evaluation" / "report.html").read_text()
    assert all(f"<td>{one['name']}</td>" in page for one in groups)


@pytest.mark.check
def test_forged_tables_are_refused(trained):
    workdir, *_ = trained
    description = json.loads((workdir / "report.json").read_text())["dataset"]
    check_description(description, "gaussian")
    columns = description["table"]["columns"]
    many = {"name": "town", "kind": "category", "categories": [*map(str, range(33))], "rare": []}
    shape = [description["input_shape"][0] - num_features(columns[1]) + 33]
    wide = {"table": description["table"] | {"columns": [columns[0], many, *columns[2:]]}}
    with pytest.raises(ValueError, match="'town'"):
        check_description(description | wide | {"input_shape": shape}, "gaussian")
    for forged in (
        [],
        [*columns, {"name": "more", "kind": "category", "categories": ["a"], "rare": []}],
        [columns[0] | {"scale": 0}, *columns[1:]],
        [columns[0] | {"periods": [[]]}, *columns[1:]],
        [columns[0], columns[1] | {"rare": [3]}, *columns[2:]],
        [columns[0], columns[0], *columns[2:]],
    ):
        table = description["table"] | {"columns": forged}
        with pytest.raises(ValueError, match=r"dataset\.table"):
            check_description(description | {"table": table}, "gaussian")


def test_splits_are_all_tables_or_none():
    frame = make_table()[["size"]]
    data = {"train": (frame, np.arange(120) % 2), "test": (frame.to_numpy(), np.arange(120) % 2)}
    with pytest.raises(UserError, match="ndarray"):
        ensemble.train(small_config(), data, show_progress=False)


def test_whole_numbers_beside_a_table_are_what_they_would_be_in_it():
    frame, many, few = make_table(), np.arange(120), np.arange(120) % 3
    rest = frame.drop(columns="price")
    assert recognise((rest, many)).kind == "targets"
    assert recognise({"X": rest, "y": pd.DataFrame({"y": many})}).kind == "targets"
    assert "train_labels" in recognise({"train": (rest, pd.Series(few))}).arrays
    assert "train_targets" in recognise({"train": frame}, target="price").arrays


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", "b", "a"], "labels"),
        ([0.0, 1.0, 2.0], "labels"),
        ([0.5, 1.0, 2.0], "targets"),
        (list(map(float, range(11))), "targets"),
        (["true", "false", "true"], "labels"),
    ],
)
def test_what_the_column_to_learn_holds(values, kind):
    is_text = isinstance(values[0], str)
    column = Column(np.array(values, object if is_text else float), "" if is_text else "number")
    assert kind_of_target(column, "y") == kind


def _given(folder, train, test):
    """The source of two files, of columns `c`, `n` and the target `y`."""
    folder.mkdir()
    pd.DataFrame(train).to_csv(folder / "train.csv", index=False)
    pd.DataFrame(test).to_csv(folder / "test.csv", index=False)
    return loaded_table(f"csv:{folder}")


def test_copies_of_rows_are_found_by_names_and_values_of_columns(tmp_path, caplog):
    n = np.arange(60) % 40
    train = {"c": np.where(n % 2, "a", "b"), "n": n, "y": np.arange(60)}
    _given(tmp_path / "order", train, {key: train[key][50:] for key in ("n", "y", "c")})
    assert caplog.text.count("10 of 10 test examples") == 1
    caplog.clear()
    test = {key: values[:20] for key, values in train.items()}
    _given(tmp_path / "targets", train, test | {"y": 100 + n[:20]})
    _given(tmp_path / "categories", train, test | {"c": np.where(n[:20] % 2, "b", "c")})
    assert "test examples equal" not in caplog.text


def test_a_table_with_an_id_is_noted_when_it_is_read(tmp_path, caplog):
    rows = {"id": [f"{k:03d}" for k in range(60)], "n": np.arange(60) % 7, "y": np.arange(60)}
    _given(tmp_path / "table", rows, {key: values[50:] for key, values in rows.items()})
    assert caplog.text.count("Column 'id' has another whole number in each of 60 rows") == 1
    assert "Column 'n'" not in caplog.text
