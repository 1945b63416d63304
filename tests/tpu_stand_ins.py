"""Stand-ins for what the TPU launcher talks to: Google, a worker's shell, and what it finds there.

`gcloud` records its arguments and plays Google; the commands for the workers are really executed,
by bash, in a home of their own. So every layer of quoting is real, and only Google is not.
"""

import os
import pathlib
import shutil
import subprocess
import time

from conftest import ROOT

WORKERS = 2
GCLOUD = f"""#!/bin/bash
printf '%s\\0' "$@" '<end>' >> "$STAGE/calls"  # One write: calls do not mix.
fail() {{ echo "ERROR: (gcloud) $1" >&2; exit 1; }}
say() {{ if [ -e "$STAGE/$1" ]; then cat "$STAGE/$1"; else fail 'NOT_FOUND: no resource'; fi; }}
for word; do case $word in
  --worker=*) export WORKER=${{word#*=}} HOME="$STAGE/worker-${{word#*=}}"; mkdir -p "$HOME" ;;
  --command=*) command=${{word#*=}} ;;
  --format=*) format=${{word#*=}} ;;
esac; done
case "$3 $4 $format" in
  'tpu-vm describe value(networkEndpoints.len())') echo {WORKERS} ;;
  *describe*failedData*) say message ;;
  'queued-resources describe '*) say request ;;
  'tpu-vm describe '*) say node ;;
  *create*)
    if [ -e "$STAGE/refusal" ]; then fail "$(cat "$STAGE/refusal")"; fi
    if [ -e "$STAGE/message" ]; then echo FAILED; else echo ACTIVE; fi > "$STAGE/request"
    echo READY > "$STAGE/node"
    if [ -e "$STAGE/never" ]; then echo SUSPENDED > "$STAGE/request"; fi ;;
  *delete*) say request && rm -f "$STAGE/request" "$STAGE/node" ;;
  *scp*) cp "$5" "$HOME/${{6#pod:}}" ;;
  *ssh*) bash -c "$command"; status=$?; touch "$STAGE/ended-$WORKER"; exit $status ;;
esac
"""
STAND_INS = {
    "gcloud": GCLOUD,
    "sleep": "#!/bin/sh\nexec /bin/sleep 0.02\n",
    "date": "#!/bin/sh\necho 1700000000\n",
    # On the workers: uv, as its installer brings it, and the Python that it brings.
    "curl": '#!/bin/sh\necho "mkdir -p \\"\\$UV_UNMANAGED_INSTALL\\" && '
    'cp \\"$STAGE/bin/uv\\" \\"\\$UV_UNMANAGED_INSTALL\\""\n',
    "uv": '#!/bin/bash\nprintf \'%s\\n\' "$*" >> "$HOME/uv.log"\n'
    'if [ "$1" = venv ]; then mkdir -p .venv/bin && cp "$STAGE/bin/python" .venv/bin; fi\n',
    "python": '#!/bin/bash\nprintf \'%s\\0\' "$@" >> "$HOME/argv"\nsource "$STAGE/play"\n',
}


class Stage:
    """A repository with the launcher, stand-ins on PATH, and what they recorded.

    Args:
        path: an empty directory.
        play: what train.py does on a worker, in bash.
    """

    def __init__(self, path: pathlib.Path, play: str = "echo step 1 of worker $WORKER\n"):
        self.path = path / "stage"
        self.repo = path / "repository"
        for name, text in STAND_INS.items():
            file = self.path / "bin" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)
        (self.path / "play").write_text(play)
        self.env = {
            **os.environ,
            "STAGE": str(self.path),
            "PATH": f"{self.path / 'bin'}:{os.environ['PATH']}",
        }
        (self.repo / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "launch_tpu_pod.sh", self.repo / "scripts")
        (self.repo / ".gitignore").write_text("runs/\n")
        (self.repo / "train.py").write_text("# Played by a stand-in.\n")
        self.git("init", "--quiet")
        self.git("add", ".")
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.invalid")
        self.git(*identity, "commit", "--quiet", "--message=code")
        self.commit = self.git("rev-parse", "HEAD").stdout.strip()

    def git(self, *arguments):
        return subprocess.run(
            ["git", *arguments], cwd=self.repo, check=True, capture_output=True, text=True
        )

    def start(self, *arguments):
        return subprocess.Popen(
            ["scripts/launch_tpu_pod.sh", *arguments],
            cwd=self.repo,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def launch(self, *arguments):
        with self.start(*arguments) as process:
            try:
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def calls(self):
        """What gcloud was given: all that is for no worker, and by worker."""
        path = self.path / "calls"
        recorded = path.read_text().split("<end>\0")[:-1] if path.exists() else []
        calls = [call.split("\0")[:-1] for call in recorded]
        assert all(call[:2] == ["compute", "tpus"] for call in calls)
        rest = [call[2:] for call in calls if not worker_of(call)]
        return rest, [
            [call[2:] for call in calls if worker_of(call) == f"--worker={worker}"]
            for worker in range(WORKERS)
        ]

    def verbs(self):
        """The commands that change something, in order, without their arguments."""
        return [call[1] for call in self.calls()[0] if call[1] != "describe"]

    def trained_with(self, worker=0):
        """The arguments of each start of train.py on a worker."""
        words = (self.path / f"worker-{worker}" / "argv").read_text().split("\0")[:-1]
        starts = [i for i, word in enumerate(words) if word == "train.py"]
        return [words[i + 1 : j] for i, j in zip(starts, [*starts[1:], len(words)], strict=True)]

    def worker(self, worker):
        """What a worker keeps between starts."""
        return self.path / f"worker-{worker}" / "flax-ensembles"

    def installed(self, worker):
        """The commands that uv was given on a worker, word by word."""
        text = (self.path / f"worker-{worker}" / "uv.log").read_text()
        return [line.split() for line in text.splitlines()]

    def log(self, worker):
        return (self.repo / "runs" / "launch-pod" / f"worker-{worker}.log").read_text()

    def alive(self):
        """The processes of train.py that still run."""
        pids = [path.read_text().strip() for path in self.path.glob("worker-*/flax-ensembles/pid")]
        found = [pathlib.Path(f"/proc/{pid}/cmdline") for pid in pids]
        return [path for path in found if path.exists() and b"train.py" in path.read_bytes()]


def wait_for(condition):
    """Returns when the condition holds; fails when it does not for half a minute."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def worker_of(call):
    return next((word for word in call if word.startswith("--worker=")), None)
