"""Worker of train_throughput, tables_throughput, estimators_throughput and sghmc: PyTorch on CPU.

    python benchmarks/torch_peers.py cnn float32|bfloat16 NUM_MEMBERS [cuda]
    python benchmarks/torch_peers.py table eager|compiled
    python benchmarks/torch_peers.py estimators tabm|tabm_mini|batch_ensemble|packed eager|compiled
    python benchmarks/torch_peers.py estimators batch_ensemble|packed eager|compiled cnn
    python benchmarks/torch_peers.py sghmc baoa|sghmc NUM_CHAINS

Networks are a loop over the members, channels_last; on the table they are stacked, with
`torch.func.vmap` over them. Estimators are those of the package `tabm` and of the layers of
`torch-uncertainty`, on one thread. `sghmc` is the library `posteriors`, a loop over the chains.
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
LEARNING_RATE = 1e-3
MOMENTUM = 0.9
NUM_MEMBERS = 10
TABLE_BATCH_SIZE = 256
NUM_ROWS = 10_000
NUM_COLUMNS = 20


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


def packed_mlp(num_estimators: int) -> nn.Module:
    """Makes a network of PackedLinear, twice as wide in all; `einsum`, its default, is its fastest
    form."""
    from torch_uncertainty.layers import PackedLinear

    how = {"alpha": 2, "num_estimators": num_estimators}
    return nn.Sequential(
        PackedLinear(NUM_COLUMNS, 128, first=True, **how),
        nn.ReLU(),
        PackedLinear(128, 128, **how),
        nn.ReLU(),
        PackedLinear(128, 128, **how),
        nn.ReLU(),
        PackedLinear(128, 2, last=True, **how),
    )


def packed_cnn(num_estimators: int) -> nn.Module:
    """The how-to's, of PackedConv2d and PackedLinear, twice as wide in all."""
    from torch_uncertainty.layers import PackedConv2d, PackedLinear

    how = {"alpha": 2, "num_estimators": num_estimators}
    network = nn.Sequential(
        PackedConv2d(1, 32, 3, padding=1, first=True, **how),
        nn.ReLU(),
        nn.AvgPool2d(2),
        PackedConv2d(32, 64, 3, padding=1, **how),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        PackedLinear(64 * 7 * 7, 256, **how),
        nn.ReLU(),
        PackedLinear(256, 10, last=True, **how),
    )
    return network.to(memory_format=torch.channels_last)


def create_estimators(what: str, is_cnn: bool) -> tuple[nn.Module, int]:
    """A network of estimators, and their number; those of TabM come second, of others first."""
    if what.startswith("tabm"):
        from tabm import TabM

        form = what.replace("_", "-")
        sizes = {"n_num_features": NUM_COLUMNS, "d_out": 2, "n_blocks": 3, "d_block": 128}
        return TabM.make(**sizes, dropout=0.0, arch_type=form), 32
    if what == "packed":
        return (packed_cnn if is_cnn else packed_mlp)(4), 4
    from torch_uncertainty.methods import BatchEnsemble

    core = create_cnn() if is_cnn else create_mlp()
    return BatchEnsemble(core, 4, repeat_training_inputs=True, convert_layers=True), 4


def estimators(what: str, how: str, kind: str = "table") -> dict[str, float]:
    """Trains estimators, which see the same batches, for some seconds, in epochs."""
    is_cnn = kind == "cnn"
    network, size = create_estimators(what, is_cnn)
    learned = list(network.parameters())
    if is_cnn:
        optimizer: torch.optim.Optimizer = torch.optim.SGD(learned, lr=0.1, momentum=0.9)
        num_examples = 4 * BATCH_SIZE
        batch_size = BATCH_SIZE
        inputs = torch.rand(num_examples, 1, 28, 28).to(memory_format=torch.channels_last)
        targets = torch.arange(num_examples) % 10
    else:
        optimizer = torch.optim.Adam(learned, lr=1e-3)
        num_examples = NUM_ROWS
        batch_size = TABLE_BATCH_SIZE
        inputs = torch.randn(num_examples, NUM_COLUMNS)
        targets = torch.randn(num_examples)

    def loss(batch_inputs, batch_targets):
        outputs = network(batch_inputs)
        if is_cnn:
            return nn.functional.cross_entropy(outputs, batch_targets.repeat(size))
        if what.startswith("tabm"):
            return nll_of(outputs, batch_targets[:, None])
        return nll_of(outputs.reshape(size, -1, 2), batch_targets)

    if how == "compiled":
        loss = torch.compile(loss)

    def epoch() -> int:
        steps = 0
        for rows in torch.randperm(num_examples).split(batch_size):
            if len(rows) == batch_size:
                optimizer.zero_grad()
                loss(inputs[rows], targets[rows]).backward()
                optimizer.step()
                steps += 1
        return steps * batch_size * size

    epoch()
    return rates.measure(epoch, 3.0)


def table(how: str) -> dict[str, float]:
    """Trains for some seconds, in epochs over a table on which all members see the same batches."""
    networks = [create_mlp() for _ in range(NUM_MEMBERS)]
    params, buffers = torch.func.stack_module_state(networks)
    params = {name: one.detach().requires_grad_() for name, one in params.items()}
    skeleton = create_mlp().to("meta")
    optimizer = torch.optim.Adam(params.values(), lr=1e-3)
    inputs = torch.randn(NUM_ROWS, NUM_COLUMNS)
    targets = torch.randn(NUM_ROWS)

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
    if sys.argv[1] == "estimators":
        rates.stay_on_one_core()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    contestants: dict[str, Callable[..., dict[str, float]]]
    contestants = {"cnn": cnn, "table": table, "estimators": estimators, "sghmc": sghmc}
    what, *arguments = sys.argv[1:]
    print(json.dumps(contestants[what](*arguments)))
