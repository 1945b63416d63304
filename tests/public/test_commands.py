"""Every command, run in this process, by good flags and by bad ones; a few in processes."""

import csv
import gc
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import jax.export
import names
import numpy as np
import PIL.Image
import pyarrow.parquet as parquet
import pytest
from absl import flags as absl_flags
from conftest import ROOT, fill, started
from programs import run_here
from runs import classes
from small import files_in, refused, refused_command, run_command
from test_data import table

COMMANDS = (
    *("train", "search", "compare-methods", "convert", "distill", "evaluate"),
    *("predict", "export", "recommend"),
)
CONFIG = """
from ensemble import default_config


def get_config():
    config = default_config()
    config.update_from_flattened_dict({values})
    return config
"""
FEW = {
    "model": "mlp",
    "mlp.widths": "8",
    "ensemble_size": 2,
    "num_devices": 1,
    "num_epochs": 3,
    "batch_size": 32,
    "learning_rate": 0.1,
    "log_every_steps": 100,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, config files, and runs of classes and of a table's numbers; only to be read."""
    folder = tmp_path_factory.mktemp("commands")
    np.savez(folder / "all.npz", **classes())
    np.savez(folder / "new.npz", inputs=classes()["inputs"][:5])
    table().to_csv(folder / "all.csv", index=False)
    table()[:7].drop(columns="price").to_csv(folder / "new.csv", index=False)
    table().drop(columns="size")[:7].to_csv(folder / "short.csv", index=False)
    values = names.config(FEW, dataset=f"npz:{folder / 'all.npz'}")
    (folder / "classes.py").write_text(CONFIG.format(values=values))
    (folder / "broken.py").write_text("def get_config():\n    return 1 / 0\n")
    train = ["--config=tabular:deep_ensemble", *names.flags(config={**FEW, "target": "price"})]
    for flags in (
        (f"--config={folder}/classes.py", f"--workdir={folder}/run"),
        (f"--config={folder}/classes.py", f"--workdir={folder}/other", "--config.momentum=0.5"),
        (*train, f"--config.dataset=csv:{folder}/all.csv", f"--workdir={folder}/table"),
    ):
        run_command("train", *flags)
    return folder


def filled(flags, folder, out):
    return [flag.format(folder=folder, out=out) for flag in flags]


def test_every_command_is_listed_and_explains_its_flags():
    listed = run_here("ensemble.__main__").stdout
    for command in COMMANDS:
        _, name = names.command(command)
        assert f"  {name} " in listed
        done = run_command(command, "--help")
        assert not done.stderr
        assert "--" in done.stdout
    assert run_here("ensemble.__main__", "--version").stdout.split() == [names.version()]


def test_train_prints_scores_and_says_where_results_are(folder):
    flags = [f"--config={folder}/classes.py", f"--workdir={folder}/run"]
    done = run_command("train", *flags)  # It has ended, and shows what it was.
    assert "The ensemble is right on" in done.stdout
    assert str(names.file(folder / "run", "results.json")) in done.stdout


def test_every_key_is_explained_and_nothing_is_trained(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    flags = names.flags(print_config=True, config={"ensemble_size": 5})
    done = run_command("train", f"--config={folder}/classes.py", *flags)
    for key in ("ensemble_size", "learning_rate", "mlp.widths"):
        assert key in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert not files_in(tmp_path)


@pytest.mark.check
def test_one_word_swaps_the_method_and_leaves_out_its_keys(folder, tmp_path):
    values = {
        "method": "hmc",
        "sampler.num_warmup": 4,
        "sampler.num_samples": 10,
        "prior": "normal(1)",
    }
    values |= {"sampler.thinning": 2, "num_chains": 2, "log_every_steps": 5}
    flags = [f"--config={folder}/classes.py", f"--workdir={tmp_path}", *names.flags(config=values)]
    run_command("train", *flags)
    config = names.report(tmp_path)["config"]
    assert config["method"] == "hmc"
    assert "ensemble_size" not in config


CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("[a-z]*.py"))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_bundled_configuration_and_variant_is_valid(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "ensemble" / "configs" / f"{name}.py").read_text()
    variants = set(re.findall(rf"--config={name}(:\w+)?(?!\w)", text)) | {""}
    for variant in variants:
        shown = run_command("train", f"--config={name}{variant}", *names.flags(print_config=True))
        assert "method" in shown.stdout
    refused_command("train", [f"--config={name}:huge", "--workdir=x"], ("huge",))
    assert not files_in(tmp_path)


PREDICT = {
    "npz": ("--workdir={folder}/run", "{folder}/new.npz"),
    "calibrated": ("--workdir={folder}/run", "{folder}/new.npz", "--calibrated"),
    "coverage": ("--workdir={folder}/run", "{folder}/new.npz", *names.flags(coverage=0.7)),
    "csv": ("--workdir={folder}/table", "{folder}/new.csv"),
}


@pytest.mark.parametrize("case", PREDICT)
def test_predictions_are_printed_as_a_table_and_as_json(case, folder):
    flags = filled(PREDICT[case], folder, None)
    options = {"calibrated": {"calibrated": True}, "coverage": {"coverage": 0.7}}
    workdir = folder / ("table" if case == "csv" else "run")
    load = names.load(workdir, **options.get(case, {}))
    rows = json.loads(run_command("predict", *flags, "--json").stdout)["predictions"]
    rows.sort(key=lambda row: int(row["input"]))
    if case == "csv":
        expected = load(table()[:7])
        np.testing.assert_allclose([row["mean"] for row in rows], expected.mean, rtol=1e-4)
    else:
        expected = load(classes()["inputs"][:5])
        np.testing.assert_allclose([row["probs"] for row in rows], expected.probs, atol=1e-4)
    if case == "coverage":
        assert [row["accepted"] for row in rows] == names.accepted(expected).tolist()
    text = run_command("predict", *flags).stdout
    assert len(text.splitlines()) >= len(rows) + 2


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_predictions_are_written_to_a_file_in_their_order(form, folder, tmp_path):
    out = tmp_path / f"out.{form}"
    flags = names.flags(workdir=folder / "table", out=out, id_columns="owner")
    run_command("predict", *flags, folder / "new.csv")
    if form == "csv":
        rows = list(csv.DictReader(out.read_text().splitlines()))
    elif form == "jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    else:
        rows = parquet.read_table(out).to_pylist()
    expected = names.load(folder / "table")(table()[:7])
    assert [row["owner"] for row in rows] == table()["owner"][:7].tolist()
    np.testing.assert_allclose([float(row["mean"]) for row in rows], expected.mean, rtol=1e-4)


def test_an_export_needs_no_code_of_the_project(folder, tmp_path):
    done = run_command("export", f"--workdir={folder}/run", f"--out={tmp_path}/model.bin")
    assert done.stdout.startswith(f"{tmp_path}/model.bin: ")
    inputs = classes()["inputs"][:5]
    code = (
        "import sys; sys.modules['ensemble'] = None; sys.path.append('.')\n"
        "import numpy as np; from read_model import Model\n"
        f"x = np.load({str(folder / 'new.npz')!r})['inputs']\n"
        "np.save('probs.npy', Model('model.bin')(x)['probs'])"
    )
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "probs.npy")
    np.testing.assert_allclose(found, names.probs(names.load(folder / "run")(inputs)), atol=1e-4)


