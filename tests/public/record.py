"""Records the numbers of the table of runs anew: `python -m tests.public.record [ROW ...]`."""

import os
import subprocess
import sys


def main(rows):
    test = "tests/public/test_runs.py::test_every_number_is_what_it_was"
    chosen = [f"{test}[{row}]" for row in rows] or [test]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "check or not check"]
    environment = {**os.environ, "RECORD_EXPECTED": "1"}
    return subprocess.run([*command, *chosen], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
