"""Your own table: eight MLPs learn a column from the others, classes or numbers by what it holds.

    ensemble train --config=tabular --workdir=runs/mine --config.dataset=csv:mine.csv \\
        --config.target=price

The file's first line names the columns: numbers, truth values, dates, categories, with missing
values. What was made of each is printed; `--config.columns="zip=category, id=drop"` overrides it.
If rows come in groups, such as patients, add `--config.split=group:patient`; if they come over
time, `--config.split=time:date`. docs/tables.md has the rest. The values below were chosen on ten
tables, by benchmarks/tables_defaults.py. Time and result are those of your data: not measured.
"""

import ml_collections

from ensemble.configs import arrays


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment, which has no variant."""
    config = arrays.get_config(variant)
    config.dataset = "csv:PATH"
    config.likelihood = "auto"
    config.mlp.widths = "128,128"
    config.num_epochs = 200
    config.early_stopping_epochs = 40
    config.learning_rate = 5e-3
    config.weight_decay = 1e-3
    return config
