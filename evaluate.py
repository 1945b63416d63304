"""`ensemble evaluate`, for a clone: `python evaluate.py --help`."""

import sys

from ensemble.cli import run

if __name__ == "__main__":
    sys.exit(run("evaluate", sys.argv, "evaluate.py"))
