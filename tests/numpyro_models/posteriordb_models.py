"""The posteriors of ../shared/posteriordb as NumPyro models, and how draws are held against Stan's.

The Stan program beside each data file is the statement of the model; these are written anew.
"""

import inspect
import json
import math
import pathlib
import re

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "shared/posteriordb"


def flat(name, support=constraints.real, shape=()):
    """A variable without a prior."""
    return numpyro.sample(name, dist.ImproperUniform(support, (), shape))


def normal(name, scale, shape=(), loc=0.0):
    """Independent normal variables."""
    return numpyro.sample(name, dist.Normal(loc, scale).expand(shape).to_event(len(shape)))


def scale_like_cauchy(width):
    return numpyro.sample("sigma", dist.HalfCauchy(width))


def regression(columns, target, sigma=None):
    """Least squares with flat coefficients, whose first is the intercept."""
    beta = flat("beta", shape=(len(columns) + 1,))
    sigma = flat("sigma", constraints.positive) if sigma is None else sigma
    mean = beta[0] + jnp.stack(columns, -1) @ beta[1:]
    numpyro.sample("y", dist.Normal(mean, sigma), obs=target)


def ar_k(K, T, y):
    alpha = normal("alpha", 10.0)
    beta = normal("beta", 10.0, (K,))
    sigma = scale_like_cauchy(2.5)
    lags = jnp.stack([y[K - k - 1 : T - k - 1] for k in range(K)], -1)
    numpyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=y[K:])


def arma11(T, y):
    mu = normal("mu", 10.0)
    phi = normal("phi", 2.0)
    theta = normal("theta", 2.0)
    sigma = scale_like_cauchy(2.5)

    def step(before, pair):
        error = pair[1] - (mu + phi * pair[0] + theta * before)
        return error, error

    first = y[0] - (mu + phi * mu)
    _, errors = jax.lax.scan(step, first, jnp.stack([y[:-1], y[1:]], -1))
    numpyro.factor("errors", dist.Normal(0, sigma).log_prob(jnp.append(first, errors)).sum())


def logearn_interaction(N, earn, height, male):
    regression([height, male, height * male], jnp.log(earn))


def eight_schools(J, y, sigma):
    mu = normal("mu", 5.0)
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", J):
        theta_trans = numpyro.sample("theta_trans", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", theta_trans * tau + mu)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def garch11(T, y, sigma1):
    mu = flat("mu")
    alpha0 = flat("alpha0", constraints.positive)
    alpha1 = flat("alpha1", constraints.unit_interval)
    beta1 = flat("beta1", constraints.interval(0, 1 - alpha1))

    def step(sigma, before):
        sigma = jnp.sqrt(alpha0 + alpha1 * (before - mu) ** 2 + beta1 * sigma**2)
        return sigma, sigma

    _, sigmas = jax.lax.scan(step, jnp.float32(sigma1), y[:-1])
    numpyro.sample("y", dist.Normal(mu, jnp.append(sigma1, sigmas)), obs=y)


def gp_pois_regr(N, x, k):
    rho = numpyro.sample("rho", dist.Gamma(25, 4))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2))
    f_tilde = normal("f_tilde", 1.0, (N,))
    covariance = alpha**2 * jnp.exp(-0.5 * ((x[:, None] - x) / rho) ** 2)
    # Stan's 1e-10 is nothing to float32.
    f = jnp.linalg.cholesky(covariance + 1e-4 * jnp.eye(N)) @ f_tilde
    numpyro.deterministic("f", f)
    numpyro.sample("k", dist.Poisson(jnp.exp(f)), obs=k)


def hmm_example(N, K, y):
    theta = jnp.stack(
        [numpyro.sample(f"theta{i + 1}", dist.Dirichlet(jnp.ones(K))) for i in (0, 1)]
    )
    mu = flat("mu", constraints.positive_ordered_vector, (K,))
    numpyro.factor("mu_prior", dist.Normal(jnp.array([3.0, 10.0]), 1).log_prob(mu).sum())
    log_probs = dist.Normal(mu, 1).log_prob(y[:, None])

    def step(gamma, log_prob):
        return jax.nn.logsumexp(gamma[:, None] + jnp.log(theta), axis=0) + log_prob, None

    gamma, _ = jax.lax.scan(step, log_probs[0], log_probs[1:])
    numpyro.factor("y", jax.nn.logsumexp(gamma))


