"""Trains one network to predict what an ensemble predicts.

    ensemble distill --workdir=runs/digits --out=runs/digits_distilled

The network has the configuration of the ensemble, in which `--config.KEY=VALUE` sets a key, such as
`--config.model=mlp`, and `--config=FILE` those of a file. The same command resumes an interrupted
run.
"""

import ensemble
from ensemble import cli
from ensemble.commands import train
from ensemble.config.pieces import trusting
from ensemble.notes import shown_with_the_result


def main(call: cli.Call) -> None:
    """Trains the network, and prints its scores."""
    flags = call.flags
    file = {} if flags["config"] is None else cli.read_config(flags["config"])
    config = {**file, **call.overrides}
    with shown_with_the_result(), trusting(flags["trust"]):
        result = ensemble.distill(flags["workdir"], flags["out"], config)
    train.show(result, flags["out"])
    cli.print_answer(
        f"To compare the student: ensemble evaluate --workdir={flags['out']} "
        f"--compare={flags['workdir']}"
    )
