"""Worker of methods_peers.py: torch-uncertainty and laplace-torch on the cells of one data set.

python benchmarks/methods_torch.py CELLS.json ROWS.npz OUT.npz

Networks see the same rows, batches of the same size, and the same rates by step as ours, and decay
by AdamW. Those of packed networks and of batch ensembles start as torch-uncertainty has them, all
others as ours do.
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


def create(cell: Cell, num_inputs: int, num_classes: int) -> nn.Module:
    """A network of a cell."""
    size, setting = (num_inputs, num_classes, cell["widths"]), cell["setting"]
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


def train(cell: Cell, network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Descends by the rates [steps] of a cell."""
    decay = cell["setting"]["weight_decay"]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1.0, weight_decay=decay)
    steps, batches = 0, max(1, len(labels) // BATCH_SIZE)
    network.train()
    while steps < len(cell["rates"]):
        order = torch.randperm(len(labels))
        for k in range(batches):
            if steps == len(cell["rates"]):
                return
            rows = order[k * BATCH_SIZE : (k + 1) * BATCH_SIZE]
            outputs = network(inputs[rows])
            targets = labels[rows].repeat(len(outputs) // len(rows))
            for group in optimizer.param_groups:
                group["lr"] = cell["rates"][steps]
            optimizer.zero_grad()
            nn.functional.cross_entropy(outputs, targets).backward()
            optimizer.step()
            steps += 1


@torch.no_grad()
def log_probs(cell: Cell, network: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """[N, K], the mean over estimators or passes."""
    passes = 1
    network.eval()
    if cell["family"] == "dropout":
        network.train()
        passes = cell["passes"]
    outputs = torch.cat([network(inputs) for _ in range(passes)])
    each = torch.log_softmax(outputs.double(), dim=-1).reshape(-1, len(inputs), outputs.shape[-1])
    return torch.logsumexp(each, dim=0) - np.log(len(each))


def around(network: nn.Module, rows: Mapping[str, torch.Tensor]) -> Any:
    """A Kronecker-factored Laplace approximation of the last layer; validation rows choose the
    prior, as with ours."""
    network.eval()
    found = Laplace(
        network, "classification", subset_of_weights="last_layer", hessian_structure="kron"
    )
    data = torch.utils.data.TensorDataset
    found.fit(torch.utils.data.DataLoader(data(rows["train_inputs"], rows["train_labels"]), 256))
    own = data(rows["validation_inputs"], rows["validation_labels"])
    found.optimize_prior_precision(
        method="gridsearch",
        pred_type="glm",
        link_approx="probit",
        val_loader=torch.utils.data.DataLoader(own, 256),
    )
    return found


def main(cells: pathlib.Path, rows_file: pathlib.Path, out: pathlib.Path) -> None:
    """Trains all cells, and keeps log-probabilities [seeds, N, K] by cell and split."""
    torch.set_num_threads(1)
    with np.load(rows_file) as file:
        rows = {name: torch.tensor(file[name]) for name in file}
    num_classes = int(rows["train_labels"].max()) + 1
    found: dict[str, list[np.ndarray]] = {}
    for cell in json.loads(cells.read_text()):
        for seed in range(cell["seeds"]):
            torch.manual_seed(seed)
            network = create(cell, rows["train_inputs"].shape[1], num_classes)
            train(cell, network, rows["train_inputs"], rows["train_labels"])
            approximation = around(network, rows) if cell["family"] == "laplace" else None
            for split in ("validation", "calibration", "test"):
                inputs = rows[f"{split}_inputs"]
                if approximation is None:
                    said = log_probs(cell, network, inputs)
                else:
                    said = approximation(inputs, pred_type="glm", link_approx="probit").log()
                found.setdefault(f"{cell['family']}/{split}", []).append(said.detach().numpy())
    arrays: dict[str, Any] = {name: np.stack(each) for name, each in found.items()}
    np.savez_compressed(out, **arrays)


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:4]))
