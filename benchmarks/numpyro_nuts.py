"""Effective draws per second of `ensemble.sample` with NUTS, beside NumPyro's own, on CPU.

    python benchmarks/numpyro_nuts.py --out=benchmarks/results/numpyro_nuts.json

The same NumPyro models on the same data: five posteriors of ../shared/posteriordb, chains of 1,000
draws of warm-up and 1,000 that count, each with its default settings, of which step size, mass and
target acceptance are found or chosen alike. NumPyro's chains are vectorised on one device; on two,
two vectorised chains a device in the form that its documentation gives. Every run is a process of
its own, and nothing compiled is kept.

Sampling is warm-up and draws without compilation. In all is the whole call: `ensemble.sample` also
computes diagnostics, predictions and a report, and the peer does not. ESS is ArviZ's
bulk ESS of the latent variables. Some four minutes a round. What has been measured is kept beside
--out; the same command goes on with it.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Callable

import side_by_side
from side_by_side import Measurement, Row

MODELS = {
    "eight_schools-eight_schools_noncentered": "eight schools",
    "kidiq-kidscore_interaction": "kidiq",
    "nes1980-nes": "nes",
    "arma-arma11": "arma",
    "gp_pois_regr-gp_pois_regr": "gp_pois",
}
"""Of different kinds: hierarchical, regressions with few and many predictors, a time series, a
Gaussian process."""
SETTINGS = [(name, 4, devices) for devices in (1, 2) for name in MODELS] + [
    ("kidiq-kidscore_interaction", 16, 1)
]
WORKERS = {"ours": "numpyro_nuts_ours.py", "peer": "numpyro_nuts_peer.py"}
PEER = "NumPyro"


def main() -> None:
    """Measures, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    kept = pathlib.Path(f"{args.out}.partial")
    results: dict[str, Measurement] = json.loads(kept.read_text()) if kept.exists() else {}
    for i in range(args.rounds):
        for setting in SETTINGS:
            for who, script in WORKERS.items():
                key = _key(who, setting, i)
                if key in results:
                    continue
                command = [sys.executable, script, *map(str, setting), str(i)]
                results[key] = side_by_side.run_worker(command)
                kept.write_text(json.dumps(results))
                values = ", ".join(f"{name} {one:.4g}" for name, one in results[key].items())
                print(f"{key}: {values}", file=sys.stderr, flush=True)
    arguments = f"--rounds={args.rounds}"
    versions = side_by_side.versions_of(sys.executable, ("numpyro",))
    side_by_side.report(make_rows(results, args.rounds), args.out, arguments, versions)
    kept.unlink()


def _key(who: str, setting: tuple[str, int, int], i: int) -> str:
    return f"round {i + 1} {who} {' '.join(map(str, setting))}"


def make_rows(results: dict[str, Measurement], num_rounds: int) -> list[Row]:
    """Makes the table of the measurements by `_key`."""
    rows = []
    for setting in SETTINGS:
        name, num_chains, num_devices = setting
        text = f"{MODELS[name]}, {num_chains} chains, {num_devices} device(s)"
        ours, peer = (
            [results[_key(who, setting, i)] for i in range(num_rounds)] for who in WORKERS
        )
        for measure, unit, value in _MEASURES:
            values = list(map(value, ours)), list(map(value, peer))
            more = unit not in ("s", "leapfrogs")
            rows.append(side_by_side.compare(measure, text, unit, *values, PEER, more))
    return rows


def _per(key: str, seconds: str) -> Callable[[Measurement], float]:
    return lambda one: one[key] / one[seconds]


_MEASURES = (
    ("least ESS, sampling", "1/s", _per("ess_min", "sampling_seconds")),
    ("median ESS, sampling", "1/s", _per("ess_median", "sampling_seconds")),
    ("least ESS, in all", "1/s", _per("ess_min", "seconds")),
    ("leapfrog steps of a draw", "leapfrogs", lambda one: one["leapfrogs_per_draw"]),
    ("sampling", "s", lambda one: one["sampling_seconds"]),
    ("compilation", "s", lambda one: one["compile_seconds"]),
    ("in all", "s", lambda one: one["seconds"]),
)


if __name__ == "__main__":
    main()
