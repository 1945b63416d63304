"""Worker of scaling: the speed of one run over processes and devices.

    python benchmarks/scaling_worker.py sgd|hmc NUM_PROCESSES NUM_DEVICES small|whole

It starts NUM_PROCESSES processes of NUM_DEVICES devices each, and prints what process 0 measures.
"""

import json
import socket
import subprocess
import sys

import numpy as np


def main(argv: list[str]) -> int:
    """Starts the processes, or is one of them where more arguments say so."""
    kind, num_processes, num_devices, size, *place = argv
    if place:
        address, process_id = place
        measure(kind, int(num_processes), int(num_devices), size, address, int(process_id))
        return 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *argv, address, str(k)],
            stdout=None if k == 0 else subprocess.DEVNULL,
        )
        for k in range(int(num_processes))
    ]
    return max(abs(process.wait()) for process in processes)


def measure(
    kind: str, num_processes: int, num_devices: int, size: str, address: str, process_id: int
) -> None:
    """Trains or samples as one of the processes; process 0 prints the rate."""
    from ensemble.sharding import startup

    startup.configure_devices(num_devices)
    import ensemble
    from ensemble.sharding import processes

    processes.start(address, num_processes, process_id, {})
    rng = np.random.default_rng(0)
    num_examples = 20_000 if kind == "hmc" and size == "whole" else 4096
    data = {
        "inputs": rng.integers(0, 256, (num_examples, 28, 28, 1), dtype=np.uint8),
        "labels": rng.integers(0, 10, num_examples),
    }
    num_steps = 24 if size == "whole" else 8
    config = {
        "sgd": {
            "model": "cnn",
            "ensemble_size": 8,
            "batch_size": 64,
            "num_epochs": None,
            "num_steps": num_steps,
            "log_every_steps": num_steps // 2,
            "eval_every_epochs": 100,
            "early_stopping_epochs": 0,  # Predictions of validation data would count.
        },
        "sampler": {
            "method": "hmc",
            "model": "logistic_regression",
            "prior": "normal(1)",
            "init_from": "prior",
            "num_chains": 8,
            "log_every_steps": num_steps // 4,
            "sampler.num_warmup": 0,
            "sampler.step_size": 1e-4,
            "sampler.num_samples": num_steps,
            "sampler.num_leapfrog_steps": 2,
            "sampler.thinning": 1,
        },
    }[kind]
    report = ensemble.train(config, data, show_progress=False).report
    if processes.is_main():
        rate = report["timing"]["member_examples_per_second"]
        if kind == "hmc":
            rate /= report["num_train_examples"]  # Gradients of single chains on all data.
        print(json.dumps({"rate": rate}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
