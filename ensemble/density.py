"""The task of sampling a density: there is nothing to learn from, and nothing to predict."""

import dataclasses
from typing import Any

from input_pipeline import Split
from models.densities import Density


@dataclasses.dataclass(frozen=True)
class Target:
    """A density by its name.

    Attributes:
        name: in `models.densities`.
        density: of that name.
    """

    name: str
    density: Density
    num_train_examples: int = 0

    @property
    def splits(self) -> dict[str, Split]:
        """No examples."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Returns what a checkpoint says of what is sampled, JSON-ready."""
        fingerprint = f"{self.name} of {self.density.num_dims} dimensions"
        return {"name": self.name, "fingerprint": fingerprint, "num_examples": {}}
