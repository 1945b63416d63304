"""Trains small runs of every method in this process and prints what came out, as JSON.

    python tests/golden/record.py FAMILY NUM_DEVICES [FOLDER]

FAMILY is one of `FAMILIES`: runs of a family compile with the same XLA flags. FOLDER keeps the
workdirs. The flags are those of a user's run, not those of the tests.
"""

import hashlib
import json
import pathlib
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[i]) for i in (1, 2)]

import flax.linen as nn
import numpy as np
import small_runs
from applications import examples

import ensemble
from ensemble import networks

SGD = {"num_steps": 50, "learning_rate": 0.1, "log_every_steps": 10}
SAMPLER = {
    "model": "tiny",
    "prior": "normal(1)",
    "num_chains": 4,
    "log_every_steps": 25,
    "sampler.num_leapfrog_steps": 4,
    "sampler.num_warmup": 30,
    "sampler.num_samples": 50,
    "sampler.thin": 5,
}
OF_APPLICATIONS = {name: one(SAMPLER) for name, one in examples("GOLDEN").items()}
"""Chains of applications, which name their data themselves."""

FAMILIES = {
    "members": {
        "sgd_cnn": {**SGD, "model": "cnn", "ensemble_size": 3, "batch_size": 32},
        "sgd_mlp": {**SGD, "model": "mlp", "ensemble_size": 5, "batching": "independent"},
        "sgd_batch_norm": {**SGD, "model": "golden_batch_norm", "ensemble_size": 3},
    },
    "chains": {
        "hmc": {**SAMPLER, "method": "hmc"},
        "nuts": {**SAMPLER, "method": "nuts", "model": "logistic_regression"},
        "mclmc": {**SAMPLER, "method": "mclmc"},
        **OF_APPLICATIONS,
    },
}
"""Configurations by family and by name; `sgd_cnn` learns digits, the others what `data` gives."""

NUM_DEVICES = (1, 4)

COUNTS = (".titles", ".genres")
"""Entries of report.json that count by names out of the data."""

LITTLE = {"num_devices": 2, "keep_checkpoints": 1}
WORKDIRS = {
    "sgd": {**LITTLE, **SGD, "model": "golden_batch_norm", "ensemble_size": 3},
    "regression": {
        **LITTLE,
        **SGD,
        "model": "tiny",
        "likelihood": "gaussian",
        "ensemble_size": 3,
    },
    "hmc": {**LITTLE, **SAMPLER, "method": "hmc"},
    "nuts": {**LITTLE, **SAMPLER, "method": "nuts"},
    "mclmc": {**LITTLE, **SAMPLER, "method": "mclmc"},
    **{
        name: {**LITTLE, **run, **examples("GOLDEN_WORKDIRS").get(name, {})}
        for name, run in OF_APPLICATIONS.items()
    },
}
"""Configurations of the workdirs that are kept as the releases of their time wrote them."""


@networks.register("golden_batch_norm")
class Normalised(nn.Module):
    """A network with batch statistics and dropout."""

    num_classes: int

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Dense(16)(x.reshape((len(x), -1)))
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        x = nn.Dropout(0.2, deterministic=not train)(x)
        return nn.Dense(self.num_classes)(x)


def data(name):
    """Arrays to learn; None where the configuration names them."""
    if name == "sgd_cnn" or name in OF_APPLICATIONS:
        return None
    blobs = small_runs.make_blobs()
    if name == "regression":
        return {"inputs": blobs["inputs"][:, 1:], "targets": blobs["inputs"][:, 0]}
    return blobs


def outcome(workdir, report):
    """What a run has learned, as arrays by name: parameters, or what an application says."""
    if own := examples("OUTCOMES").get(report["method"]):
        return own(report)
    from flax.traverse_util import flatten_dict

    return flatten_dict(ensemble.load(workdir).fitted.sets, sep="/")


def digest(arrays):
    """A hash of every bit of named arrays."""
    sha = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        sha.update(f"{name} {np.shape(array)} {np.asarray(array).dtype}".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def summary(arrays):
    """Mean and root mean square of every array: what other processors give too, about."""
    return {
        name: [float(np.mean(a)), float(np.sqrt(np.mean(np.square(a, dtype=np.float64))))]
        for name, a in sorted(arrays.items())
    }


def fields(value, prefix=""):
    """Paths of a nested dict's entries; of `COUNTS`, whose keys are data, only their own."""
    if not isinstance(value, dict) or prefix.endswith(COUNTS):
        return {prefix}
    paths = set()
    for key, entry in value.items():
        paths |= fields(entry, f"{prefix}.{key}" if prefix else key)
    return paths


def main(argv):
    """Trains all runs of a family and prints their outcomes."""
    family, num_devices, *folder = argv
    from ensemble.sharding import startup

    # Of a family the first run would settle XLA's flags for all.
    first = next(iter(FAMILIES[family].values()))
    startup.configure(int(num_devices), first.get("method", "sgd"))
    small_runs.leave_pictures_blank()
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(*folder or [scratch])
        for name, config in FAMILIES[family].items():
            result = ensemble.train(
                {**config, "num_devices": int(num_devices)},
                data(name),
                workdir=str(root / name),
                show_progress=False,
            )
            report = json.loads((root / name / "report.json").read_text())
            arrays = outcome(root / name, report)
            found[name] = {
                "digest": digest(arrays),
                "summary": summary(arrays),
                "report_fields": sorted(fields(report)),
            }
            if name in ("sgd_mlp", "hmc"):
                found[name]["export_keys"] = export_keys(result.predictor)
    print(json.dumps(found))


def export_keys(predictor):
    """Names of what an exported ensemble returns."""
    import jax.export

    from ensemble.export import export

    outputs = jax.export.deserialize(export(predictor)).out_tree
    return sorted(outputs.unflatten([None] * outputs.num_leaves))


if __name__ == "__main__":
    main(sys.argv[1:])
