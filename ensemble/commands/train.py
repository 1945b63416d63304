"""Trains an ensemble, or samples a posterior or a density.

    ensemble train --config=digits_ensemble --workdir=runs/digits

`--config.KEY=VALUE` sets a key, such as `--config.num_epochs=20`; `--print_config` prints every key
of the run. The same command resumes an interrupted run, and adds members, epochs or draws to a
finished one if the configuration has more of them.
"""

from typing import Any

import ensemble
from ensemble import cli
from ensemble.config.build import log_notes
from ensemble.config.pieces import trusting
from ensemble.notes import shown_with_the_result
from ensemble.report.training import as_text
from ensemble.sharding import processes, startup


def main(call: cli.Call) -> None:
    """Runs the experiment, and prints its table."""
    run = call.build()
    flags = call.flags
    log_notes(run)
    startup.configure_devices(run.config.num_devices, run.config.method)
    processes.start(
        flags["coordinator_address"],
        flags["num_processes"],
        flags["process_id"],
        {key: value for key, value in run.values.items() if key != "data_dir"},
        flags["initialization_timeout"],
        flags["progress_timeout"],
    )
    workdir = flags["workdir"]
    with processes.losses_noticed(), shown_with_the_result(), trusting(flags["trust"]):
        result = ensemble.train(run.values, workdir=workdir)
    if processes.is_main():
        show(result, workdir)


def show(result: Any, workdir: str) -> None:
    """Prints the table of a run, its notes, and where its results are."""
    cli.print_answer(
        f"\n{as_text(result.report, result.evaluation)}\n\n"
        f"Results: {workdir}/results.json, plots/{', predictions/' if result.predictor else ''}\n"
        f"Monitor: tensorboard --logdir={workdir} --host=localhost"
    )
