"""The figures show the draws they are given, and draw without a warning on any chains."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from ensemble.draws.diagnostics import summarise
from ensemble.pictures import chain_plots, plot_style


def draw(figure):
    """Draws for real, so that layout and text are tried too; warnings are errors."""
    assert plot_style.figure_to_array(figure).dtype == np.uint8


def normal(num_chains=4, num_draws=1000, seed=0):
    return np.random.default_rng(seed).normal(size=(num_chains, num_draws))


def title(axes):
    return axes.get_title(loc="left")


def colored(axes, color):
    """The bars of a colour that have a height."""
    return [
        bar
        for bar in axes.patches
        if to_hex(bar.get_facecolor()) == color.lower() and bar.get_height() > 0
    ]


# Traces.


def traces(num_chains=4, num_draws=300):
    values = -16000 + normal(num_chains, num_draws)
    values[:, 0] = -1e6  # The start is far off.
    step_size = np.tile(np.geomspace(1e-1, 1e-3, num_draws), (num_chains, 1))
    return {
        "log density (nats)": values,
        "accuracy": normal(num_chains, num_draws),
        "$ε$": step_size,
    }


def test_traces_are_the_draws_in_order():
    given = traces()
    figure = chain_plots.trace_plot(given, num_warmup=100, title="Traces of $run")
    draw(figure)
    assert [title(axes) for axes in figure.axes] == list(given)
    for axes, values in zip(figure.axes, given.values(), strict=True):
        assert len(axes.get_lines()) == 4
        for line, chain in zip(axes.get_lines(), values, strict=True):
            np.testing.assert_array_equal(line.get_xdata(), np.arange(300))
            np.testing.assert_array_equal(line.get_ydata(), chain)
        (shade,) = axes.patches
        assert (shade.get_x(), shade.get_x() + shade.get_width()) == (-0.5, 99.5)
    low, high = figure.axes[0].get_ylim()
    assert -16010 < low < high < -15990  # The start does not flatten the rest.
    assert figure.axes[2].get_yscale() == "log"
    (legend,) = figure.legends
    expected = ["warm-up", *(f"chain {k}" for k in range(4))]
    assert [text.get_text() for text in legend.get_texts()] == expected


def test_long_traces_are_thinned():
    figure = chain_plots.trace_plot({"x": normal(2, 20_001)}, 1000, "")
    (axes,) = figure.axes
    assert len(axes.get_lines()[0].get_xdata()) <= 2000
    np.testing.assert_array_equal(np.diff(axes.get_lines()[0].get_xdata()), 11)
    assert axes.get_xlabel() == "draw (1 of 11 is shown)"


def test_labels_have_no_offset():
    figure = chain_plots.trace_plot({"x": 1e6 + normal(2, 50) / 100}, 0, "")
    draw(figure)
    assert figure.axes[0].yaxis.get_offset_text().get_text() == ""
    assert len(figure.axes[0].patches) == 0  # Without a warm-up nothing is shaded.


@pytest.mark.parametrize(
    "values",
    [
        normal(1, 1),
        normal(2, 0),
        np.full((2, 30), 0.5),
        np.zeros((2, 30)),
        np.full((2, 30), np.nan),
        np.where(np.arange(30) == 3, -np.inf, normal(2, 30)),
        normal(150, 10),
        normal(2, 30).astype(np.float32),
        normal(2, 30) > 0,
    ],
    ids=["one", "none", "constant", "zero", "nan", "infinite", "many", "float32", "bool"],
)
def test_any_traces_are_drawn(values):
    for num_warmup in (0, 20, 60):
        draw(chain_plots.trace_plot({"x": values}, num_warmup, "t"))


# Ranks.


def ranks(scalars):
    figure = chain_plots.rank_plot(scalars, summarise(scalars), "Ranks")
    draw(figure)
    return figure


@pytest.mark.check
def test_the_first_and_the_worst_are_drawn():
    scalars = {"log $density$": normal(), "constant": np.ones((4, 1000))}
    for k in range(8):
        scalars[f"p{k}"] = normal(seed=k + 1) + k / 5 * np.arange(4)[:, None]
    stuck = np.repeat(np.arange(4.0)[:, None], 1000, axis=1)
    scalars |= {"stuck": stuck, "nan": np.full((4, 1000), np.nan)}
    names = [title(axes).split("\n")[0].replace("\\", "") for axes in ranks(scalars).axes]
    assert names == ["log $density$", "stuck", "p7", "p6", "p5", "p4"]


def test_bars_are_the_ranks_of_each_chain():
    values = np.arange(400).reshape(4, 100)[:, ::-1].copy()  # Chain k has the k-th quarter.
    counts, low, high, stride = chain_plots._rank_histogram(values, ess=400)
    assert stride == 1
    np.testing.assert_array_equal(counts, np.kron(np.eye(4, dtype=int), np.full(5, 20)))
    assert (counts.sum(axis=0) == 20).all()
    outside = (counts < low) | (counts > high)
    assert outside.all()  # 20 where 5 are expected, or none.
    (axes,) = ranks({"x": values}).axes  # Thinned: 10 bins, of which each chain fills 2.5.
    low = [bar.get_y() for bar in colored(axes, plot_style.WRONG_COLOR)]
    assert set(low) == {0, -1, -2, -3}
    assert len(colored(axes, plot_style.RIGHT_COLOR)) == 4  # Half-full bins between two chains.


def test_the_band_holds_99_percent_of_independent_draws():
    outside = []
    for seed in range(50):
        counts, low, high, _ = chain_plots._rank_histogram(normal(seed=seed), ess=4000)
        assert counts.shape == (4, 20)
        outside.append(((counts < low) | (counts > high)).mean())
    assert 0.003 < np.mean(outside) < 0.012


def test_draws_are_thinned_to_what_they_are_worth():
    slow = np.repeat(normal(4, 200), 10, axis=1)
    ess = summarise({"x": slow}).scalars["x"].ess_bulk
    counts, low, high, stride = chain_plots._rank_histogram(slow, ess)
    assert 8 <= stride <= 12
    assert ((counts < low) | (counts > high)).mean() < 0.05
    counts, low, high, _ = chain_plots._rank_histogram(slow, ess=slow.size)
    assert ((counts < low) | (counts > high)).mean() > 0.2  # Chance looks like a difference.
    assert chain_plots._rank_histogram(slow, ess=4)[0].sum() >= 4 * 50


def test_ties_do_not_pile_up():
    counts, low, high, _ = chain_plots._rank_histogram(np.round(normal(seed=3)), ess=4000)
    assert ((counts < low) | (counts > high)).mean() < 0.05


def test_of_many_chains_the_oddest_are_drawn():
    values = normal(30, 200)
    values[[4, 17]] += 3
    (axes,) = ranks({"x": values}).axes
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert len(shown) == 8
    assert {"4", "17"} < set(shown)
    assert "8 of 30 chains" in title(axes)


def test_one_chain_is_shown_by_its_halves():
    drifting = normal(1, 401) + np.linspace(0, 4, 401)
    (axes,) = ranks({"x": drifting}).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1st half", "2nd half"]
    assert colored(axes, plot_style.WRONG_COLOR)


@pytest.mark.parametrize(
    "scalars",
    [
        {},
        {"x": np.ones((2, 50))},
        {"x": normal(2, 3)},
        {"x": normal(2, 4)},
        {"x": normal(1, 5)},
        {"x": normal(2, 50) > 0},
    ],
    ids=["none", "constant", "too_few", "few", "one_chain", "bool"],
)
def test_any_ranks_are_drawn(scalars):
    ranks(scalars)


# Marginals.


@pytest.mark.parametrize("num_dimensions", [1, 14])
def test_marginals_are_the_densities_of_the_dimensions(num_dimensions):
    edges = np.tile(np.linspace(-1, 3, 9), (num_dimensions, 1))
    cdf = ((edges + 1) / 4) ** 2  # Of a density that rises from 0 to a half.
    figure = chain_plots.marginal_plot(edges, cdf, title="Marginals of $run")
    draw(figure)
    shown = [axes for axes in figure.axes if axes.axison]
    assert [title(axes) for axes in shown] == [f"dimension {d}" for d in range(len(shown))]
    assert len(shown) == min(num_dimensions, 12)
    for axes in shown:
        (stairs,) = axes.patches
        np.testing.assert_allclose(stairs.get_data().values, (np.arange(8) + 0.5) / 16)
        np.testing.assert_array_equal(stairs.get_data().edges, edges[0])


# Pairs.


def test_pairs_show_every_two_variables_and_all_draws_that_diverged():
    scalars = {"$a": normal(2, 3000), "b": normal(2, 3000, seed=1), "c": normal(2, 3000, seed=2)}
    diverged = np.zeros((2, 3000), bool)
    diverged[1, 7] = True
    figure = chain_plots.pair_plot(scalars, diverged, "Pairs")
    draw(figure)
    grid = np.reshape(figure.axes, (3, 3))
    for i, j in np.ndindex(3, 3):
        assert grid[i, j].axison == (j <= i)
        if j < i:
            dots, marked = grid[i, j].get_lines()
            one, other = list(scalars.values())[j], list(scalars.values())[i]
            assert len(dots.get_xdata()) == 2000
            assert (marked.get_xdata(), marked.get_ydata()) == (one[1, 7], other[1, 7])
        elif i == j:
            assert sum(bar.get_height() for bar in grid[i, j].patches) == 6000


def test_pairs_of_nothing_or_one_variable_are_pictures_too():
    draw(chain_plots.pair_plot({}, np.zeros((2, 0), bool), "Pairs"))
    draw(chain_plots.pair_plot({"a": normal(2, 9)}, np.ones((2, 9), bool), "Pairs"))
