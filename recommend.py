"""The command line of `ensemble.commands.recommend`, for a clone: `python recommend.py --help`."""

import sys

from ensemble.commands.recommend import run

if __name__ == "__main__":
    sys.exit(run())
