"""`ensemble predict`, for a clone: `python predict.py --help`."""

import sys

from ensemble.cli import run

if __name__ == "__main__":
    sys.exit(run("predict", sys.argv, "predict.py"))
