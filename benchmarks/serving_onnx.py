"""The same network in ONNX Runtime, with the interface of `ensemble/read_model.py`.

As `read_model.py` in its folder it takes that program's place in `examples/serve.py`.
"""

import numpy as np
import onnxruntime


class Model:
    """Runs a file of ONNX.

    Args:
        path: the file beside which one that ends in `.onnx` lies.
    """

    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # Faster for so small a network than a pool that spins.
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(f"{path}.onnx", options)
        (inputs,) = self._session.get_inputs()
        self._input = inputs.name
        self.shape = tuple(inputs.shape[1:])
        self.dtype = np.float32
        parts = ("aleatoric_uncertainty", "epistemic_uncertainty", "label", "probs")
        self.names = (*parts, "total_uncertainty")

    def compile(self):
        """Returns itself: sessions compile nothing."""
        return self

    def check(self, inputs):
        """Returns inputs as they are."""
        return inputs

    def __call__(self, inputs):
        """Predicts inputs [N, ...]."""
        return dict(zip(self.names, self._session.run(None, {self._input: inputs}), strict=True))
