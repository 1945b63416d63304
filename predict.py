"""The command line of `ensemble.commands.predict`, for a clone: `python predict.py --help`."""

import sys

from ensemble.__main__ import run

if __name__ == "__main__":
    sys.exit(run("predict", "predict.py"))