def kidscore_interaction(N, kid_score, mom_iq, mom_hs):
    regression([mom_hs, mom_iq, mom_hs * mom_iq], kid_score, scale_like_cauchy(2.5))


def kidscore_mom_work(N, kid_score, mom_work):
    regression([mom_work == i for i in (2, 3, 4)], kid_score)


def kilpisjarvi(N, x, y, pmualpha, psalpha, pmubeta, psbeta):
    alpha = normal("alpha", psalpha, loc=pmualpha)
    beta = normal("beta", psbeta, loc=pmubeta)
    sigma = flat("sigma", constraints.positive)
    numpyro.sample("y", dist.Normal(alpha + beta * x, sigma), obs=y)


def low_dim_gauss_mix(N, y):
    mu = flat("mu", constraints.ordered_vector, (2,))
    numpyro.factor("mu_prior", dist.Normal(0, 2).log_prob(mu).sum())
    sigma = numpyro.sample("sigma", dist.HalfNormal(2).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5, 5))
    weights = dist.Categorical(jnp.stack([theta, 1 - theta]))
    numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)


def logmesquite_logvas(N, weight, diam1, diam2, canopy_height, total_height, density, group):
    areas = [jnp.log(diam1 * diam2 * canopy_height), jnp.log(diam1 * diam2)]
    others = [jnp.log(diam1 / diam2), jnp.log(total_height), jnp.log(density), group]
    regression([*areas, *others], jnp.log(weight))


def nes(N, partyid7, real_ideo, race_adj, educ1, gender, income, age_discrete):
    ages = [age_discrete == i for i in (2, 3, 4)]
    regression([real_ideo, race_adj, *ages, educ1, gender, income], partyid7)


def blr(N, D, X, y):
    beta = normal("beta", 10.0, (D,))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10))
    numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


MODELS = {
    "arK-arK": ar_k,
    "arma-arma11": arma11,
    "earnings-logearn_interaction": logearn_interaction,
    "eight_schools-eight_schools_noncentered": eight_schools,
    "garch-garch11": garch11,
    "gp_pois_regr-gp_pois_regr": gp_pois_regr,
    "hmm_example-hmm_example": hmm_example,
    "kidiq-kidscore_interaction": kidscore_interaction,
    "kidiq_with_mom_work-kidscore_mom_work": kidscore_mom_work,
    "kilpisjarvi_mod-kilpisjarvi": kilpisjarvi,
    "low_dim_gauss_mix-low_dim_gauss_mix": low_dim_gauss_mix,
    "mesquite-logmesquite_logvas": logmesquite_logvas,
    "nes1980-nes": nes,
    "sblrc-blr": blr,
}


def read(name):
    """The arguments of a model and Stan's reference, from ../shared."""
    data = json.loads((FOLDER / name / "data.json").read_text())
    taken = inspect.signature(MODELS[name]).parameters
    arguments = {
        key: np.asarray(value) if isinstance(value, list) else value
        for key, value in data.items()
        if key in taken
    }
    return arguments, json.loads((FOLDER / name / "reference.json").read_text())


def z_scores(draws, reference):
    """Distances of means and sds from Stan's, in joint Monte Carlo errors, by statistic and name.

    The error of a sd is by the effective sample size of squares about the mean, which is ArviZ's.

    Args:
        draws: [C, T, ...] by name.
        reference: of `read`.
    """
    found = {"mean": {}, "sd": {}}
    for name, one in reference.items():
        site, _, index = name.rstrip("]").partition("[")
        values = np.asarray(draws[site], np.float64)
        if index:
            values = values[(..., *(int(i) - 1 for i in re.split(",", index)))]
        for statistic, value in (("mean", values.mean()), ("sd", values.std(ddof=1))):
            mcse = float(arviz.mcse(values, method=statistic))
            error = math.hypot(mcse, one[f"mcse_{statistic}"])
            found[statistic][name] = abs(value - one[statistic]) / error
    return found


def largest_z(draws, reference):
    """The largest of `z_scores`, and of what it is; infinite where one cannot be had."""
    worst = (0.0, "")
    for statistic, of_names in z_scores(draws, reference).items():
        for name, z in of_names.items():
            worst = max(worst, (math.inf if math.isnan(z) else z, f"{statistic} of {name}"))
    return worst
