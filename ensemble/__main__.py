"""`python -m ensemble COMMAND ...`, the same as `ensemble COMMAND ...`."""

import sys

from ensemble.cli import main

if __name__ == "__main__":
    sys.exit(main())
