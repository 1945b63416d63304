"""Simulates what is stated, and writes how often it was true.

    python -m simulations
    python -m simulations --only next_member.gain --replications=100
    python -m simulations --page

Replications are written in blocks into a file for each statement in benchmarks/results/statements,
with the commit and the date, and the same command goes on where it was interrupted; --anew forgets
what was simulated of the statements named. Status 1 says that one of them does not hold.
"""

import argparse
import concurrent.futures
import datetime
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import time

from simulations import page, suite

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = 250


def _add(results: dict, block: tuple, counts: dict[str, dict], commit: str) -> None:
    name, setting, start, stop = block
    result = results.setdefault(name, {}).setdefault(setting, {"replications": 0, "counts": {}})
    result["replications"] += stop - start
    result["commit"] = commit
    result["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    for part, count in counts.items():
        total = result["counts"].setdefault(part, {"stated": 0, "yes": 0})
        for key, value in count.items():
            total[key] += value


def _missing(results: dict, names: list[str], replications: int | None) -> list[tuple]:
    """Blocks that are yet to be simulated, one setting's after the other's."""
    blocks = []
    for statement in suite.STATEMENTS:
        if names and statement.name not in names:
            continue
        wanted = replications or statement.num_replications
        for setting in statement.settings:
            done = results.get(statement.name, {}).get(setting, {"replications": 0})
            for start in range(done["replications"], wanted, BLOCK):
                blocks.append((statement.name, setting, start, min(start + BLOCK, wanted)))
    return blocks


def _read(folder: pathlib.Path) -> dict:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def _write(folder: pathlib.Path, name: str, settings: dict) -> None:
    part = folder / f"{name}.part"
    part.write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    part.replace(folder / f"{name}.json")


def _commit() -> str:
    """The commit of the code, marked if that was changed since; the results do not count."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "-uno", "--", ".", ":!benchmarks/results")
    return git("describe", "--always") + "-dirty" * bool(changed)


def main() -> None:
    """Simulates what is missing, prints what was found, writes the JSON or the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [one.name for one in suite.STATEMENTS]
    folder = ROOT / "benchmarks" / "results" / "statements"
    parser.add_argument(
        "--only", nargs="+", choices=names, default=[], metavar="STATEMENT",
        help="such as next_member.gain: names that the page has as headings",
    )  # fmt: skip
    parser.add_argument("--replications", type=int, help="of each setting")
    parser.add_argument("--out", type=pathlib.Path, default=folder)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--anew", action="store_true", help="forget earlier replications")
    parser.add_argument("--page", action="store_true", help="only write the page and its CSV")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results = _read(args.out)
    if args.page:
        rest = page.PAGE.read_text().partition(page.NEXT)[2]
        page.PAGE.write_text(page.text(results) + page.NEXT + rest)
        folder.with_suffix(".csv").write_text(page.rows_as_csv(results))
        return
    if args.anew:
        results = {name: one for name, one in results.items() if name not in (args.only or names)}
    blocks = _missing(results, args.only, args.replications)
    commit, start = _commit(), time.time()
    # A fork of a process that has threads of JAX may hang.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(args.jobs, context) as pool:
        # Blocks of a setting end in order, so that its first replications are those that are done.
        futures = [pool.submit(suite.simulate_block, *block) for block in blocks]
        for done, (block, future) in enumerate(zip(blocks, futures, strict=True), 1):
            _add(results, block, future.result(), commit)
            _write(args.out, block[0], results[block[0]])
            left = (time.time() - start) / done * (len(blocks) - done)
            print(
                f"{done}/{len(blocks)} {block[0]}: {block[1]}, {left:.0f} s left",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    rows = [
        row for row in suite.rows(results) if not args.only or row["statement"].name in args.only
    ]
    print(page.table(rows))
    sys.exit(any(not row["is_met"] for row in rows))


if __name__ == "__main__":
    main()
