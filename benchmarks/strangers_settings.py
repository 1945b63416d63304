"""Cases: settings, targets that are numbers, and workdirs, in Python."""

import json
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from strangers import Score, case
from strangers_data import (
    PICTURES,
    QUICK,
    learn,
    learn_numbers,
    numbers,
    pictures,
    score,
    vectors,
)

import ensemble

HMC = {"method": "hmc", "num_chains": 2, "hmc.num_warmup": 60, "hmc.num_samples": 60}


def of_settings(name: str, says: str = "", works: bool | None = None, **config: Any) -> None:
    """Adds a case of settings; two underscores stand for a dot."""

    @case(f"settings, {name}", says=says, works=works)
    def _(folder) -> Score:
        keys = {key.replace("__", "."): value for key, value in config.items()}
        inputs, labels = vectors(0)
        return learn({"inputs": inputs, "labels": labels}, *vectors(1), keys)


def sampled(name: str, says: str = "", works: bool | None = None, **config: Any) -> None:
    """Adds a case of a sampler's settings."""

    @case(f"sampler, {name}", says=says, works=works)
    def _(folder) -> Score:
        keys = HMC | {"model": "logistic_regression"}
        keys |= {key.replace("__", "."): value for key, value in config.items()}
        (inputs, labels), (new, truth) = vectors(0), vectors(1)
        data = {"inputs": inputs, "labels": labels}
        result = ensemble.train(keys, data=data, show_progress=False)
        return score(result.predictor(new), truth)


of_settings("a huge learning rate", "diverge|finite", optimizer="sgd", learning_rate=1e4)
of_settings("a tiny learning rate", "always answering|learning rate", learning_rate=1e-9)
of_settings("a negative learning rate", "learning_rate=-", learning_rate=-0.1)
of_settings("a wrong key", "learningrate", learningrate=0.1)
of_settings("another library's key", "epochs", epochs=10)
of_settings("a wrong method", "hcm.*hmc", method="hcm")
of_settings("a wrong optimizer", "Adam", optimizer="Adam")
of_settings("a number as text", "num_epochs", num_epochs="ten")
of_settings("a fraction of epochs", "num_epochs", num_epochs=2.5)
of_settings("no epochs", "num_epochs", num_epochs=0)
of_settings("epochs and steps", "num_steps", num_steps=10)
of_settings("no members", "ensemble_size", ensemble_size=0)
of_settings("a batch beyond the data", batch_size=5000)
of_settings("batches of one", batch_size=1, num_epochs=3)
of_settings("numbers of NumPy", num_epochs=np.int64(20), learning_rate=np.float32(5e-3))
of_settings("more devices than there are", "num_devices", num_devices=64)
of_settings("keys of HMC for SGD", "hmc.num_samples", hmc__num_samples=10)
of_settings("a picture's network for vectors", "cnn|image", model="cnn")
of_settings("a Gaussian of labels", "likelihood|labels|targets", likelihood="gaussian")
of_settings("a Bernoulli of three classes", "bernoulli|classes", likelihood="bernoulli")
of_settings("a likelihood that is unknown", "softmax.*categorical", likelihood="softmax")
of_settings("weights for too few classes", "class_weights|weights", class_weights="1,2")
of_settings("shifts of vectors", "augment|shift|image", augment__shift=2)
of_settings("no held-out data", hold_out=False)
of_settings("widths as a list", "text: '32,16'", mlp__widths=[32, 16])
of_settings("weight decay that flattens all", "always answering|weight_decay", weight_decay=100.0)
sampled("short chains", "chains|R-hat|ESS|converge")
sampled("five draws", "chains|R-hat|ESS|draws", hmc__num_samples=5, hmc__num_warmup=0)
sampled("a learning rate", "learning_rate", learning_rate=0.1)
sampled("a step size of 1e3", "chains|accept|diverg|R-hat", hmc__step_size=1e3, hmc__num_warmup=0)
sampled("a prior that is no prior", "prior", prior="gauss(1)")


@case("settings, a dict of dicts", says="mlp|widths", works=True)
def _(folder) -> Score:
    return learn(vectors(0), *vectors(1), {"mlp": {"widths": "16"}})


@case("settings, none at all")
def _(folder) -> Score:
    (inputs, labels), (new, truth) = vectors(0, 60), vectors(1)
    result = ensemble.train({}, data={"inputs": inputs, "labels": labels}, show_progress=False)
    return score(result.predictor(new), truth)


