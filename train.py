"""The command line of `ensemble.commands.train`, for a clone: `python train.py --help`."""

import sys

from ensemble.__main__ import run

if __name__ == "__main__":
    sys.exit(run("train", "train.py"))
