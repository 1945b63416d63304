"""Worker of tables_throughput: PyTorch on CPU, members stacked, `torch.func.vmap` over them.

python benchmarks/tables_throughput_torch.py eager|compiled
"""

import json
import math
import os
import sys
import time

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

NUM_MEMBERS, BATCH_SIZE, SECONDS = 10, 256, 5.0
NUM_ROWS, NUM_COLUMNS = 10_000, 20


def create_network() -> nn.Module:
    """Three hidden layers of 128, a mean and a raw scale."""
    layers: list[nn.Module] = []
    for num_inputs in (NUM_COLUMNS, 128, 128):
        layers += [nn.Linear(num_inputs, 128), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 2))


def rate(is_compiled: bool) -> float:
    """Trains for some seconds, in epochs over a table on which all members see the same batches."""
    networks = [create_network() for _ in range(NUM_MEMBERS)]
    params, buffers = stack_module_state(networks)
    params = {name: one.detach().requires_grad_() for name, one in params.items()}
    skeleton = create_network().to("meta")
    optimizer = torch.optim.Adam(params.values(), lr=1e-3)
    inputs, targets = torch.randn(NUM_ROWS, NUM_COLUMNS), torch.randn(NUM_ROWS)

    def nll(one_params, one_buffers, batch_inputs, batch_targets):
        outputs = functional_call(skeleton, (one_params, one_buffers), (batch_inputs,))
        scale = 1e-3 + nn.functional.softplus(outputs[:, 1])
        squares = ((batch_targets - outputs[:, 0]) / scale) ** 2
        return (0.5 * (squares + math.log(2 * math.pi)) + scale.log()).mean()

    def loss(all_params, batch_inputs, batch_targets):
        of_members = vmap(nll, in_dims=(0, 0, None, None))
        return of_members(all_params, buffers, batch_inputs, batch_targets).sum()

    if is_compiled:
        loss = torch.compile(loss)

    def epoch() -> int:
        steps = 0
        for rows in torch.randperm(NUM_ROWS).split(BATCH_SIZE):
            if len(rows) == BATCH_SIZE:
                optimizer.zero_grad()
                loss(params, inputs[rows], targets[rows]).backward()
                optimizer.step()
                steps += 1
        return steps

    epoch()
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        steps += epoch()
    return steps * BATCH_SIZE * NUM_MEMBERS / (time.perf_counter() - start)


if __name__ == "__main__":
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    print(json.dumps({"rate": rate(sys.argv[1] == "compiled")}))
