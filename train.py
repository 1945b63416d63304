"""The command line of `ensemble.commands.train`, for a clone: `python train.py --help`."""

import sys

from ensemble.commands.train import run

if __name__ == "__main__":
    sys.exit(run())
