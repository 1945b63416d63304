"""Compares methods at equal compute, and recommends one.

    ensemble compare-methods --config=digits_ensemble --time_limit=10m --workdir=runs/methods

It trains the network and the data of `--config` by one method after the other, at equal CPU
seconds: those of one network first, then four and sixteen times as many, within the time limit. A
table shows how good each is on the test split. `--config.KEY=VALUE` sets a key. The same command
resumes an interrupted comparison, and extends a finished one by more time.
"""

import ensemble
from ensemble import cli


def main(call: cli.Call) -> None:
    """Compares methods, and prints the results."""
    values = call.flags
    result = ensemble.compare_methods(
        call.build().values, values.time_limit, values.workdir, methods=values.methods or None
    )
    cli.print_answer(f"{result!r}\n\nResults: {values.workdir}/methods.json")
