"""The command line of `ensemble.commands.evaluate`, for a clone: `python evaluate.py --help`."""

import sys

from ensemble.__main__ import run

if __name__ == "__main__":
    sys.exit(run("evaluate", "evaluate.py"))
