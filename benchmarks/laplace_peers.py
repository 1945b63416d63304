"""Worker of `laplace`: laplace-torch around the network that `laplace_ours.py train` has left.

python benchmarks/laplace_peers.py full|kron FOLDER
"""

import json
import os
import pathlib
import sys
import time
import warnings

import numpy as np
import rates
import torch
from torch import nn
from torch_peers import create_cnn

warnings.filterwarnings("ignore")
from laplace import Laplace  # noqa: E402

OURS = {"full": "last_layer", "kron": "last_layer_kronecker"}
PRIOR_PRECISION = 10.0
BATCH_SIZE = 128


def main(structure: str, folder: pathlib.Path) -> dict[str, float]:
    """Fits and predicts, and says how far its probabilities are from ours."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with np.load(folder / "network.npz") as file:
        arrays = dict(file)
    network = create_cnn().to(memory_format=torch.contiguous_format)
    layers = [one for one in network if isinstance(one, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for layer, name in zip(layers, ("Conv_0", "Conv_1", "Dense_0", "Dense_1"), strict=True):
            kernel = torch.tensor(arrays[f"{name}/kernel"])
            if kernel.ndim == 4:
                kernel = kernel.permute(3, 2, 0, 1)
            elif name == "Dense_0":  # Ours flattens [H, W, C], PyTorch [C, H, W].
                kernel = kernel.reshape(7, 7, 64, -1).permute(2, 0, 1, 3).reshape(64 * 49, -1).T
            else:
                kernel = kernel.T
            layer.weight.copy_(kernel)
            layer.bias.copy_(torch.tensor(arrays[f"{name}/bias"]))
    inputs = {
        name: torch.tensor(arrays[f"{name}_inputs"]).permute(0, 3, 1, 2)
        for name in ("train", "test")
    }
    labels = torch.tensor(arrays["train_labels"])
    batches = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs["train"], labels), BATCH_SIZE
    )
    seconds = []
    for _ in range(3):
        approximation = Laplace(
            network,
            "classification",
            subset_of_weights="last_layer",
            hessian_structure=structure,
            prior_precision=PRIOR_PRECISION,
        )
        start = time.process_time()
        approximation.fit(batches)
        seconds.append(time.process_time() - start)

    def predicted() -> torch.Tensor:
        parts = inputs["test"].split(500)
        return torch.cat([approximation(one, link_approx="probit") for one in parts])

    probs = predicted().detach().numpy()
    ours = np.load(folder / f"{OURS[structure]}.npy")

    def predict() -> int:
        predicted()
        return len(ours)

    found = rates.measure(predict, 3.0)
    return {
        "fit_seconds": min(seconds),
        "predictions": found["cpu_rate"],
        "nll": -float(np.log(probs[np.arange(len(probs)), arrays["test_labels"]]).mean()),
        "off": float(np.abs(probs - ours).max()),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], pathlib.Path(sys.argv[2]))))
