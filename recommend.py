"""The command line of `ensemble recommend`, for a clone: `python recommend.py --help`."""

import sys

from ensemble.__main__ import run

if __name__ == "__main__":
    sys.exit(run("recommend", "recommend.py"))
