"""The keys of networks that have some.

They are not beside their networks, for that folder imports Flax.
"""

from ensemble.keys import BELOW_ONE, POSITIVE, Block, Key, Rule, one_of

ACTIVATIONS = ("relu", "tanh", "silu", "gelu")

MAX_LAYERS, MAX_WIDTH = 64, 2**16


def parse_widths(text: str) -> tuple[int, ...]:
    """Reads units per hidden layer, such as `256,256`.

    Raises:
        ValueError: they are no whole numbers separated by commas.
    """
    return tuple(int(number) for number in text.split(","))


def _are_widths(text: str) -> bool:
    try:
        widths = parse_widths(text)
    except ValueError:
        return False
    return len(widths) <= MAX_LAYERS and all(1 <= width <= MAX_WIDTH for width in widths)


def _dropout(where: str) -> Key:
    return Key(0.0, f"share of units that training drops {where}", BELOW_ONE)


CNN = Block({"cnn.dropout": _dropout("before each dense layer")})

LENET5 = Block({"lenet5.dropout": _dropout("before each dense layer")})

RESNET20 = Block({"resnet20.dropout": _dropout("between the convolutions of each block")})

MLP = Block(
    {
        "mlp.widths": Key(
            "256,256",
            "units of each hidden layer",
            Rule(
                _are_widths,
                f"must be whole numbers from 1 to {MAX_WIDTH}, one for each of at most "
                f"{MAX_LAYERS} hidden layers: 128,64",
            ),
        ),
        "mlp.activation": Key("relu", "what follows each hidden layer", one_of(*ACTIVATIONS)),
        "mlp.dropout": _dropout("after each hidden layer"),
    }
)

EMBEDDINGS = ("piecewise_linear", "periodic")
NUM_QUANTILES = 65
"""Levels, evenly spaced from 0 to 1, of the quantiles that networks are given of their inputs."""

EMBEDDED_MLP = Block(
    {
        **{key.replace("mlp.", "embedded_mlp."): one for key, one in MLP.keys.items()},
        "embedded_mlp.embedding": Key(
            "piecewise_linear", "what a feature is mapped to", one_of(*EMBEDDINGS)
        ),
        "embedded_mlp.size": Key(16, "numbers that a feature is mapped to", POSITIVE, most=1024),
        "embedded_mlp.num_bins": Key(
            32,
            "bins between quantiles of a feature, of piecewise_linear",
            one_of(*(2**i for i in range(1, 7))),
        ),
        "embedded_mlp.frequency_scale": Key(
            0.05, "standard deviation of the frequencies of periodic, at the start", POSITIVE
        ),
    }
)

VIT = Block(
    {
        "vit.size": Key(
            "S", "how wide and deep a vision transformer is", one_of("Ti", "S", "B", "L")
        ),
        "vit.patch": Key(16, "pixels along a side of the patches of images", POSITIVE),
        "vit.dropout": Key(0.0, "share of units that training drops", BELOW_ONE),
    }
)
