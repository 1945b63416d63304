"""The keys of models of NumPyro."""

import pytest
from run_parts import validated

from ensemble import UserError, registry


def test_a_file_and_a_name_mean_a_model():
    assert registry.task_of_model("numpyro:mine.py:model") == "numpyro"


def test_keys_of_data_are_refused():
    with pytest.raises(UserError) as error:
        validated({"method": "nuts", "model": "numpyro:m.py:f", "data_dir": "/data"})
    assert str(error.value).startswith(
        "config.data_dir='/data' is for config.model='mlp' or another network, and this run has "
        "config.model='numpyro:m.py:f': leave it out"
    )
