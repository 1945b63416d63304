"""Runs train.py as several processes on this machine, again after one has died.

    python scripts/launch_local.py --num_processes=2 --devices_per_process=4 -- \\
        --config=configs/digits_ensemble.py --workdir=runs/digits

What follows `--` are arguments of train.py. Process 0 is shown here, and every process has a log.
Where JAX runs on NVIDIA GPUs, each process gets as many of them, and sees no others.
Ctrl-C or SIGTERM stops all after a checkpoint. Exit status: 0 finished; 75 stopped, or restarts
used up, and the same command goes on; else that of the process that failed.
"""

import argparse
import contextlib
import ctypes
import importlib.metadata
import os
import pathlib
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
STOPPED = 75
"""The exit status of train.py: a checkpoint has been written, the same command goes on."""
GRACE_SECONDS = 60
"""What the others have to end by themselves, once one has ended; half of that after SIGTERM."""
LAST_SECONDS = 8
"""What they have until SIGTERM where one has failed for good: they may have a line to say."""
_POLL_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> int:
    """Starts, watches and restarts the processes; returns the exit status."""
    args, train_args = _parse(argv)
    logs = pathlib.Path(args.logs or tempfile.mkdtemp(prefix="launch_local_"))
    _make_logs(logs, args.num_processes)
    _say(f"logs: {logs}/process_*.log")
    own = share_gpus(args.num_processes)
    stop = _Stop()
    for attempt in range(args.max_restarts + 1):
        if attempt:
            _say(f"restart {attempt} of {args.max_restarts}")
        with reserve_port() as reserved:
            port = reserved.getsockname()[1]
            statuses = _run_once(args, train_args, own, port, logs, stop)
        for k, status in enumerate(statuses):
            if status:
                log = logs / f"process_{k}.log"
                last = f"; it says: {_last_line(log)}" if k and not _is_temporary(status) else ""
                _say(f"process {k} {_describe(status)}; log: {log}{last}")
        worst = _worst(statuses)
        if worst == 0 or stop.asked or not _is_temporary(worst):
            break
    if not _is_temporary(worst):
        return worst
    _say(f"stopped; go on with: {shlex.join([sys.executable, *sys.argv])}")
    return STOPPED


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            print(f"launch_local.py: {message}; --help says more", file=sys.stderr)
            sys.exit(2)

    own = list(argv[: argv.index("--")] if "--" in argv else argv)
    as_written = argparse.RawDescriptionHelpFormatter
    parser = Parser(description=__doc__, formatter_class=as_written, allow_abbrev=False)
    parser.add_argument("--num_processes", type=int, required=True)
    parser.add_argument("--devices_per_process", type=int, default=1, help="CPU devices of each")
    parser.add_argument("--max_restarts", type=int, default=3, help="after a process has died")
    parser.add_argument("--logs", help="directory; a temporary one if not given")
    args = parser.parse_args(own)
    for name, least in (("num_processes", 1), ("devices_per_process", 1), ("max_restarts", 0)):
        if getattr(args, name) < least:
            parser.error(f"--{name}={getattr(args, name)} must be at least {least}")
    train_args = list(argv[len(own) + 1 :])
    if not train_args:
        parser.error("arguments of train.py are missing: put them after --")
    return args, train_args


def _make_logs(logs: pathlib.Path, num_processes: int) -> None:
    """Makes the directory and every process's log, or ends with one line."""
    try:
        logs.mkdir(parents=True, exist_ok=True)
        for k in range(num_processes):
            open(logs / f"process_{k}.log", "ab").close()
    except OSError as error:
        reason = error.strerror or error
        _say(f"--logs={logs} must be a directory that can be written ({reason}); choose another")
        sys.exit(2)


class _Stop:
    """Whether Ctrl-C, SIGTERM or SIGHUP has come, of which all processes are told."""

    def __init__(self) -> None:
        self.asked = False
        self.processes: list[subprocess.Popen[bytes]] = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, *_: Any) -> None:
        again = self.asked
        self.asked = True
        for process in self.processes:
            _signal(process, signal.SIGKILL if again else signal.SIGTERM)
        if not again:
            with contextlib.suppress(OSError):  # Not `print`, which may be interrupted here.
                os.write(2, b"launch_local.py: stopping after a checkpoint; again ends at once\n")


