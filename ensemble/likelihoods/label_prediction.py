"""What an ensemble says of inputs whose targets are classes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ensemble.pictures import tabular
from ensemble.pictures.plot_style import plural

UNCERTAINTIES = ("total", "aleatoric", "epistemic")
"""Parts of the predictive entropy, by the names of `Prediction`."""


class Prediction(NamedTuple):
    """What an ensemble says of N inputs.

    Attributes:
        probs: [N, C], the mean of softmax over members, at the predictor's temperature.
        label: [N], the most probable class.
        total: [N], entropy of the mean of softmax, nats; it and what follows know no temperature.
        aleatoric: [N], mean entropy of the members, nats.
        epistemic: [N], mutual information, nats: what the members disagree on.
        member_log_probs: [M, N, C]; of a posterior every draw is a member.
        accepted: [N] bool: whether the predictor is sure enough to answer; all, unless it abstains.
        class_names: C names, for tables.
    """

    probs: np.ndarray
    label: np.ndarray
    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    member_log_probs: np.ndarray
    accepted: np.ndarray
    class_names: Sequence[str] = ()

    @property
    def class_name(self) -> np.ndarray:
        """Names [N] of the most probable classes, as texts."""
        return np.asarray(self.class_names or range(self.probs.shape[1])).astype(str)[self.label]

    def cells(self, i: int) -> list[tuple[str, str | float]]:
        """The two most probable classes of prediction i, and its uncertainties."""
        names = self.class_names or range(self.probs.shape[1])
        first, second = np.argsort(-self.probs[i], kind="stable")[:2]
        return [
            ("class", str(names[first])),
            ("prob", self.probs[i, first]),
            ("runner-up", str(names[second])),
            ("prob", self.probs[i, second]),
            *((f"{name} nats", getattr(self, name)[i]) for name in UNCERTAINTIES),
        ]

    def __repr__(self) -> str:
        return tabular.preview(self._heading(), len(self.probs), self.cells)

    def _repr_html_(self) -> str:
        return tabular.preview_html(self._heading(), len(self.probs), self.cells)

    def _heading(self) -> str:
        members = plural(len(self.member_log_probs), "member")
        return f"{plural(len(self.probs), 'prediction')} of {members}"
