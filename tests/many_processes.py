"""One process of several, for tests: trains small runs of every method, one after another.

    python tests/many_processes.py ADDRESS NUM_PROCESSES PROCESS_ID NUM_DEVICES ROOT STAGE

ROOT gets a workdir for each run. The stage `every` is the runs of `every_method`, first in
ROOT/killed, then in ROOT/whole; those that have left a report there are not begun again.
"""

import pathlib
import sys

import applications
from small_runs import leave_pictures_blank, make_blobs, small_config

SAMPLER = {
    "method": "hmc",
    "model": "logistic_regression",
    "prior": "normal(1)",
    "init_from": "prior",
    "num_chains": 4,
    "log_every_steps": 10,
    "sampler.num_leapfrog_steps": 4,
}


PARTS = {"first": 1, "more": 2, "whole": 3, "stuck": 3}
RESUMED = ("members", "growing_members", *applications.examples("RESUMED"))
"""The runs that go on, on other devices; the first part of the others is the whole."""
STUCK = "stuck_chains"
"""A run of its own: what has not moved after twenty draws is stuck."""
METHODS = "methods:"
"""Begins the stage that runs the methods whose names follow, separated by commas."""


SMALL = {
    "supervised": {
        "model": "logistic_regression",
        "prior": "normal(1)",
        "log_every_steps": 4,
        "eval_every_epochs": 4,
        "ensemble_size": 2,
        "num_steps": 20,
        "batch_size": 16,
        "num_chains": 2,
        "sampler.num_leapfrog_steps": 4,
        "sampler.step_size": 0.1,
        "sampler.num_warmup": 4,
        "sampler.num_samples": 12,
        "sgmcmc.num_burn_in": 4,
        "sgmcmc.num_samples": 8,
        "sgmcmc.steps_per_draw": 2,
    },
    **applications.examples("SMALL"),
}
"""By task: what its methods set, of which each takes the keys that it has; they save often."""

OF_METHODS = {
    "swag": {"swag.num_iterates": 4, "swag.num_draws": 3},
    "mc_dropout": {"model": "mlp", "mlp.dropout": 0.2, "mc_dropout.num_passes": 3},
    "batch_ensemble": {"batch_ensemble.num_estimators": 2},
    "packed": {"model": "mlp", "packed.num_estimators": 2, "packed.gamma": 2},
    "varied": {"varied.learning_rate_factor": "0.5,2", "varied.label_smoothing": "0,0.1"},
    "cross_fitted": {"num_steps": 60, "optimizer": "adam"},  # Long enough for what is tried.
    "laplace": {"init_from": "members", "laplace.structure": "kronecker"},
}
"""What some methods set beside; `members` is a run that is made first."""

OTHERS_BY_PART = applications.examples("RUNS_BY_PART")
"""Functions `(part, settings of hmc) -> configuration`, by name."""
OTHERS = applications.examples("RUNS")
"""Runs of applications, beside those of the methods."""


def every_method(root):
    """For each registered method a configuration and data, of the first task that it can learn.

    And the runs of `OTHERS`. `members` in `root` are those of `train_members`.
    """
    import ensemble

    found = {}
    for method, entry in ensemble.registry.METHODS.items():
        task = entry.tasks[0]
        config = ensemble.default_config()  # What a method has no use for is left out.
        own = OF_METHODS.get(method, {})
        config.update_from_flattened_dict({**SMALL[task], "method": method, **own})
        if "init_from" in own:
            config.init_from = str(pathlib.Path(root) / own["init_from"])
        found[method] = config, make_blobs() if task == "supervised" else None
    for name, run in OTHERS.items():
        config = ensemble.default_config()
        config.update_from_flattened_dict(run)
        found[name] = config, None
    return found


def train_members(root, **changes):
    """Trains those that some methods begin with."""
    import ensemble

    config, data = every_method(root)["sgd"]
    config.update_from_flattened_dict(changes)
    data = None if "dataset" in changes else data
    ensemble.train(config, data, str(root / "members"), show_progress=False)


def train_methods(root, names):
    """Trains those that have not ended yet, until another process is lost."""
    import ensemble
    from ensemble.sharding import processes

    with processes.losses_noticed():
        for folder in (root / "killed", root / "whole"):
            for method in names:
                config, data = every_method(root)[method]
                if method == "laplace" and not (root / "members" / "report.json").exists():
                    train_members(root)
                if not (folder / method / "report.json").exists():
                    ensemble.train(config, data, str(folder / method), show_progress=False)


def runs(stage):
    """Configurations and data by name, up to a stage, one of `PARTS`."""
    part = PARTS[stage]
    sgd = small_config(num_devices=None, num_epochs=None, num_steps=4 * part)
    hmc = {**SAMPLER, "sampler.num_warmup": 4, "sampler.num_samples": 2 * part, "sampler.thin": 2}
    others = {name: (run(part, hmc), None) for name, run in OTHERS_BY_PART.items()}
    return {
        "members": ({**sgd, "ensemble_size": 5}, make_blobs()),
        # Two members join when the others have taken the steps of the stages before.
        "growing_members": (
            {**sgd, "ensemble_size": 5 if part == PARTS["whole"] else 3},
            make_blobs(),
        ),
        "independent_members": (
            {**sgd, "ensemble_size": 5, "batching": "independent"},
            make_blobs(),
        ),
        "shared_member": ({**sgd, "ensemble_size": 1, "batch_size": 32}, make_blobs()),
        "failing_members": (
            {**sgd, "model": "explosive", "ensemble_size": 8, "learning_rate": 0.002},
            make_blobs(),
        ),
        # One chain, so that its data are split over all processes.
        "hmc_split": ({**hmc, "num_chains": 1}, make_blobs()),
        STUCK: (
            {
                **SAMPLER,
                "model": "explosive",
                "num_chains": 8,
                "sampler.num_warmup": 0,
                "sampler.num_samples": 24,
                "sampler.step_size": 0.01,
            },
            make_blobs(),
        ),
        **others,
    }


def train(name, stage, root, num_devices=None):
    """Trains one of them in this process, or goes on with it."""
    import ensemble

    config, data = runs(stage)[name]
    config = {**config, "num_devices": num_devices}
    return ensemble.train(config, data, workdir=str(root / name), show_progress=False)


def main(argv):
    """Meets the others and takes part in all runs."""
    address, num_processes, process_id, num_devices, root, stage = argv
    from ensemble.sharding import startup

    startup.configure_devices(int(num_devices))
    from ensemble.errors import PeerLost
    from ensemble.sharding import processes

    processes.start(address, int(num_processes), int(process_id), {"stage": stage})
    leave_pictures_blank()
    if stage.startswith(METHODS):
        try:
            train_methods(pathlib.Path(root), stage.removeprefix(METHODS).split(","))
        except PeerLost:
            processes.end(75)
        return
    compared = [name for name in runs(stage) if name != STUCK]
    for name in {"first": compared, "stuck": [STUCK]}.get(stage, RESUMED):
        train(name, stage if name in RESUMED else "whole", pathlib.Path(root))


if __name__ == "__main__":
    main(sys.argv[1:])