def reserve_port() -> socket.socket:
    """Binds a free port of this machine; who asks for any is given another while this is open.

    It does not listen, so that process 0 can.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def share_gpus(num_processes: int) -> list[dict[str, str]]:
    """What each process's environment has beside this one's: the NVIDIA GPUs that it sees.

    Else each would take 75% of the memory of every GPU. JAX is not imported: it would take it too.
    NCCL refuses two processes on one GPU ("Duplicate GPU detected"), so none is shared.
    """
    gpus = _gpus()
    if not gpus or num_processes == 1:
        return [{} for _ in range(num_processes)]
    each = len(gpus) // num_processes
    if not each:
        _say(
            f"--num_processes={num_processes} must be at most the {len(gpus)} GPU(s) here: NCCL "
            "refuses two processes on one; lower it, or put JAX_PLATFORMS=cpu before the command"
        )
        sys.exit(2)
    if idle := gpus[each * num_processes :]:
        _say(f"GPU {', '.join(idle)} stays idle: each of {num_processes} processes has {each}")
    shares = [gpus[k * each : (k + 1) * each] for k in range(num_processes)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares]


def _gpus() -> list[str]:
    """The GPUs that JAX takes, as CUDA_VISIBLE_DEVICES names them; none where it takes CPUs."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    plug_ins = importlib.metadata.entry_points(group="jax_plugins")
    may_take = not platforms or "cuda" in platforms or "gpu" in platforms
    if not may_take or not any("cuda" in plug_in.name for plug_in in plug_ins):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return [str(k) for k in range(len(lines))]


def _run_once(
    args: argparse.Namespace,
    train_args: list[str],
    own: Sequence[dict[str, str]],
    port: int,
    logs: pathlib.Path,
    stop: _Stop,
) -> list[int]:
    """Runs all processes to their end; returns their exit statuses, negative for signals.

    Args:
        args: of the launcher.
        train_args: those of train.py.
        own: what each process's environment has beside this one's.
        port: the coordinator's.
        logs: directory of the logs.
        stop: whether the user has asked for it.
    """
    devices = {"JAX_NUM_CPU_DEVICES": str(args.devices_per_process)}
    processes = stop.processes = []
    for k in range(args.num_processes):
        command = [
            sys.executable,
            str(ROOT / "train.py"),
            *train_args,
            f"--coordinator_address=127.0.0.1:{port}",
            f"--num_processes={args.num_processes}",
            f"--process_id={k}",
        ]
        with open(logs / f"process_{k}.log", "ab") as log:
            with contextlib.suppress(OSError):  # The run can do without.
                os.write(log.fileno(), time.strftime("=== started %F %T ===\n").encode())
            processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if k == 0 else log,
                    stderr=subprocess.STDOUT,
                    # The machine's devices are shared out among the processes.
                    env={**os.environ, **devices, **own[k]},
                    start_new_session=True,  # Ctrl-C comes through `stop`, once.
                    preexec_fn=_end_with_launcher,
                )
            )
    output = processes[0].stdout
    assert output is not None
    echo = threading.Thread(target=_echo, args=(output, logs / "process_0.log"), daemon=True)
    echo.start()
    if stop.asked:  # While they were started.
        for process in processes:
            _signal(process, signal.SIGTERM)
    _wait(processes)
    # A child of process 0, such as a download, may hold the pipe for long after it.
    while echo.is_alive():
        echo.join(LAST_SECONDS)
        if not select.select([output], [], [], 0)[0]:
            break
    return [process.returncode for process in processes]


def _end_with_launcher() -> None:
    """Has Linux send SIGTERM to this process when its launcher dies, however that ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(processes: list[subprocess.Popen[bytes]]) -> None:
    """Waits for all; once one has ended, not for long: the others are of no use without it."""
    while all(process.poll() is None for process in processes):
        time.sleep(_POLL_SECONDS)
    ended = time.monotonic()
    while any(process.poll() is None for process in processes):
        late = time.monotonic() - ended
        has_failed = any(not _is_temporary(process.returncode or STOPPED) for process in processes)
        if late > (LAST_SECONDS if has_failed else GRACE_SECONDS / 2):
            for process in processes:
                _signal(process, signal.SIGKILL if late > GRACE_SECONDS else signal.SIGTERM)
        time.sleep(_POLL_SECONDS)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(number)


def _echo(output: IO[bytes], path: pathlib.Path) -> None:
    """Shows what a process says, and logs it; if it cannot, it reads on: the process would wait."""
    with open(path, "ab", buffering=0) as log:
        sinks = {str(path): log.fileno(), "standard output": sys.stdout.fileno()}
        for line in output:
            for name, sink in list(sinks.items()):
                try:
                    os.write(sink, line)
                except OSError as error:
                    del sinks[name]
                    _say(f"{name} cannot be written ({error.strerror}); the run goes on without")


def _worst(statuses: list[int]) -> int:
    """What tells most: an error of the run, then a death, then a stop."""
    return max(statuses, key=lambda status: (status != 0, not _is_temporary(status), status < 0))


def _is_temporary(status: int) -> bool:
    """Whether the same again may do: a stop, or a death by a signal."""
    return status == STOPPED or status < 0


def _last_line(log: pathlib.Path) -> str:
    """What a process has said at its end; its log ends in this run's part."""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(log.stat().st_size - 4000, 0))
        lines = file.read().decode(errors="replace").split("=== started ")[-1].splitlines()[1:]
        last = lines[-1] if lines else "nothing"
        return last if last.isprintable() else ascii(last)
    return "nothing"


def _describe(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with exit status {status}"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # A terminal that is gone.
        print(f"launch_local.py: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
