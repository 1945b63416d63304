"""Pictures of recommendations show what the draws chose, whatever titles are made of."""

import numpy as np

from ensemble.pictures import plot_style
from ensemble.recommendation.plots import first_choice_figures


def test_the_choices_are_bars_and_the_rest_is_one():
    odd = r"$\frac{$"  # As mathematics it cannot be drawn.
    titles = {f"{odd} {i}": 30 - i for i in range(23)}
    figures = first_choice_figures(
        {
            "most": {"user": odd, "num_watched": 1234, "titles": titles, "genres": {odd: 5}},
            "fewest": {"user": "u1", "num_watched": 2, "titles": {"A": 3}, "genres": {"B": 1}},
        }
    )
    assert list(figures) == ["recommended_titles", "recommended_genres"]
    for figure in figures.values():
        assert plot_style.figure_to_array(figure).dtype == np.uint8  # Drawn, as real ones are.
    most, fewest = figures["recommended_titles"].axes
    assert "with most watches: 1,234" in most.get_title(loc="left")
    widths = [bar.get_width() for bar in most.patches]
    assert widths == [*range(30, 10, -1), 10 + 9 + 8]
    assert [label.get_text() for label in most.get_yticklabels()][-1] == "3 others"
    assert [bar.get_width() for bar in fewest.patches] == [3]
