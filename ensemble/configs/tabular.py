"""Your own table: eight MLPs learn a column from the others, classes or numbers by what it holds.

    ensemble train --config=tabular --workdir=runs/mine --config.dataset=csv:mine.csv \\
        --config.target=price

The file's first line names the columns: numbers, truth values, dates, categories, with missing
values. The type of each column is printed; `--config.column_types="zip=category, id=drop"` sets
types. If rows come in groups, such as patients, add `--config.split_by=group:patient`; if they come
over time, `--config.split_by=time:date`. Every network holds out some rows, by which it stops; with
`--config=tabular:deep_ensemble` all learn all rows, and stop by the validation split.
`--config=tabular:tabm` is a TabM of 32 estimators behind embeddings of numbers, which can win and
takes longer.
docs/tables.md has the rest. Sizes and rates of the first two were chosen on ten tables
(docs/decisions/0027-defaults-of-tables.md). Time and result are those of your data: not measured.
"""

from ensemble.configs import Keys, arrays, keys_of


def get_config(variant: str = "") -> Keys:
    """Returns the experiment.

    Args:
        variant: '', or 'deep_ensemble' for networks that learn all training rows, and stop by the
            validation split, or 'tabm' for estimators that share weights, which do so too.
    """
    networks = {
        "dataset": "csv:PATH",
        "likelihood": "auto",
        "num_epochs": 200,
        "learning_rate": 5e-3,
        "weight_decay": 1e-3,
        "early_stopping_epochs": 40,
    }
    tabm = {
        "method": "batch_ensemble",
        "scaler": "robust",
        "mlp.embedding": "piecewise_linear",
        "ensemble_size": 1,
        "num_estimators": 32,
        "adapters": "tabm_mini",
        "optimizer": "adamw",
        "lr_schedule": "constant",
        "learning_rate": 2e-3,
        "weight_decay": 3e-4,
        "batch_size": 256,
        "early_stopping_epochs": 16,
    }
    widths = {"mlp.widths": "128,128"}
    # Members of k-fold bagging stop by the rows that they hold out.
    bagging = {**widths, "method": "kfold_bagging", "scaler": "robust"}
    own = keys_of(variant, deep_ensemble=widths, tabm=tabm) or bagging
    return arrays.get_config() | networks | own
