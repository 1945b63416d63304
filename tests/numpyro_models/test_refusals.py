"""Functions and arguments that no sampler can use end in one line, with the user's own place."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from ensemble import UserError
from ensemble.numpyro_models.density_program import DensityProgram
from ensemble.numpyro_models.numpyro_program import NumPyroProgram

CALLS = itertools.count()
Y = np.linspace(0.1, 3, 9)


def fine(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def text_for_a_scale(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu, "a"), obs=y)


def text_for_a_prior(y):
    numpyro.sample("mu", dist.Normal(0, "a"))


def unequal_shapes(y):
    numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(jnp.zeros(3), jnp.ones(4)), obs=y)


def a_list_of_data(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu, 1), obs=list(Y))


def floats_for_categories(y):
    numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Categorical(jnp.ones(3) / 3), obs=y)


def complex_data(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y * 1j)


def no_data(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y[:0])


def branches(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    if mu > 0:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def loses_a_site(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    if next(CALLS) % 2 == 0:
        numpyro.sample("nu", dist.Normal(mu, 1))


def grows(y):
    numpyro.sample("mu", dist.Normal(0, 1).expand([next(CALLS)]))


def renames(y):
    numpyro.sample(f"mu{next(CALLS)}", dist.Normal(0, 1))


def carries_integers(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    jax.lax.scan(lambda carry, one: (carry + mu * one, None), jnp.arange(3), y)


def yields(y):
    yield numpyro.sample("mu", dist.Normal(0, 1))


async def waits(y):
    numpyro.sample("mu", dist.Normal(0, 1))


class Model:
    def __init__(self, y):
        numpyro.sample("mu", dist.Normal(0, 1))


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (text_for_a_scale, "failed at .*:{line} .*StrDType"),
        (text_for_a_prior, "failed at .*:{line} .*StrDType"),
        (unequal_shapes, ":{line} .*Incompatible"),
        (a_list_of_data, "'y'.*:{line}.*array"),
        (floats_for_categories, "'y'.*:{line} .*integer"),
        (complex_data, "'y'.*:{line}.*density.*complex64"),
        (no_data, r"'y'.*:{line}.*\(0,\).*empty"),
        (branches, "test_refusals.py:.*write jnp.where.*jax.lax.cond"),
        (loses_a_site, r"changes.*'nu'.*:{line} is \(\)"),
        (grows, "changes.*'mu'.*:{line}"),
        (renames, "changes.*'mu.*'.*:{line}.*absent"),
        (carries_integers, "failed at .*:{line} .*int32"),
        (yields, "generator.*yield"),
        (waits, "coroutine.*async"),
        (Model, "is a class.*instance"),
    ],
)
def test_a_model_that_is_no_program_for_a_sampler(model, line):
    code = getattr(model, "__code__", None)
    last = max(number for *_, number in code.co_lines() if number) if code else ""
    with pytest.raises(UserError, match=line.format(line=last)) as caught:
        NumPyroProgram(model, (Y,))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("y", "line"),
    [
        (np.array(["a", "b"]), "argument.*<U1"),
        (np.array([1.0, None]), "argument.*object"),
        (np.array([1, 2**40]), "2147483647.*JAX"),
        ({"a": np.array([-(2**63)])}, "argument y.a .* beyond 2147483647"),
    ],
)
def test_arguments_that_are_no_numbers_of_jax(y, line):
    with pytest.raises(UserError, match=line):
        NumPyroProgram(fine, (), {"y": y})


def test_whole_numbers_and_columns_of_a_table_are_data():
    pandas = pytest.importorskip("pandas")
    arrays = np.arange(9), pandas.Series(range(9)), jnp.arange(9)
    programs = [NumPyroProgram(fine, (), {"y": one}) for one in arrays]
    for program in programs:
        found = program.log_density({"mu": jnp.float32(0.5)}, program.arrays)
        expected = dist.Normal(0, 1).log_prob(0.5) + dist.Normal(0.5, 1).log_prob(arrays[0]).sum()
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert programs[0].identity() == programs[1].identity()


@pytest.mark.parametrize(
    ("density", "start", "line"),
    [
        (lambda x: x.no_such_thing, 0.0, "test_refusals.py:.*no_such_thing"),
        (lambda x: -float(x), 0.0, "values of an array"),
        (lambda x: -(x**2), np.zeros(2), r"returns float32\[2\]"),
        (lambda x: 3, 0.0, r"int32\[\].*position"),
        (lambda x: (yield x), 0.0, "is a generator, must be a function"),
        (lambda x: -(x**2), "a", "start.*real numbers"),
        (lambda x: -(x**2), {}, "the start of the density is empty"),
    ],
)
def test_a_log_density_that_is_none(density, start, line):
    with pytest.raises(UserError, match=line) as caught:
        DensityProgram(density, start, "the density")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["a/b", "a.b"], r"'a/b'.*'a.b'"),
        (["a/b", "a"], r"'a'.*'a/b'"),
        (["chain"], r"'chain'"),
    ],
)
def test_names_that_are_one_in_a_file_of_draws_are_refused(names, line):
    def model():
        for name in names:
            numpyro.sample(name, dist.Normal(0, 1))

    with pytest.raises(UserError, match=line):
        NumPyroProgram(model)


def test_positions_of_one_name_in_a_file_of_draws_are_refused():
    start = {"a": {"b": np.zeros(2)}, "a.b": np.ones(2)}
    with pytest.raises(UserError, match=r"'a.b'.*'a.b'.*overwrite"):
        DensityProgram(lambda position: -jnp.sum(position["a.b"]), start, "mine")
