"""`ensemble train`, for a clone: `python train.py --help`."""

import sys

from ensemble.cli import run

if __name__ == "__main__":
    sys.exit(run("train", sys.argv, "train.py"))
