"""Tables with named columns: numbers, truth values, dates and categories, with missing values.

`raw_columns` has raw columns as files and data frames hold them, `column_kinds` says what each is
taken for, `table_form` fits how they become inputs, `read_table` applies it, and `table_source` is
the source.
"""

from typing import Any


def is_table(data: Any) -> bool:
    """Whether data are a frame of pandas, polars or pyarrow: whatever has named columns."""
    return hasattr(data, "columns") and (hasattr(data, "dtypes") or hasattr(data, "column_names"))