@case("settings, a string", says="config")
def _(folder) -> Score:
    return ensemble.train("digits_ensemble", data=vectors(0))  # type: ignore[arg-type]


def of_targets(
    name: str, change: Callable[[Any], Any], says: str = "", key: str = "targets", **config: Any
) -> None:
    """Adds a case of numbers to learn."""

    @case(f"numbers, {name}", says=says)
    def _(folder) -> Score:
        (inputs, known), (new, truth) = numbers(0), numbers(1)
        return learn_numbers({"inputs": inputs, key: change(known)}, new, change(truth), config)


def with_target(value: Any) -> Callable[[Any], Any]:
    """Puts a value among the targets."""
    return lambda y: np.where(np.arange(len(y)) == 5, value, y)


of_targets("plain", np.asarray)
of_targets("float32, a column", lambda y: y[:, None].astype(np.float32))
of_targets("of 1e12", lambda y: 1e12 * y)
of_targets("of 1e-12", lambda y: 1e-12 * y)
of_targets("small beside their mean", lambda y: y + 1e4, says="float32.*subtract")
of_targets("whole", lambda y: np.rint(10 * y).astype(int))
of_targets("whole, as y", lambda y: np.rint(10 * y).astype(int), key="y")
of_targets("fractions, as y", np.asarray, key="y")
of_targets("a series", pd.Series)
of_targets("objects", lambda y: y.astype(object), says="object.*astype")
of_targets("constant", lambda y: 0 * y + 3, says="standard deviation 0")
of_targets("strings", lambda y: y.astype(str), says="targets.*(<U|str|text)")
of_targets("a NaN", with_target(np.nan), says="nan|finite")
of_targets("an infinity", with_target(np.inf), says="inf|finite")
of_targets("one of 1e6", with_target(1e6), says="mean|outlier|range|far|deviation")
of_targets("two columns", lambda y: np.stack([y, y], 1))
of_targets("as labels", np.asarray, says="labels.*(targets|whole|fraction)", key="labels")
of_targets("categories", np.asarray, says="categorical|targets", likelihood="categorical")
of_targets("a cross entropy", np.asarray, says="class_weights", class_weights="balanced")
of_targets("dates", lambda y: np.array(["2020-01-01"] * len(y), "datetime64[D]"), says="date|dtype")


def finished(folder, **config: Any) -> str:
    """Trains into a workdir."""
    path = str(folder / "run")
    learn(vectors(0), *vectors(1), {"num_epochs": 10} | config, path)
    return path


@case("workdir, the same again")
def _(folder) -> Score:
    return learn(vectors(0), *vectors(1), {"num_epochs": 10}, finished(folder))


@case("workdir, more members")
def _(folder) -> Score:
    config = {"num_epochs": 10, "ensemble_size": 3}
    return learn(vectors(0), *vectors(1), config, finished(folder))


@case("workdir, more epochs", says="rises again", works=True)
def _(folder) -> Score:
    return learn(vectors(0), *vectors(1), {"num_epochs": 20}, finished(folder))


@case("workdir, fewer members", says="ensemble_size")
def _(folder) -> Score:
    config = {"num_epochs": 10, "ensemble_size": 1}
    return learn(vectors(0), *vectors(1), config, finished(folder))


@case("workdir, other data", says="data|differ")
def _(folder) -> Score:
    return learn(vectors(7), *vectors(1), {"num_epochs": 10}, finished(folder))


@case("workdir, another learning rate", says="learning_rate")
def _(folder) -> Score:
    config = {"num_epochs": 10, "learning_rate": 1e-2}
    return learn(vectors(0), *vectors(1), config, finished(folder))


@case("workdir, another network", says="model")
def _(folder) -> Score:
    config = {"num_epochs": 10, "model": "logistic_regression"}
    return learn(vectors(0), *vectors(1), config, finished(folder))


@case("workdir, loaded")
def _(folder) -> Score:
    new, truth = vectors(1)
    return score(ensemble.load(finished(folder))(new), truth)


@case("workdir, loaded without a checkpoint", says="checkpoint")
def _(folder) -> None:
    path = finished(folder)
    shutil.rmtree(f"{path}/checkpoints")
    ensemble.load(path)


