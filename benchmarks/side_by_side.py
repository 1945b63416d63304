"""Side-by-side measurements: alternating rounds in fresh processes, one table, one JSON file.

Machines are noisy, and their noise drifts: so every round measures all contestants one after
another, and a ratio is taken within its round. A worker is a script that measures one thing and
prints a JSON object as its last line.
"""

import dataclasses
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent

Measurement = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        measure: what is compared, such as 'training'.
        setting: at which sizes.
        unit: of `ours` and `peer`.
        ours: median over rounds.
        peer: median over rounds; None where there is no peer.
        peer_name: who it is.
        ratio: 'median', 'min' and 'max' over rounds; above 1, ours is better.
        rounds: how many.
    """

    measure: str
    setting: str
    unit: str
    ours: float
    peer: float | None
    peer_name: str | None
    ratio: dict[str, float] | None
    rounds: int


def run_child(
    command: Sequence[str], folder: pathlib.Path | str | None = None, **environment: str
) -> tuple[str, Measurement]:
    """Runs a program in a fresh process, without compiled programs from earlier ones.

    Args:
        command: the program and its arguments.
        folder: in which it runs.
        **environment: added to that of this process.

    Returns:
        Its output, and its seconds, seconds of CPU and most MiB of memory.

    Raises:
        RuntimeError: it failed.
    """
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false", **environment}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (output, errors):
            file.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{errors.read()[-2000:]}")
        cost = {"seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime}
        return output.read(), cost | {"mib": usage.ru_maxrss / 1024}


def run_worker(command: Sequence[str]) -> Measurement:
    """Runs a worker: the interpreter, a script of this directory, its arguments.

    Returns:
        What its last line says.
    """
    interpreter, script, *arguments = command
    path = str(ROOT / "benchmarks" / script)
    output, _ = run_child([interpreter, path, *arguments], PYTHONPATH=str(ROOT))
    return json.loads(output.splitlines()[-1])


def compare(
    measure: str,
    setting: str,
    unit: str,
    ours: Sequence[float],
    peer: Sequence[float] | None = None,
    peer_name: str | None = None,
    higher_is_better: bool = True,
) -> Row:
    """Makes a row of the values of R rounds.

    Args:
        measure: what is compared.
        setting: at which sizes.
        unit: of the values.
        ours: R values.
        peer: R values of the same rounds.
        peer_name: who it is.
        higher_is_better: false for seconds and bytes.
    """
    about = (measure, setting, unit, statistics.median(ours))
    if peer is None:
        return Row(*about, None, None, None, len(ours))
    ratios = [a / b if higher_is_better else b / a for a, b in zip(ours, peer, strict=True)]
    ratio = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return Row(*about, statistics.median(peer), peer_name, ratio, len(ours))


def as_table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """Lays rows out as a Markdown table, whose head has a bar at either end of a column."""
    lines = [head, "|" + "---|" * (head.count("|") - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, cells))} |" for cells in rows)])


def number(value: float | None) -> str:
    """Four digits."""
    return "" if value is None else f"{value:.4g}"


def format_table(
    rows: Iterable[Mapping[str, Any]], verdict: Callable[[Mapping[str, Any]], str] | None = None
) -> str:
    """Lays the rows of a file out as a Markdown table.

    Args:
        rows: as `report` writes them.
        verdict: on a row, in a last column; None for none.
    """
    lines = []
    for row in rows:
        ratio = "{median:.2f}".format(**row["ratio"]) if row["ratio"] else ""
        if ratio and row["rounds"] > 1:
            ratio += " ({min:.2f} to {max:.2f})".format(**row["ratio"])
        cells = [row["measure"], row["setting"], row["unit"], number(row["ours"])]
        cells += [number(row["peer"]), row["peer_name"] or "", ratio, row["rounds"]]
        lines.append(cells + ([verdict(row)] if verdict else []))
    head = "| measure | setting | unit | ours | peer | | ratio (min to max) | rounds |"
    return as_table(head + " as good |" * bool(verdict), lines)


def report(
    rows: Sequence[Row],
    out: str | None,
    arguments: str = "",
    versions: Mapping[str, str] = {},
    more: Mapping[str, Any] = {},
) -> None:
    """Prints the table; writes it to the JSON file `out`, with command, commit and date.

    Args:
        rows: of the table.
        out: the file; None for none.
        arguments: of the command, beside `--out`.
        versions: of peers, by package.
        more: what else the file has.
    """
    written = [dataclasses.asdict(row) for row in rows]
    print(f"{describe_machine()}\n\n{format_table(written)}")
    command = ["python", f"benchmarks/{pathlib.Path(sys.argv[0]).name}", arguments]
    write(
        out,
        command=" ".join([*filter(None, command), "--out=FILE.json"]),
        **({"versions": dict(versions)} if versions else {}),
        rows=written,
        **more,
    )


def write(out: str | None, **content: Any) -> None:
    """Writes a JSON file, if one is named, with the machine, the commit and the date."""
    if out:
        path = pathlib.Path(out)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = {"machine": describe_machine(), **provenance(), **content}
        path.write_text(json.dumps(whole, indent=2) + "\n")


def provenance(root: pathlib.Path = ROOT) -> dict[str, str]:
    """The commit and the date of a measurement; results that it has written do not count."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "-uno", "--", ".", ":!benchmarks/results")
    commit = git("describe", "--always") + "-dirty" * bool(changed)
    return {"commit": commit, "date": now()}


def now() -> str:
    """The date and the time of a measurement, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def versions_of(python: str, packages: Sequence[str]) -> dict[str, str]:
    """The versions of those packages that an interpreter has."""
    program = (
        "import importlib.metadata as m, json, sys\n"
        "have = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "have = {name.replace('_', '-'): version for name, version in have.items()}\n"
        "print(json.dumps({one: have[one] for one in sys.argv[1:] if one in have}))"
    )
    completed = subprocess.run(
        [python, "-c", program, *packages], capture_output=True, text=True, check=True
    )
    return json.loads(completed.stdout)


def describe_machine() -> str:
    """Names the processor and the cores that this process may use."""
    model = platform.processor() or platform.machine()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    cores = f"{num_cores()} core{'s' * (num_cores() > 1)}"
    return f"{model}, {cores}, {platform.system()}, Python {platform.python_version()}"


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
