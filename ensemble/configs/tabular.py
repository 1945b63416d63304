"""Your own table: eight MLPs learn a column from the others, classes or numbers by what it holds.

    ensemble train --config=tabular --workdir=runs/mine --config.dataset=csv:mine.csv \\
        --config.target=price

The file's first line names the columns: numbers, truth values, dates, categories, with missing
values. What was made of each is printed; `--config.columns="zip=category, id=drop"` overrides it.
If rows come in groups, such as patients, add `--config.split=group:patient`; if they come over
time, `--config.split=time:date`. Every network holds out some rows, by which it stops; with
`--config=tabular:sgd` all learn all rows, and stop by the validation split. `--config=tabular:tabm`
is a TabM of 32 estimators behind embeddings of numbers, which can win and takes longer.
docs/tables.md has the rest. Sizes and rates of the first two were chosen on ten tables, by
benchmarks/tables_defaults.py. Time and result are those of your data: not measured.
"""

import ml_collections

from ensemble.configs import arrays


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Returns the experiment.

    Args:
        variant: '', or 'sgd' for networks that learn all training rows, and stop by the validation
            split, or 'tabm' for estimators that share weights, which do so too.

    Raises:
        ValueError: there is no such variant.
    """
    if variant not in ("", "sgd", "tabm"):
        raise ValueError(f"variant {variant!r} is unknown; there are sgd and tabm")
    config = arrays.get_config()
    config.dataset = "csv:PATH"
    config.likelihood = "auto"
    if variant != "tabm":
        config.mlp.widths = "128,128"
    config.num_epochs = 200
    config.learning_rate = 5e-3
    config.weight_decay = 1e-3
    config.early_stopping_epochs = 40
    if not variant:
        config.method = "cross_fitted"
        config.scaling = "robust"
        config.early_stopping_epochs = 0  # Members stop by the rows that they hold out.
    if variant == "tabm":
        config.method = "batch_ensemble"
        config.scaling = "robust"
        config.model = "embedded_mlp"
        config.embedded_mlp.widths = "256,256"
        config.ensemble_size = 1
        config.batch_ensemble.num_estimators = 32
        config.batch_ensemble.adapters = "tabm_mini"
        config.optimizer = "adamw"
        config.schedule = "constant"
        config.learning_rate = 2e-3
        config.weight_decay = 3e-4
        config.batch_size = 256
        config.early_stopping_epochs = 16
    return config
