"""Worker of methods_peers.py: torch-uncertainty and laplace-torch on the cells of one data set.

python benchmarks/methods_torch.py CELLS.json ROWS.npz OUT.npz

Networks see the same rows, batches of the same size, and the same rates by step as ours, and decay
by AdamW. Those of packed networks and of batch ensembles start as torch-uncertainty has them, all
others as ours do. For a number they say the mean and the standard deviation of the standardised
target, as ours do.
"""

import json
import pathlib
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

warnings.filterwarnings("ignore")
from laplace import Laplace  # noqa: E402
from torch_uncertainty.models.mlp import batched_mlp, mlp, packed_mlp  # noqa: E402

Cell = Mapping[str, Any]
BATCH_SIZE = 64


def create(cell: Cell, num_inputs: int, num_outputs: int) -> nn.Module:
    """A network of a cell."""
    size, setting = (num_inputs, num_outputs, cell["widths"]), cell["setting"]
    number = setting.get(f"{cell['family']}.num_estimators")
    if cell["family"] == "packed":
        return packed_mlp(*size, num_estimators=number, alpha=setting["packed.alpha"])
    if cell["family"] == "batch_ensemble":
        return batched_mlp(*size, num_estimators=number)
    network = mlp(*size, dropout_rate=setting.get("mlp.dropout", 0.0))
    for one in network.modules():
        if isinstance(one, nn.Linear):
            nn.init.xavier_uniform_(one.weight)
            nn.init.zeros_(one.bias)
    return network


def normal(outputs: torch.Tensor, least: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and standard deviations of outputs [..., 2]; 0 stands for a deviation of 1."""
    start = np.log(np.expm1(1 - least))
    return outputs[..., 0], least + nn.functional.softplus(outputs[..., 1] + start)


def loss(cell: Cell, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean NLL of labels, or of numbers."""
    if not targets.is_floating_point():
        return nn.functional.cross_entropy(outputs, targets)
    return -torch.distributions.Normal(*normal(outputs, cell["least"])).log_prob(targets).mean()


def train(cell: Cell, network: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    """Descends by the rates [steps] of a cell."""
    decay = cell["setting"]["weight_decay"]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1.0, weight_decay=decay)
    steps, batches = 0, max(1, len(targets) // BATCH_SIZE)
    network.train()
    while steps < len(cell["rates"]):
        order = torch.randperm(len(targets))
        for k in range(batches):
            if steps == len(cell["rates"]):
                return
            rows = order[k * BATCH_SIZE : (k + 1) * BATCH_SIZE]
            outputs = network(inputs[rows])
            wanted = targets[rows].repeat(len(outputs) // len(rows))
            for group in optimizer.param_groups:
                group["lr"] = cell["rates"][steps]
            optimizer.zero_grad()
            loss(cell, outputs, wanted).backward()
            optimizer.step()
            steps += 1


@torch.no_grad()
def predict(
    cell: Cell, network: nn.Module, inputs: torch.Tensor, is_number: bool
) -> dict[str, torch.Tensor]:
    """Predicts by a network; the names are ours.

    Returns:
        The mean over estimators or passes, `log_probs` [1, N, K]; of a number `loc` and `scale`
        [E, N] of each.
    """
    passes = 1
    network.eval()
    if cell["family"] == "dropout":
        network.train()
        passes = cell["passes"]
    outputs = torch.cat([network(inputs) for _ in range(passes)]).double()
    each = outputs.reshape(-1, len(inputs), outputs.shape[-1])
    if is_number:
        return dict(zip(("loc", "scale"), normal(each, cell["least"]), strict=True))
    logs = torch.log_softmax(each, dim=-1)
    return {"log_probs": (torch.logsumexp(logs, dim=0) - np.log(len(each)))[None]}


def around(network: nn.Module, rows: Mapping[str, torch.Tensor]) -> Any:
    """A Kronecker-factored Laplace approximation of the last layer; validation rows choose the
    prior, as with ours."""
    network.eval()
    found = Laplace(
        network, "classification", subset_of_weights="last_layer", hessian_structure="kron"
    )
    data = torch.utils.data.TensorDataset
    found.fit(torch.utils.data.DataLoader(data(rows["train_inputs"], rows["train_targets"]), 256))
    own = data(rows["validation_inputs"], rows["validation_targets"])
    found.optimize_prior_precision(
        method="gridsearch",
        pred_type="glm",
        link_approx="probit",
        val_loader=torch.utils.data.DataLoader(own, 256),
    )
    return found


def main(cells: pathlib.Path, rows_file: pathlib.Path, out: pathlib.Path) -> None:
    """Trains all cells, and keeps what networks say [seeds, ...] by cell, split and name."""
    torch.set_num_threads(1)
    with np.load(rows_file) as file:
        rows = {name: torch.tensor(file[name]) for name in file}
    inputs, targets = rows["train_inputs"], rows["train_targets"]
    is_number = targets.is_floating_point()
    num_outputs = 2 if is_number else int(targets.max()) + 1
    found: dict[str, list[np.ndarray]] = {}
    for cell in json.loads(cells.read_text()):
        for seed in range(cell["seeds"]):
            torch.manual_seed(seed)
            network = create(cell, inputs.shape[1], num_outputs)
            train(cell, network, inputs, targets)
            approximation = around(network, rows) if cell["family"] == "laplace" else None
            for split in ("validation", "calibration", "test"):
                new = rows[f"{split}_inputs"]
                if approximation is None:
                    said = predict(cell, network, new, is_number)
                else:
                    logs = approximation(new, pred_type="glm", link_approx="probit").log()
                    said = {"log_probs": logs[None]}
                for name, one in said.items():
                    key = f"{cell['family']}/{split}/{name}"
                    found.setdefault(key, []).append(one.detach().numpy())
    arrays: dict[str, Any] = {name: np.stack(each) for name, each in found.items()}
    np.savez_compressed(out, **arrays)


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:4]))
