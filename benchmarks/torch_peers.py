"""Worker of train_throughput, tables_throughput, tabm_throughput and sghmc: PyTorch on CPU.

    python benchmarks/torch_peers.py cnn float32|bfloat16 NUM_MEMBERS [cuda]
    python benchmarks/torch_peers.py table eager|compiled
    python benchmarks/torch_peers.py tabm tabm|tabm-mini eager|compiled
    python benchmarks/torch_peers.py sghmc baoa|sghmc NUM_CHAINS

Networks are a loop over the members, channels_last; on the table they are stacked, with
`torch.func.vmap` over them. `tabm` is the package of that name. `sghmc` is the library
`posteriors`, a loop over the chains.
"""

import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator

import rates
import torch
from torch import nn

BATCH_SIZE = 128
NUM_EXAMPLES = 100 * BATCH_SIZE
LEARNING_RATE, MOMENTUM = 1e-3, 0.9
NUM_MEMBERS, TABLE_BATCH_SIZE = 10, 256
NUM_ROWS, NUM_COLUMNS = 10_000, 20


def create_cnn() -> nn.Module:
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


def batches(device: str = "cpu") -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Shuffled images and labels, in epochs of ten batches, without end."""
    images = torch.rand(10 * BATCH_SIZE, 1, 28, 28).to(device, memory_format=torch.channels_last)
    labels = torch.arange(10 * BATCH_SIZE, device=device) % 10
    while True:
        for batch in torch.randperm(len(images), device=device).split(BATCH_SIZE):
            yield images[batch], labels[batch]


def cnn(dtype: str, size: str, device: str = "cpu") -> dict[str, float]:
    """Trains for some seconds, in epochs of ten steps."""
    networks = [create_cnn().to(device) for _ in range(int(size))]
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.1, momentum=0.9) for n in networks]
    examples = batches(device)

    def epoch() -> int:
        for _ in range(10):
            images, labels = next(examples)
            for network, optimizer in zip(networks, optimizers, strict=True):
                with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
                    loss = nn.functional.cross_entropy(network(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return 10 * BATCH_SIZE * len(networks)

    epoch()
    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    return rates.measure(epoch, 4.0, finish)


def sghmc(name: str, size: str) -> dict[str, float]:
    """Takes steps for some seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import posteriors

    network = create_cnn()

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
    networks = [create_cnn() for _ in range(int(size))]
    states = [transform.init({k: p.detach() for k, p in n.named_parameters()}) for n in networks]
    examples = batches()

    def step() -> int:
        batch = next(examples)
        for k, state in enumerate(states):
            states[k], _ = transform.update(state, batch, inplace=True)
        return len(states)

    step()
    return rates.measure(step, 6.0)


def create_mlp() -> nn.Module:
    """Three hidden layers of 128, a mean and a raw scale."""
    layers: list[nn.Module] = []
    for num_inputs in (NUM_COLUMNS, 128, 128):
        layers += [nn.Linear(num_inputs, 128), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 2))


def nll_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean negative log density of targets by outputs [..., 2], a mean and a raw scale."""
    scale = 1e-3 + nn.functional.softplus(outputs[..., 1])
    squares = ((targets - outputs[..., 0]) / scale) ** 2
    return (0.5 * (squares + math.log(2 * math.pi)) + scale.log()).mean()


def tabm(form: str, how: str) -> dict[str, float]:
    """Trains 32 estimators of the package's network for some seconds, in epochs over a table."""
    from tabm import TabM

    network = TabM.make(
        n_num_features=NUM_COLUMNS, d_out=2, n_blocks=3, d_block=128, dropout=0.0, arch_type=form
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    inputs, targets = torch.randn(NUM_ROWS, NUM_COLUMNS), torch.randn(NUM_ROWS)

    def loss(batch_inputs, batch_targets):
        return nll_of(network(batch_inputs), batch_targets[:, None])

    if how == "compiled":
        loss = torch.compile(loss)

    def epoch() -> int:
        steps = 0
        for rows in torch.randperm(NUM_ROWS).split(TABLE_BATCH_SIZE):
            if len(rows) == TABLE_BATCH_SIZE:
                optimizer.zero_grad()
                loss(inputs[rows], targets[rows]).backward()
                optimizer.step()
                steps += 1
        return steps * TABLE_BATCH_SIZE * network.k

    epoch()
    return rates.measure(epoch, 5.0)


def table(how: str) -> dict[str, float]:
    """Trains for some seconds, in epochs over a table on which all members see the same batches."""
    networks = [create_mlp() for _ in range(NUM_MEMBERS)]
    params, buffers = torch.func.stack_module_state(networks)
    params = {name: one.detach().requires_grad_() for name, one in params.items()}
    skeleton = create_mlp().to("meta")
    optimizer = torch.optim.Adam(params.values(), lr=1e-3)
    inputs, targets = torch.randn(NUM_ROWS, NUM_COLUMNS), torch.randn(NUM_ROWS)

    def nll(one_params, one_buffers, batch_inputs, batch_targets):
        state = (one_params, one_buffers)
        outputs = torch.func.functional_call(skeleton, state, (batch_inputs,))
        return nll_of(outputs, batch_targets)

    def loss(all_params, batch_inputs, batch_targets):
        of_members = torch.func.vmap(nll, in_dims=(0, 0, None, None))
        return of_members(all_params, buffers, batch_inputs, batch_targets).sum()

    if how == "compiled":
        loss = torch.compile(loss)

    def epoch() -> int:
        steps = 0
        for rows in torch.randperm(NUM_ROWS).split(TABLE_BATCH_SIZE):
            if len(rows) == TABLE_BATCH_SIZE:
                optimizer.zero_grad()
                loss(params, inputs[rows], targets[rows]).backward()
                optimizer.step()
                steps += 1
        return steps * TABLE_BATCH_SIZE * NUM_MEMBERS

    epoch()
    return rates.measure(epoch, 5.0)


if __name__ == "__main__":
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    contestants: dict[str, Callable[..., dict[str, float]]]
    contestants = {"cnn": cnn, "table": table, "tabm": tabm, "sghmc": sghmc}
    what, *arguments = sys.argv[1:]
    print(json.dumps(contestants[what](*arguments)))
