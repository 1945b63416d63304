"""What findings say of models that were sampled."""

import numpy as np

from ensemble.report.findings import findings

REMEDY = "lower config.learning_rate=0.1"


def found_of_model(posterior, num_bad_k=0):
    """What is found of the chains of a model."""
    numbers = {"rhat_worst": "mu", "ess_bulk_min": 900, "num_warmup": 100, "num_samples": 100}
    report = {
        "failed_members": {},
        "live_members": [0, 1, 3, 4],
        "sites": {},
        "information_criteria": {"y": {"good_k": 0.62, "num_bad_k": num_bad_k}},
        "posterior": {**numbers, "divergences": 0, **posterior},
        "config": {"sampler": {"target_acceptance": 0.8}},
    }
    return findings(report, None, {}, {}, REMEDY)


FOUND = {
    "model_no_rhat": lambda: found_of_model({"rhat_max": np.nan}),
    "model_divergent": lambda: found_of_model({"rhat_max": 1.001, "divergences": 3}),
    "model_few_draws": lambda: found_of_model({"rhat_max": 1.004, "ess_bulk_min": 208}),
    "model_slow": lambda: found_of_model({"rhat_max": 1.004, "ess_bulk_min": 40}),
    "model_bad_k": lambda: found_of_model({"rhat_max": 1.3}, 2),
    "model_disagree_and_diverge": lambda: found_of_model({"rhat_max": 1.3, "divergences": 9}),
    "model_idle": lambda: found_of_model(
        {"rhat_max": 3.1, "accept_by_chain": [0.8, 0.8, 0.01, 0.9]}
    ),
    "model_modes": lambda: found_of_model(
        {"rhat_max": 3.1, "modes_scalar": "x", "modes": [[0, 2], [1]]}
    ),
}
