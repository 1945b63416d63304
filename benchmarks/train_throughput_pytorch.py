"""Worker of train_throughput: PyTorch on CPU, a loop over the members, channels_last.

python benchmarks/train_throughput_pytorch.py float32|bfloat16 ENSEMBLE_SIZE
"""

import json
import os
import sys
import time

import torch
from torch import nn

BATCH_SIZE = 128
SECONDS = 4.0


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


def train(num_members: int, autocast: bool) -> dict[str, float]:
    """Trains for some seconds, in epochs of ten steps."""
    networks = [create_network() for _ in range(num_members)]
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.1, momentum=0.9) for n in networks]
    images = torch.rand(10 * BATCH_SIZE, 1, 28, 28).to(memory_format=torch.channels_last)
    labels = torch.arange(10 * BATCH_SIZE) % 10

    def epoch():
        for batch in torch.randperm(len(images)).split(BATCH_SIZE):
            batch_images, batch_labels = images[batch], labels[batch]
            for network, optimizer in zip(networks, optimizers, strict=True):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = nn.functional.cross_entropy(network(batch_images), batch_labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    epoch()
    epochs, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        epoch()
        epochs += 1
    return {"rate": epochs * len(images) * num_members / (time.perf_counter() - start)}


if __name__ == "__main__":
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    print(json.dumps(train(int(sys.argv[2]), autocast=sys.argv[1] == "bfloat16")))
