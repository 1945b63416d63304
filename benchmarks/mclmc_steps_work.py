"""What the workers of mclmc_steps share: the table, the sizes, the settings of the sampler."""

import numpy as np

NUM_ROWS, NUM_CHAINS = 1202, 10
WIDTHS = (16, 16, 16, 16)
STEP_SIZE = 0.01
SECONDS = 6.0


def load_table(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Airfoil's rows, in a random order, standardised.

    Args:
        path: the csv file of bde, whose last column is the target.

    Returns:
        Inputs [1503, 5] and targets [1503], float32.
    """
    table = np.genfromtxt(path, delimiter=",", skip_header=1)
    table = table[np.random.default_rng(0).permutation(len(table))]
    table = (table - table.mean(axis=0)) / table.std(axis=0)
    return table[:, :-1].astype(np.float32), table[:, -1].astype(np.float32)
