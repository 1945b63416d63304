"""Programs in the tests' process: each start is as the first, whoever has flags of such names."""

from absl import flags
from programs import run_here


def test_a_start_leaves_no_flag_and_meets_none():
    run_here("train.py")  # absl itself defines some at its first start.
    before = set(flags.FLAGS)
    for _ in range(3):
        for program in ("evaluate.py", "train.py", "export", "train.py"):
            command = ("ensemble.__main__", program) if program == "export" else (program,)
            done = run_here(*command, "--workdir=")
            assert done.returncode == 2
            assert len(done.stderr.splitlines()) == 1, done.stderr
            assert "is missing" in done.stderr
        assert set(flags.FLAGS) == before
