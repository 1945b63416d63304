"""The command line of `ensemble.commands.predict`, for a clone: `python predict.py --help`."""

import sys

from ensemble.commands.predict import run

if __name__ == "__main__":
    sys.exit(run())
