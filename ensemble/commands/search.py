"""Finds the best ensemble for a table within a time.

    ensemble search --data=csv:mine.csv --target=price --time_limit=10m --workdir=runs/best

It tries configurations of networks, and mixes the best. `--config.KEY=VALUE` sets a key of all of
them, such as `--config.split_by=group:patient`. `ensemble evaluate`, `predict` and `export` read
the workdir as they read any run. The same command resumes an interrupted search, and extends a
finished one by more time.
"""

import ensemble
from ensemble import cli


def main(call: cli.Call) -> None:
    """Searches, and prints what was tried and chosen."""
    flags = call.flags
    given = {"dataset": flags["data"], "target": flags["target"]}
    config = {**call.overrides, **{key: one for key, one in given.items() if one is not None}}
    result = ensemble.search(None, flags["time_limit"], flags["workdir"], config)
    cli.print_answer(f"{result!r}\n\nResults: {flags['workdir']}/results.json")
