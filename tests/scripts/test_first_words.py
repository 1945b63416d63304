"""The search for docstrings that are fragments finds them wherever they stand."""

import pytest

from scripts.first_words import fragments

MODULE = '''"""Of a module."""

SIZE = 3
"""Of a constant."""


class Those:
    """Says what it is."""

    size = 3
    """Where a field is."""

    def of(self):
        """As another one.

        Of no matter: only the first word counts.
        """
        return "Of text that is no docstring"
'''


def test_fragments_are_found_in_modules_constants_fields_and_functions():
    assert sorted(fragments(MODULE)) == [
        (1, "Of a module."),
        (4, "Of a constant."),
        (11, "Where a field is."),
        (14, "As another one."),
    ]


@pytest.mark.parametrize("text", ["Offers what it has.", "Whereas it rains, it pours.", ""])
def test_whole_words_count(text):
    assert list(fragments(f'"""{text}"""')) == []
