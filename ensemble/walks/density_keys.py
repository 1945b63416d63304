"""The keys of a density that is sampled as it is, without data."""

from ensemble.keys import Block, Key, described

BLOCK = Block(
    {
        "density": Key(
            "gaussian_mixture", "the density to sample", described("must be a registered density")
        )
    }
)
