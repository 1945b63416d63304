"""Compares methods at equal training steps, and recommends one.

    ensemble compare-methods --config=digits_ensemble --time_limit=10m --workdir=runs/methods

It trains the network and the data of `--config` by one method after the other, with the training
steps of one network first, then of four and of sixteen, within the time limit. A table shows how
good each is, and what it costs. `--config.KEY=VALUE` sets a key. The same command resumes an
interrupted comparison, and extends a finished one by more time.
"""

import ensemble
from ensemble import cli


def main(call: cli.Call) -> None:
    """Compares methods, and prints the results."""
    options = {name: one for name, one in call.flags.items() if name != "config"}
    result = ensemble.compare_methods(call.build().values, **options)
    workdir = options["workdir"]
    cli.print_answer(f"{result!r}\n\nRuns: {workdir}/runs, {workdir}/trials.json")
