"""Tables with named columns: numbers, truth values, dates and categories, with missing values.

`columns` has the columns of files and data frames, and what each is taken for; `table` fits how
they become inputs, which `read_table` applies, and makes the source.
"""

from typing import Any


def is_table(data: Any) -> bool:
    """Whether data are a frame of pandas, polars or pyarrow: whatever has named columns."""
    return hasattr(data, "columns") and (hasattr(data, "dtypes") or hasattr(data, "column_names"))
