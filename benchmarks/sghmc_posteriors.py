"""Worker of sghmc: the PyTorch library `posteriors`, a loop over the chains.

python benchmarks/sghmc_posteriors.py baoa|sghmc NUM_CHAINS
"""

import json
import os
import sys
import time
import warnings

import torch
from torch import nn

BATCH_SIZE = 128
NUM_EXAMPLES = 100 * BATCH_SIZE
SECONDS = 6.0
LEARNING_RATE, MOMENTUM = 1e-3, 0.9


def create_network() -> nn.Module:
    """The how-to's CNN."""
    network = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )
    return network.to(memory_format=torch.channels_last)


def sample(name: str, num_chains: int) -> dict[str, float]:
    """Takes steps for some seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import posteriors

    network = create_network()

    def log_posterior(params, batch):
        images, labels = batch
        outputs = torch.func.functional_call(network, params, (images,))
        log_likelihood = -nn.functional.cross_entropy(outputs, labels)
        log_prior = sum(-0.5 * (leaf**2).sum() for leaf in params.values())
        return NUM_EXAMPLES * log_likelihood + log_prior, outputs

    step_size = (2 * LEARNING_RATE / (NUM_EXAMPLES * (1 + MOMENTUM))) ** 0.5
    friction = (1 - MOMENTUM) / step_size
    build = getattr(posteriors.sgmcmc, name).build
    transform = build(log_posterior, lr=step_size, alpha=friction)
    networks = [create_network() for _ in range(num_chains)]
    states = [transform.init({k: p.detach() for k, p in n.named_parameters()}) for n in networks]
    images = torch.rand(10 * BATCH_SIZE, 1, 28, 28).to(memory_format=torch.channels_last)
    labels = torch.arange(10 * BATCH_SIZE) % 10

    def step():
        batch = torch.randperm(len(images))[:BATCH_SIZE]
        for k, state in enumerate(states):
            states[k], _ = transform.update(state, (images[batch], labels[batch]), inplace=True)

    step()
    num_steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        step()
        num_steps += num_chains
    return {"rate": num_steps / (time.perf_counter() - start)}


if __name__ == "__main__":
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    print(json.dumps(sample(sys.argv[1], int(sys.argv[2]))))