@pytest.mark.check
@pytest.mark.parametrize("options", [{"coverage": 0.7}, {"calibrated": True}])
def test_a_threshold_and_a_temperature_are_exported(options, folder, tmp_path):
    out = tmp_path / "model.bin"
    run_command("export", *names.flags(workdir=folder / "run", out=out, **options))
    model = jax.export.deserialize(bytearray(out.read_bytes()))
    inputs = classes()["inputs"]
    expected = names.load(folder / "run", **options)(inputs)
    found = model.call(inputs)
    np.testing.assert_allclose(found["probs"], names.probs(expected), atol=1e-4)
    if "coverage" in options:
        np.testing.assert_array_equal(found["accepted"], names.accepted(expected))
        assert 0.5 < found["accepted"].mean() < 1


@pytest.mark.check
def test_a_table_is_exported_with_what_reads_its_columns(folder, tmp_path):
    run_command("export", f"--workdir={folder}/table", f"--out={tmp_path}/model.bin")
    command = [sys.executable, "-I", "read_table.py", "model.bin.table.json"]
    command += [str(folder / "new.csv"), "x.npy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    model = jax.export.deserialize(bytearray((tmp_path / "model.bin").read_bytes()))
    found = model.call(np.load(tmp_path / "x.npy"))
    expected = names.load(folder / "table")(table()[:7]).mean
    np.testing.assert_allclose(np.ravel(found["mean"]), expected, rtol=1e-4)


def test_runs_are_evaluated_and_compared(folder, tmp_path):
    flags = {"out": tmp_path, "extra_datasets": "uniform", "metrics": "auroc:1"}
    flags |= {"compare": folder / "other", "allow_empty_sets": True}
    done = run_command("evaluate", *names.flags(workdir=folder / "run", **flags))
    assert "AUROC (1)" in done.stdout
    found = names.evaluation(tmp_path)
    assert list(found["comparison"]) == ["other"]
    assert list(found["out_of_distribution"]) == ["uniform"]
    assert found["members"] == [0, 1]
    assert names.number(found, "nll") == pytest.approx(
        names.number(names.report(folder / "run"), "nll"), rel=1e-5
    )
    text = (tmp_path / "report.html").read_text()
    assert "<svg" in text
    assert "<script" not in text


@pytest.mark.check
def test_one_network_is_distilled_from_an_ensemble(folder, tmp_path):
    flags = (f"--workdir={folder}/run", f"--out={tmp_path}/one", "--config.num_epochs=4")
    done = run_command("distill", *flags)
    assert "student" in done.stdout
    assert names.report(tmp_path / "one")["num_members"] == 1
    run_command(
        *("distill", f"--workdir={folder}/run", f"--out={tmp_path}/two"),
        *(f"--config={folder}/classes.py", "--config.ensemble_size=3"),
    )
    assert names.report(tmp_path / "two")["num_members"] == 3


@pytest.mark.check
def test_members_of_several_runs_are_selected(folder, tmp_path):
    runs = (folder / "run", folder / "other")
    names.select_members(runs, tmp_path / "both")
    nlls = [names.number(names.report(one), "nll", "validation") for one in runs]
    assert names.number(names.report(tmp_path / "both"), "nll", "validation") <= min(nlls) + 1e-6
    inputs = classes()["inputs"][:5]
    np.testing.assert_allclose(
        names.probs(names.load(tmp_path / "both")(inputs)).sum(axis=1), 1, 1e-5
    )


def test_what_cannot_be_selected_is_one_line(folder, tmp_path):
    for runs, by, *words in (
        ([], "validation", "workdirs"),
        (["/nowhere", folder / "run"], "validation", "/nowhere"),
        ([folder / "run", folder / "table"], "validation", "table"),
        ([folder / "run", folder / "other"], "test", "test"),
    ):
        refused(lambda: names.select_members(runs, tmp_path / "x", by=by), *words)  # noqa: B023
    assert not files_in(tmp_path)


@pytest.mark.check
def test_a_table_is_searched_within_a_time(folder, tmp_path):
    flags = [f"--data=csv:{folder}/all.csv", "--target=price", f"--workdir={tmp_path}/best"]
    few = {"mlp.widths": "8", "num_epochs": 100, "ensemble_size": 2, "learning_rate": 0.01}
    run_command("search", *flags, *names.flags(time_limit="1s", config=few))
    assert names.report(tmp_path / "best")["search"]
    assert len(names.load(tmp_path / "best")(table()[:7]).mean) == 7


@pytest.mark.check
def test_methods_are_compared_within_a_time(folder, tmp_path):
    flags = [f"--config={folder}/classes.py", f"--workdir={tmp_path}/all", "--methods=mc_dropout"]
    few = names.flags(time_limit="45s", config={"num_epochs": 1})
    done = run_command("compare-methods", *flags, *few)
    assert "mc_dropout" in done.stdout
    assert names.file(tmp_path / "all", "comparison.json").exists()


@pytest.mark.parametrize("flags", [[], ["--resize=4"]])
def test_pictures_are_converted_and_what_is_damaged_may_be_left_out(flags, tmp_path):
    for i in range(6):
        path = tmp_path / "pictures" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(np.full((4, 4, 3), 40 * i, np.uint8)).save(path)
    (tmp_path / "pictures/a/0.png").write_bytes(b"no picture")
    command = [tmp_path / "pictures", tmp_path / "records", *flags]
    refused_command("convert", command, ("a/0.png is damaged", "--skip_damaged"))
    assert not (tmp_path / "records").exists()
    assert "5 examples, 1 damaged" in run_command("convert", *command, "--skip_damaged").stdout
    again = run_command("convert", f"records:{tmp_path}/records", tmp_path / "again")
    assert "5 examples" in again.stdout


TRAIN = ["--config={folder}/classes.py", "--workdir={out}/run"]
RUN = "--workdir={folder}/run"
BAD = {
    "train": {
        "no config": (["--workdir={out}/run"], "--config"),
        "no such config": (["--config=no_such.py", "--workdir={out}/run"], "no_such.py"),
        "no workdir": (TRAIN[:1], "--workdir"),
        "an empty workdir": ([*TRAIN, "--workdir="], "--workdir is missing"),
        "a workdir of the system": ([*TRAIN, "--workdir=/proc/run"], "/proc/run"),
        "no such flag": ([*TRAIN, "--wrokdir=/tmp/x"], "wrokdir"),
        "a key without config": ([*TRAIN, "--num_epochs=3"], "--config.num_epochs"),
        "a word": ([*TRAIN, "extra"], "'extra'"),
        "no such key": ([*TRAIN, "--config.batchsize=3"], "config.batchsize"),
        "no such data": ([*TRAIN, "--config.dataset=mnits"], "mnits", "mnist"),
        "an escape": ([*TRAIN, "--config.model=\x1b[2J"], "model"),
        "no such model": ([*TRAIN, "--config.model=cnnn"], "cnnn"),
        "no such method": ([*TRAIN, "--config.method=magic"], "magic"),
        "no such optimizer": ([*TRAIN, "--config.optimizer=lion"], "lion", "adam"),
        "no number": ([*TRAIN, "--config.batch_size=many"], "batch_size"),
        "zero": ([*TRAIN, "--config.ensemble_size=0"], "ensemble_size=0"),
        "below zero": ([*TRAIN, "--config.batch_size=-5"], "batch_size=-5"),
        "not a number": ([*TRAIN, "--config.learning_rate=nan"], "learning_rate=nan"),
        "two lengths": ([*TRAIN, "--config.num_steps=10"], "num_steps=10"),
        "of another method": ([*TRAIN, "--config.sgmcmc.num_samples=5"], "sgmcmc.num_samples=5"),
        "a network of images": ([*TRAIN, "--config.model=cnn"], "(6,)"),
        "a prior": ([*TRAIN, "--config.prior=cauchy"], "cauchy"),
        "a block": ([*TRAIN, "--config.augment=shift"], "augment"),
        "a broken file": (["--config={folder}/broken.py", *TRAIN[1:]], "broken.py", "division"),
    },
    "evaluate": {
        "no workdir": ([], "--workdir"),
        "no such run": (["--workdir=/nowhere"], "/nowhere"),
        "no such comparison": ([RUN, "--out={out}", "--compare=/nowhere"], "/nowhere"),
        "no such score": ([RUN, "--out={out}", "--metrics=acuracy"], "acuracy"),
        "no such class": ([RUN, "--out={out}", "--metrics=auroc:x"], "x", "0, 1, 2"),
        "a share": ([RUN, "--out={out}", "--max_error=2%"], "2%"),
        "a word": ([RUN, "--out={out}", "y"], "'y'"),
        "no such data": ([RUN, "--out={out}", "--data=/nowhere.npz"], "/nowhere.npz"),
    },
    "predict": {
        "no such run": (["--workdir=/nowhere", "x.csv"], "/nowhere"),
        "no inputs": ([RUN], "predict"),
        "no such inputs": ([RUN, "/nowhere.npz"], "/nowhere.npz"),
        "inputs of a table": ([RUN, "{folder}/new.csv"], "new.csv"),
        "no column": (["--workdir={folder}/table", "{folder}/short.csv"], "size"),
        "an ending": ([RUN, "{folder}/new.npz", "--out={out}/a.txt"], "a.txt", ".csv"),
        "a column to keep": (
            ["--workdir={folder}/table", "{folder}/new.csv", "--out={out}/a.csv", "--id_columns=x"],
            "--id_columns=x",
            "'size'",
        ),
        "an impossible promise": ([RUN, "{folder}/new.npz", "--max_error=1e-9"], "1e-09"),
        "a file that is there": ([RUN, "{folder}/new.npz", "--out={folder}/all.csv"], "all.csv"),
    },
    "export": {
        "no out": ([RUN], "--out"),
        "no such run": (["--workdir=/nowhere", "--out={out}/m.bin"], "/nowhere"),
        "no such folder": ([RUN, "--out={out}/no/m.bin"], "no/m.bin"),
        "a file that is there": ([RUN, "--out={folder}/all.npz"], "all.npz is there already"),
    },
    "distill": {
        "no workdir": ([], "--workdir"),
        "no such run": (["--workdir=/nowhere", "--out={out}/x"], "/nowhere"),
        "its own folder": ([RUN, "--out={folder}/run"], "run"),
        "no such key": ([RUN, "--out={out}/x", "--config.epochs=3"], "config.epochs"),
    },
    "search": {
        "no data": (["--workdir={out}/x", "--target=price"], "dataset"),
        "no such data": (["--workdir={out}/x", "--data=csv:/no.csv", "--target=y"], "/no.csv"),
        "no such column": (
            ["--workdir={out}/x", "--data=csv:{folder}/all.csv", "--target=prize"],
            "prize",
        ),
        "no time": (
            [
                "--workdir={out}/x",
                "--data=csv:{folder}/all.csv",
                "--target=price",
                "--time_limit=0",
            ],
            "0",
        ),
    },
    "compare-methods": {
        "no config": (["--workdir={out}/x"], "--config"),
        "no such method": ([*TRAIN, "--methods=magic"], "magic"),
        "no time": ([*TRAIN, "--time_limit=soon"], "soon"),
    },
    "convert": {
        "no such source": (["/nowhere", "{out}/x"], "/nowhere"),
        "no size": (["{folder}/all.npz", "{out}/x", "--resize=x"], "--resize='x'"),
        "no pictures": (["{folder}/all.npz", "{out}/x", "--resize=4"], "--resize", "folder:PATH"),
        "a table": (["{folder}/all.csv", "{out}/x"], "all.csv"),
        "a folder that is there": (["{folder}/all.npz", "{folder}/run"], "run"),
    },
    "recommend": {
        "no user": ([RUN], "--user"),
        "no such run": (["--workdir=/nowhere", "--user=1"], "/nowhere"),
        "a classifier": ([RUN, "--user=1"], "run"),
    },
    "traim": {"no such command": ([], "traim", "train")},
}
"""Flags, and words of the line, by command."""


@pytest.mark.parametrize(
    ("command", "case"), [(command, case) for command, cases in BAD.items() for case in cases]
)
def test_a_bad_command_is_one_line_with_status_2_and_writes_nothing(
    command, case, folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    flags, *words = BAD[command][case]
    before = files_in(folder)
    refused_command(command, filled(flags, folder, tmp_path), tuple(words))
    assert not files_in(tmp_path)
    assert files_in(folder) == before


def test_a_start_leaves_no_flag_and_meets_none():
    run_here("train.py")  # absl itself defines some at its first start.
    before = set(absl_flags.FLAGS)
    for command in ("evaluate", "train", "export", "train"):
        refused_command(command, ["--workdir="], ("is missing",))
        assert set(absl_flags.FLAGS) == before


# Processes of their own.


def in_process(*command, status=0, **options):
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True, **options
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


ALONE = """
import runpy, sys
sys.argv[0] = "train.py"
try:
    runpy.run_path("train.py", run_name="__main__")
except SystemExit as end:
    assert not end.code
assert "tensorflow" not in sys.modules
"""
"""Trains, and imports no TensorFlow."""


@pytest.mark.check
def test_the_programs_of_the_root_and_the_module_are_the_commands(folder, tmp_path):
    train = [f"--config={folder}/classes.py", f"--workdir={tmp_path}/run"]
    assert "The ensemble is right on" in in_process("-c", ALONE, *train).stdout
    found = [names.stored(one)["log_probs"] for one in (tmp_path / "run", folder / "run")]
    np.testing.assert_allclose(*found, atol=1e-5)
    done = run_here("predict.py", f"--workdir={tmp_path}/run", folder / "new.npz", "--json")
    assert len(json.loads(done.stdout)["predictions"]) == 5
    flags = [f"--workdir={tmp_path}/run", *names.flags(extra_datasets="none")]
    assert run_here("evaluate.py", *flags).returncode == 0
    assert names.file(tmp_path / "run", "evaluation/report.html").exists()
    done = in_process("-m", "ensemble", "train", *train, "--config.batchsize=3", status=2)
    assert "batchsize" in done.stderr.splitlines()[-1]


@pytest.mark.check
def test_what_jax_cannot_read_in_the_environment_is_one_line(folder, tmp_path):
    command = ("train.py", f"--config={folder}/classes.py", f"--workdir={tmp_path}/run")
    environment = {**os.environ, "JAX_ENABLE_X64": "maybe"}
    done = in_process(*command, status=2, env=environment)
    (line,) = done.stderr.splitlines()
    assert "'maybe'" in line
    assert not files_in(tmp_path)


@pytest.mark.check
def test_a_reader_that_has_enough_is_no_error(folder):
    command = [sys.executable, ROOT / "predict.py", f"--workdir={folder}/run", folder / "new.npz"]
    text = f"set -o pipefail; {shlex.join(map(str, command))} | head -c 1"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert "Broken pipe" not in done.stderr


@pytest.mark.check
def test_ctrl_c_is_one_line_and_status_130(folder, tmp_path):
    command = [sys.executable, str(ROOT / "evaluate.py"), f"--workdir={folder}/run"]
    with started([*command, f"--out={tmp_path}/out"], stderr=subprocess.PIPE) as process:
        while process.poll() is None and not any((tmp_path / "out").glob("**/*.npy")):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        process.wait(timeout=60)
    assert process.returncode == 130
    assert rest.splitlines()[-1].startswith("evaluate.py: interrupted")
    assert "Traceback" not in rest


@pytest.mark.check
def test_a_file_that_may_not_grow_is_one_line(folder, tmp_path):
    command = [sys.executable, ROOT / "evaluate.py", f"--workdir={folder}/run"]
    text = f"ulimit -f 8; exec {shlex.join(map(str, command))} --out={tmp_path}/out"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_full_disk_leaves_no_half_written_results(folder, small_disk):
    fill(small_disk, free=16_000)
    flags = [f"--workdir={folder}/run", f"--out={small_disk}/out"]
    refused_command("evaluate", flags, ("No space left on device",))
    flags = [f"--config={folder}/classes.py", f"--workdir={small_disk}/run"]
    refused_command("train", flags, (f"{small_disk}/run",))
    gc.collect()  # Here, not in another test, Python 3.11 tells of NumPy's zip file.
    assert not any((small_disk / "out").glob("*.html"))
    assert not any((small_disk / "out").glob("*.json"))
