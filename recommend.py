"""`ensemble recommend`, for a clone: `python recommend.py --help`."""

import sys

from ensemble.cli import run

if __name__ == "__main__":
    sys.exit(run("recommend", sys.argv, "recommend.py"))