@case("workdir, a checkpoint that is cut off", says="checkpoint|damaged")
def _(folder) -> None:
    path = finished(folder)
    for file in (folder / "run" / "checkpoints").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    ensemble.load(path)


@case("workdir, a config.json that was edited", says="config.json|learning_rate")
def _(folder) -> Score:
    path = finished(folder)
    file = folder / "run" / "config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content).replace('"learning_rate": 0.005', '"learning_rate": "x"'))
    return learn(vectors(0), *vectors(1), {"num_epochs": 10}, path)


@case("workdir, an empty folder", says="workdir|no run|checkpoint|config.json")
def _(folder) -> None:
    ensemble.load(folder)


@case("workdir, a folder that is not there", says="nowhere")
def _(folder) -> None:
    ensemble.load(folder / "nowhere")


@case("workdir, a file", says="file|folder|directory")
def _(folder) -> Score:
    (folder / "run").write_text("notes")
    return learn(vectors(0), *vectors(1), {"num_epochs": 2}, str(folder / "run"))


@case("workdir, other inputs to predict", says=r"\(200, 3\)|\[N, 5\]|3")
def _(folder) -> None:
    ensemble.load(finished(folder))(vectors(1)[0][:, :3])


@case("workdir, one example without its axis", says=r"\(5,\)|shape")
def _(folder) -> None:
    ensemble.load(finished(folder))(vectors(1)[0][0])


@case("workdir, a NaN to predict", says="nan|finite")
def _(folder) -> None:
    ensemble.load(finished(folder))(np.full((1, 5), np.nan))


@case("workdir, columns of a data frame in another order")
def _(folder) -> Score:
    (inputs, labels), (new, truth) = vectors(0), vectors(1)
    data = {"inputs": pd.DataFrame(inputs, columns=list("abcde")), "labels": labels}
    return learn(data, pd.DataFrame(new, columns=list("abcde"))[list("edcba")], truth)


@case("workdir, a path of pathlib's")
def _(folder) -> Score:
    ensemble.train(QUICK | {"num_epochs": 10}, vectors(0), folder / "run", show_progress=False)
    new, truth = vectors(1)
    return score(ensemble.load(folder / "run")(new), truth)


@case("workdir, a list to predict")
def _(folder) -> Score:
    new, truth = vectors(1)
    return score(ensemble.load(finished(folder))(new.tolist()), truth)


@case("workdir, nothing to predict", says="N > 0")
def _(folder) -> None:
    ensemble.load(finished(folder))(np.empty((0, 5)))


@case("workdir, pictures by 255 to predict", says="scale|0 to 1|range|raw|255")
def _(folder) -> Score:
    (images, labels), (new, truth) = pictures(0), pictures(1)
    return learn((images, labels), new / 255.0, truth, PICTURES)


@case("workdir, evaluated without its data", works=True)
def _(folder) -> Score:
    found = ensemble.evaluate(finished(folder), show_progress=False)
    return Score(found["test"]["ensemble"]["accuracy"], 0.5)


@case("workdir, evaluated with its data", works=True)
def _(folder) -> Score:
    path = finished(folder)
    found = ensemble.evaluate(path, data=vectors(0), show_progress=False)
    return Score(found["test"]["ensemble"]["accuracy"], 0.5)


@case("workdir, evaluated with other data", says="data")
def _(folder) -> None:
    ensemble.evaluate(finished(folder), data=vectors(3), show_progress=False)


@case("workdir, evaluated on a set that is unknown", says="svhn")
def _(folder) -> None:
    ensemble.evaluate(finished(folder), datasets=["svhn"], show_progress=False)


@case("workdir, numbers evaluated")
def _(folder) -> None:
    inputs, targets = numbers(0)
    config = QUICK | {"likelihood": "gaussian", "num_epochs": 3}
    data = {"inputs": inputs, "targets": targets}
    ensemble.train(config, data=data, workdir=str(folder / "run"), show_progress=False)
    ensemble.evaluate(folder / "run", show_progress=False)


@case("workdir, an error that few examples cannot prove", says="prove|299|examples")
def _(folder) -> None:
    ensemble.load(finished(folder), abstain="max_error=0.01")


@case("workdir, a wrong rule of abstention", says="max_error=E")
def _(folder) -> None:
    ensemble.load(finished(folder), abstain="0.01")
