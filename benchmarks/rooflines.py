"""How much of a device a measurement uses: the larger share of its arithmetic and its memory.

Peaks are those of data sheets, without sparsity: of TF32 for NVIDIA's GPUs from Ampere on and of
bfloat16 for TPUs, which is how JAX multiplies float32 by default there; of float32 for older GPUs.
Work is counted by hand, and no more of it than must be done.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Peak:
    """What a device can do at most: FLOP and bytes of its memory a second, by whose data sheet."""

    flops: float
    bandwidth: float
    source: str


_TPU = "https://docs.cloud.google.com/tpu/docs/"
_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
PEAKS = {
    "NVIDIA H200": Peak(494e12, 4.8e12, _NVIDIA + "h200/"),
    "NVIDIA H100 80GB HBM3": Peak(494e12, 3.35e12, _NVIDIA + "h100/"),
    "NVIDIA H100 PCIe": Peak(378e12, 2.0e12, _NVIDIA + "h100/"),
    "NVIDIA A100-SXM4-80GB": Peak(156e12, 2.039e12, _NVIDIA + "a100/"),
    "NVIDIA A100-SXM4-40GB": Peak(156e12, 1.555e12, _NVIDIA + "a100/"),
    "NVIDIA L4": Peak(60e12, 0.3e12, _NVIDIA + "l4/"),
    "Tesla T4": Peak(8.1e12, 0.32e12, _NVIDIA + "tesla-t4/"),
    "TPU v4": Peak(275e12, 1.2e12, _TPU + "v4"),
    "TPU v5 lite": Peak(197e12, 0.819e12, _TPU + "v5e"),
    "TPU v5": Peak(459e12, 2.765e12, _TPU + "v5p"),
    "TPU v6 lite": Peak(918e12, 1.638e12, _TPU + "v6e"),
}
"""By JAX's `device_kind`."""


@dataclasses.dataclass(frozen=True)
class Work:
    """What one unit of a measurement takes: FLOP and bytes that the memory passes on at least."""

    flop: float
    num_bytes: float
    counted: str


CNN = Work(
    3.6e9 / 128,
    (2 * 48e6 + 7 * 3.3e6) / 128,
    "a member's step on 128 images: 3.6 GFLOP; 48 MB of activations and their gradients written "
    "and read once, 3.3 MB of parameters in seven passes with gradients and momentum",
)
RESNET20 = Work(
    3 * 2 * 40.8e6,
    4 * 188_416 * 4,
    "40.8 million multiplications forward, twice as many backward; the output of each convolution "
    "and its gradient written and read once",
)


def hmc_gradient(num_chains: int, num_images: int) -> Work:
    """A gradient of the logistic regression of images of 784 numbers in ten classes."""
    numbers = 784 * num_images
    counted = "two products with all images, which are read twice for all chains together"
    return Work(2 * 2 * numbers * 10, 2 * 4 * numbers / num_chains, counted)


def share(rate: float, work: Work, kind: str, num_devices: int) -> dict[str, float | str]:
    """What a rate is of a device's peaks.

    Args:
        rate: units a second, of all devices together.
        work: of a unit.
        kind: JAX's `device_kind`.
        num_devices: D.

    Returns:
        `flop_per_second` of all devices; where the peaks are known, too, the shares of a device's
        arithmetic and memory, and the larger of them, which is that of its roofline.
    """
    found: dict[str, float | str] = {"flop_per_second": rate * work.flop}
    if kind not in PEAKS:
        return found | {"roofline": f"the peaks of {kind!r} are not known"}
    peak = PEAKS[kind]
    arithmetic = rate * work.flop / (num_devices * peak.flops)
    memory = rate * work.num_bytes / (num_devices * peak.bandwidth)
    shares = {"of_peak_flops": arithmetic, "of_bandwidth": memory}
    return found | shares | {"of_roofline": max(shares.values())}
