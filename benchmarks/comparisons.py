"""What is compared with peers, and with what it was before: `compare.py` measures it.

Each entry of `COMPARISONS` says what is measured, by which workers, and which rows are made of it.
A worker is a script of this folder that measures one contestant and prints a JSON object.
"""

import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from side_by_side import Measurement

Results = Mapping[str, Sequence[Measurement]]

LOWER_IS_BETTER = ("s", "s of CPU", "GB", "MiB", "nats", "leapfrogs")
"""Units of which less is better."""

MODULES = {
    "torch": "torch",
    "torch_uncertainty": "torch, torch_uncertainty",
    "posteriors": "posteriors",
    "laplace": "torch, laplace",
    "bde": "bde",
    "torch_records": "torch, array_record",
    "tf": "tensorflow, array_record",
}
"""Requirements of peers alone, which an interpreter of their own may have: `--python NAME=PATH`."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A row of the table.

    Attributes:
        measure: what is compared.
        setting: at which sizes.
        unit: of the values.
        ours: a contestant; of several, the geometric mean.
        key: of the measurements; `a/b` is the ratio of two.
        peer: contestants likewise; none: ours alone, and also where the peers cannot run.
        name: of the peer; empty: that of the contestant.
        peer_key: of the peer's measurements; empty: as `key`.
    """

    measure: str
    setting: str
    unit: str
    ours: str | tuple[str, ...]
    key: str = "rate"
    peer: str | tuple[str, ...] = ()
    name: str = ""
    peer_key: str = ""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Contestants that are measured in alternating rounds.

    Attributes:
        commands: by contestant: the interpreter, 'ours' or a name of `MODULES`; a script and its
            arguments, where `{round}`, `{folder}` and `{airfoil}` stand for the number of the
            round, a folder of the comparison and bde's table.
        lines: of the table.
        once: contestants that are measured in the first round alone.
        before: commands that fill the folder.
        packages: whose versions are noted, by interpreter.
        more: what else the file has of the results; an error where they are wrong.
        kept: what other programs have added to the file.
    """

    commands: Mapping[str, tuple[str, ...]]
    lines: tuple[Line, ...]
    once: tuple[str, ...] = ()
    before: tuple[tuple[str, ...], ...] = ()
    packages: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    more: Callable[[Results], Mapping[str, Any]] = lambda _: {}
    kept: tuple[str, ...] = ()


def train_throughput() -> Comparison:
    """Ensembles of the how-to's CNN train: batches of 128 images of 28x28, SGD with momentum
    .9, float32; after compilation. The how-to is Flax's 'Ensembling on multiple devices' as
    published: M virtual devices, batches replicated, two pmapped calls a step. PyTorch loops
    over the members, channels_last, in float32 and under bfloat16 autocast. The compile time is
    that of the first step. Two minutes a round.
    """
    commands: dict[str, tuple[str, ...]] = {}
    lines = []
    rate = "member-images/s"
    sizes = (4, 8)
    for size in sizes:
        commands[f"ours {size}"] = ("ours", "train_ours.py", "cnn", str(size))
        commands[f"how-to {size}"] = ("ours", "train_throughput_howto.py", "train", str(size))
        for dtype in ("float32", "bfloat16"):
            script = ("torch", "torch_peers.py", "cnn", dtype, str(size))
            commands[f"pytorch {dtype} {size}"] = script
    for peer in ("how-to", "pytorch float32", "pytorch bfloat16"):
        for size in sizes:
            one = (f"ours {size}", "rate", f"{peer} {size}", peer)
            lines.append(Line("training", f"M={size}", rate, *one))
        if peer != "how-to":
            ours, theirs = (tuple(f"{who} {size}" for size in sizes) for who in ("ours", peer))
            setting = "M=4 and 8, geometric mean"
            lines.append(Line("training", setting, rate, ours, "rate", theirs, peer))
    lines.append(Line("compile time", "M=8", "s", "ours 8", "compile_seconds"))
    return Comparison(commands, tuple(lines), packages={"ours": ("jax",), "torch": ("torch",)})


def tables_throughput() -> Comparison:
    """Ten MLPs train on a table: three hidden layers of 128 rectified units, Gaussian noise,
    Adam, 10,000 rows of 20 columns, float32; after compilation. PyTorch runs the members by
    torch.func.vmap over stacked parameters, as its tutorial on ensembles does, as it is and
    through torch.compile. EnsembleRegressor().fit is from the start of its process.
    """
    setting = "M=10, 3 x 128, batches of 256"
    unit = "member-rows/s"
    peers = {"torch": "eager", "torch compiled": "compiled"}
    commands = {
        "ours": ("ours", "train_ours.py", "table"),
        "fit": ("ours", "train_ours.py", "fit"),
        **{name: ("torch", "torch_peers.py", "table", how) for name, how in peers.items()},
    }
    return Comparison(
        commands,
        (
            *(Line("training, table", setting, unit, "ours", "rate", peer) for peer in peers),
            Line("EnsembleRegressor().fit", "1,000 rows, cold", "s", "fit", "seconds"),
        ),
        packages={"torch": ("torch",)},
    )


def estimators_throughput() -> Comparison:
    """One member of estimators that see the same batches trains, on one core: a TabM of 32, and 4
    of BatchEnsemble and of a packed ensemble, of twice the width in all. On a table of 10,000 rows
    of 20 columns these have three hidden layers of 128 rectified units, Gaussian noise, Adam, in
    batches of 256; on images of 28x28 they are the how-to's CNN, SGD with momentum, in batches of
    128. Float32, after compilation; rates are of CPU time. Peers are the package tabm, and the
    layers of torch-uncertainty, as they are and through torch.compile. Five minutes a round.
    """
    names = {"tabm": "tabm", "tabm_mini": "tabm"}
    names |= dict.fromkeys(("batch_ensemble", "packed"), "torch-uncertainty")
    cases = [(name, "table", "3 x 128, batches of 256", "rows") for name in names]
    cases += [(name, "cnn", "CNN, batches of 128", "images") for name in list(names)[2:]]
    commands: dict[str, tuple[str, ...]] = {}
    lines = []
    for name, kind, setting, what in cases:
        ours = f"ours {name} {kind}"
        commands[ours] = ("ours", "train_ours.py", name, kind)
        interpreter = "torch_uncertainty" if names[name] != "tabm" else "torch"
        setting = f"{32 if names[name] == 'tabm' else 4} x {setting}"
        for how in ("eager", "compiled") if kind == "table" else ("eager",):
            peer = f"{name} {kind} {how}"
            commands[peer] = (interpreter, "torch_peers.py", "estimators", name, how, kind)
            about = (f"training, {name}", setting, f"estimator-{what}/CPU s")
            lines.append(Line(*about, ours, "cpu_rate", peer, f"{names[name]}, {how}"))
    packages = {"torch": ("torch", "tabm"), "torch_uncertainty": ("torch", "torch_uncertainty")}
    return Comparison(commands, tuple(lines), packages=packages)


def laplace() -> Comparison:
    """Laplace approximations of the last layer around the how-to's CNN: 4,000 images of MNIST's
    shape in batches of 128, prior precision 10, the predictive by MacKay's approximation for 2,000
    images. The same parameters and data for laplace-torch, whose full covariance must give the same
    probabilities to 1e-4; Kronecker factors are defined otherwise there. Seconds are of the CPU, on
    one thread, with the network's own passes; ours after compilation. A minute a round.
    """
    names = {"last_layer": "full", "last_layer_kronecker": "kron"}
    commands: dict[str, tuple[str, ...]] = {}
    lines = []
    for name, theirs in names.items():
        commands[name] = ("ours", "laplace_ours.py", name, "{folder}")
        commands[theirs] = ("laplace", "laplace_peers.py", theirs, "{folder}")
        peer = "laplace-torch"
        lines += [
            Line("fit", name, "s", name, "fit_seconds", theirs, peer),
            Line(
                "fit and compilation",
                name,
                "s",
                name,
                "first_fit_seconds",
                theirs,
                peer,
                "fit_seconds",
            ),
            Line("prediction", name, "images/s", name, "predictions", theirs, peer),
        ]
    return Comparison(
        commands,
        tuple(lines),
        before=(("ours", "laplace_ours.py", "train", "{folder}"),),
        packages={"laplace": ("torch", "laplace-torch")},
        more=_same_probabilities,
    )


def _same_probabilities(results: Results) -> dict[str, Any]:
    """How far probabilities are from the peer's, and both NLLs; an error where they are not the
    same."""
    found: dict[str, Any] = {}
    for ours, theirs in (("last_layer", "full"), ("last_layer_kronecker", "kron")):
        if theirs in results:
            last = results[ours][-1], results[theirs][-1]
            found[ours] = {
                "nll": last[0]["nll"],
                "peer_nll": last[1]["nll"],
                "largest_difference": max(one["off"] for one in results[theirs]),
            }
    if "last_layer" in found and found["last_layer"]["largest_difference"] > 1e-4:
        raise RuntimeError(f"probabilities differ: {found}")
    return {"probabilities": found}


def hmc_gradient() -> Comparison:
    """HMC on MNIST's logistic regression, on two virtual devices: trajectories of 20 leapfrog
    steps over all 60,000 images, unit mass, a fixed step size; gradients of one chain per
    second, times the chains, after compilation. Ours is `make_sampler` over `make_log_density`;
    of eight chains four lie on each device. From images in memory to the first draw counts what
    each makes of them, and compilation, without imports. The peer is BlackJAX's HMC over one
    float32 product and log-softmax in shard_map(check_vma=True), examples over the devices,
    differentiated by JAX. Once: the mean acceptance of the fast gradient and of float64's over
    the same trajectories. With --ess RUN NOTEBOOK, finished workdirs of mnist_logreg_hmc and of its
    variant notebook, their least bulk ESS per gradient is compared too. Two minutes a round.
    """
    commands: dict[str, tuple[str, ...]] = {}
    lines = []
    for size, groups in ((1, 1), (8, 2)):
        ours = f"ours {size}"
        peer = f"peer {size}"
        setting = f"{size} chain(s)"
        commands[ours] = ("ours", "hmc_gradient.py", "ours", str(size), str(groups))
        commands[peer] = ("ours", "hmc_gradient.py", "peer", str(size), "1")
        rows = (
            ("HMC, MNIST", "chain-gradients/s", "rate"),
            ("compile and first draw", "s", "compile_seconds"),
            ("images to first draw", "s", "cold_seconds"),
            ("images to first draw", "s of CPU", "cold_cpu_seconds"),
        )
        for measure, unit, key in rows:
            lines.append(Line(measure, setting, unit, ours, key, peer, "BlackJAX"))
    once = ("acceptance", "fast", "acceptance", "float64", "float64")
    lines.append(Line("mean acceptance", "1 chain", "", *once))
    commands["acceptance"] = ("ours", "hmc_gradient_acceptance.py")
    return Comparison(
        commands, tuple(lines), once=("acceptance",), packages={"ours": ("blackjax",)}
    )


def movielens_gradient() -> Comparison:
    """Leapfrog steps of two chains of the matrix factorisation with 20 latents, on watches of
    MovieLens 1M's size and rate, drawn at random; users are split over two virtual devices, or
    each has a chain. Ours is likelihood.py; the peer is softplus of the whole matrix of
    logits in shard_map(check_vma=True), differentiated by JAX. Peak memory is that of the whole
    process. The error is that of the change of the log likelihood over five steps, against
    float64. Once: ours alone on 20,000 users and 10,000 movies.
    """
    commands: dict[str, tuple[str, ...]] = {}
    lines: list[Line] = []
    size = ("6040", "3706")
    large = ("20000", "10000")
    seconds = "5"
    settings: dict[str, tuple[str, ...]] = {}
    for layout, groups in (("users split", "1"), ("chains split", "2")):
        both = settings[f"{' x '.join(size)}, {layout}"] = (f"ours {groups}", f"peer {groups}")
        for who, name in zip(("ours", "peer"), both, strict=True):
            script = ("ours", "movielens_gradient.py", who)
            commands[name] = (*script, *size, groups, seconds)
    settings[f"{' x '.join(large)}, users split"] = ("large",)
    commands["large"] = ("ours", "movielens_gradient.py", "ours", *large, "1", seconds)
    for setting, (ours, *peers) in settings.items():
        for measure, unit, key in (
            ("leapfrog, 2 chains", "steps/s", "rate"),
            ("peak memory", "MiB", "peak_mebibytes"),
            ("error of a change", "nats", "error"),
        ):
            lines.append(Line(measure, setting, unit, ours, key, *peers, *["naive"] * len(peers)))
    return Comparison(commands, tuple(lines), once=("large",))


_POSTERIORS = {
    "eight_schools-eight_schools_noncentered": "eight schools",
    "kidiq-kidscore_interaction": "kidiq",
    "nes1980-nes": "nes",
    "arma-arma11": "arma",
    "gp_pois_regr-gp_pois_regr": "gp_pois",
}
"""Models of different kinds: hierarchical, regressions with few and many predictors, a time series,
a Gaussian process."""


def numpyro_nuts() -> Comparison:
    """Effective draws per second of `ensemble.sample` with NUTS, beside NumPyro's own: five
    posteriors of ../shared/posteriordb, chains of 1,000 draws of warm-up and 1,000 that count,
    with default settings. NumPyro's chains are vectorised on one device; on two, two vectorised
    chains a device in the form that its documentation gives. Sampling is warm-up and draws
    without compilation. In all is the whole call: ours also computes diagnostics, predictions
    and a report. ESS is ArviZ's bulk ESS of the latent variables. Four minutes a round.
    """
    commands: dict[str, tuple[str, ...]] = {}
    lines = []
    settings = [(name, 4, devices) for devices in (1, 2) for name in _POSTERIORS]
    for name, chains, devices in [*settings, ("kidiq-kidscore_interaction", 16, 1)]:
        setting = f"{_POSTERIORS[name]}, {chains} chains, {devices} device(s)"
        for who in ("ours", "peer"):
            arguments = (who, name, str(chains), str(devices), "{round}")
            commands[f"{who}, {setting}"] = ("ours", "numpyro_nuts.py", *arguments)
        for measure, unit, key in (
            ("least ESS, sampling", "1/s", "ess_min/sampling_seconds"),
            ("median ESS, sampling", "1/s", "ess_median/sampling_seconds"),
            ("least ESS, in all", "1/s", "ess_min/seconds"),
            ("leapfrog steps of a draw", "leapfrogs", "leapfrogs_per_draw"),
            ("sampling", "s", "sampling_seconds"),
            ("compilation", "s", "compile_seconds"),
            ("in all", "s", "seconds"),
        ):
            both = (f"ours, {setting}", key, f"peer, {setting}")
            lines.append(Line(measure, setting, unit, *both, "NumPyro"))
    return Comparison(commands, tuple(lines), packages={"ours": ("jax", "numpyro")})


def mclmc_steps() -> Comparison:
    """Steps of MCLMC with 10 chains of an MLP of four layers of 16 units with SiLU, which
    predicts a mean and a standard deviation, on 1,202 rows of airfoil's table; prior normal(1),
    fixed step size; after compilation; a step has two gradients. Ours predicts the other 301
    rows too. BlackJAX is its kernel as its documentation writes it, chains vmapped over a scan;
    bde (sklearn-contrib-bde==1.0.2, which has the table) samples over two devices. Compilation is
    that of the program that samples. From the table in memory to 320 steps of each chain counts
    everything but imports. Half a minute a round.
    """
    setting = "10 chains, 4 x 16, 1202 rows"
    lines = []
    for key, measure, unit in (
        ("rate", "MCLMC", "steps/s"),
        ("cpu_rate", "MCLMC", "steps/s of CPU"),
        ("compile_seconds", "MCLMC, compilation", "s"),
        ("cold_seconds", "MCLMC, table to first draws", "s"),
    ):
        for peer in ("BlackJAX", "bde"):
            lines.append(Line(measure, setting, unit, "ours", key, peer))
    return Comparison(
        {
            "ours": ("ours", "mclmc_steps.py", "ours", "{airfoil}"),
            "BlackJAX": ("ours", "mclmc_steps.py", "blackjax", "{airfoil}"),
            "bde": ("bde", "mclmc_steps.py", "bde", "{airfoil}"),
        },
        tuple(lines),
        packages={"ours": ("jax", "blackjax"), "bde": ("sklearn-contrib-bde",)},
    )


def sghmc() -> Comparison:
    """Stochastic gradient HMC on the how-to's CNN, four chains: batches of 128 images of 28x28,
    float32, no draws; steps of single chains per second after compilation. The peers are the
    transforms of these names of the PyTorch library posteriors, in place, a loop over four
    chains; baoa takes the same steps as ours. Half a minute a round.
    """
    peers = ("baoa", "sghmc")
    return Comparison(
        {
            "ours": ("ours", "train_ours.py", "sghmc", "4"),
            **{name: ("posteriors", "torch_peers.py", "sghmc", name, "4") for name in peers},
        },
        tuple(
            Line("sampling", "4 chains", "steps/s", "ours", "rate", peer, f"posteriors {peer}")
            for peer in peers
        ),
        packages={"posteriors": ("posteriors", "torch")},
    )


def evaluation() -> Comparison:
    """Predicting and evaluating with an ensemble of the how-to's CNN. Prediction is `load` of a
    workdir and 10,000 images, M = 2, beside the how-to's evaluation as published (through its
    gradient function, in one batch). Evaluation is `ensemble.evaluate`, M = 8: scores,
    intervals, pictures and report, with predictions still to be made and from stored ones, from
    the start of the process. Images are generated, of MNIST's shape and number. Two minutes a
    round, of which the how-to takes most.
    """
    setting = "M=2, 10000 images"
    ours = ("ours", "evaluation_ours.py")
    lines = [
        Line("prediction", setting, unit, "predict", key, "how-to")
        for key, unit in (("rate", "member-images/s"), ("peak_memory", "GB"))
    ]
    about = ("process start to first prediction", "M=2", "s")
    lines.append(Line(*about, "predict", "first_prediction_seconds"))
    for name, measure in (("evaluate", "from a checkpoint"), ("rescore", "stored predictions")):
        for key, unit in (("seconds", "s"), ("peak_memory", "GB")):
            lines.append(Line(f"evaluation, {measure}", "M=8, 10000 images", unit, name, key))
    return Comparison(
        {
            "predict": (*ours, "predict", "{folder}/2"),
            "how-to": ("ours", "train_throughput_howto.py", "evaluate", "2"),
            "evaluate": (*ours, "evaluate", "{folder}/8"),
            "rescore": (*ours, "rescore", "{folder}/8"),
        },
        tuple(lines),
        before=tuple((*ours, "prepare", f"{{folder}}/{size}", size) for size in ("2", "8")),
    )


LAYOUTS = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 4), (4, 1), (4, 2)]
"""Processes, and devices of each."""


def scaling() -> Comparison:
    """One run over more devices and processes of the same machine: eight members of the CNN
    train, and eight chains of a logistic regression sample, on 1 to 8 virtual CPU devices in 1
    to 4 processes. The cores stay the same: what is lost against one device is what members pay
    for their collectives, their processes and each other. `scaling.py` draws it.
    """
    commands: dict[str, tuple[str, ...]] = {}
    lines = []
    for kind, measure, unit in (
        ("sgd", "training", "member-images/s"),
        ("hmc", "sampling", "gradients/s"),
    ):
        for processes, devices in LAYOUTS:
            name = f"{kind} {processes} x {devices}"
            layout = (str(processes), str(devices))
            commands[name] = ("ours", "scaling_worker.py", kind, *layout, "whole")
            both = (name, "rate", f"{kind} 1 x 1", "one device")
            lines.append(Line(measure, f"{processes} x {devices}", unit, *both))
    return Comparison(commands, tuple(lines))


def streaming(num_examples: int = 100_000) -> Comparison:
    """Training from records on disk: memory, waiting, and records per second beside other loaders.
    Generated pictures of 64x64x3 are written into the system's temporary folder, unless they are
    there from before: 100,000 take 1.2 GB of disk, --num_examples=1000000 12 GB. Reading: records
    per second of shuffled batches of 128, as uint8 arrays, from the same files: by what training
    reads with, by PyTorch's DataLoader with two workers (torch_records), and by tf.data (tf); both
    interpreters need array_record, too. Waiting: the share of its time that training waits for
    records, with the how-to's CNN and an MLP. Training: examples of members per second from
    records, beside the same from arrays in memory, if the pictures take at most a tenth of it.
    Memory: the largest resident size of a process that trains; the MLP sees 64,000 examples, the
    CNN 6,400. Predicting: that of `python -m ensemble predict --out`, and its seconds, which writes
    the predictions of two MLPs for all pictures to the disk. Read the files once before if the disk
    is not to be measured. The slow ones can be left out: --without predicting "memory cnn".
    """
    folder = f"{tempfile.gettempdir()}/streaming/{num_examples}"
    setting = f"{num_examples:,} pictures"
    lines = []
    waiting = []
    ours = "streaming_ours.py"
    commands: dict[str, tuple[str, ...]] = {}
    for model, steps in (("cnn", 50), ("mlp", 500)):
        commands[f"memory {model}"] = ("ours", ours, "memory", folder, model, str(steps))
        seen = f"{setting}, {model}, {128 * steps:,} examples seen"
        lines.append(Line("memory", seen, "GB", f"memory {model}", "gigabytes"))
        commands[model] = ("ours", ours, "waiting", folder, model)
        waiting.append(Line("waiting", model, "share of the time", model, "share"))
        if fits_in_memory(num_examples):
            commands[f"{model} in memory"] = ("ours", ours, "in_memory", folder, model)
            both = (model, "rate", f"{model} in memory", "in memory")
            waiting.append(Line("training", f"{setting}, {model}", "member-examples/s", *both))
    commands |= {
        "predicting": ("ours", ours, "predicting", folder),
        "ours": ("ours", ours, "reading", folder),
        "torch": ("torch_records", "streaming_peers.py", "torch", folder),
        "tf": ("tf", "streaming_peers.py", "tf", folder),
    }
    for key, unit in (("gigabytes", "GB"), ("seconds", "s")):
        lines.append(Line("predicting to disk", setting, unit, "predicting", key))
    for peer, name in (("torch", "PyTorch DataLoader"), ("tf", "tf.data")):
        waiting.append(Line("reading", setting, "records/s", "ours", "rate", peer, name))
    write = ("ours", ours, "write", folder, str(num_examples))
    return Comparison(commands, (*lines, *waiting), before=(write,))


def fits_in_memory(num_examples: int) -> bool:
    """Whether the pictures take at most a tenth of the memory, since training has copies."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 10 * num_examples * 64 * 64 * 3 <= whole


MEAN = 0.92
VARIANCE = 9.7016
"""The moments of the mixture of four normals that rwm samples."""
MAX_ERRORS = 4.0


def rwm(num_samples: int = 10**9) -> Comparison:
    """A billion samples by random-walk Metropolis, beside those who did it before, on CPU.
    "Massively parallel MCMC with JAX" (https://rlouf.github.io/post/jax-random-walk-metropolis/)
    drew a billion samples of a mixture of four normals in 25 s. `rwm_peers.py` has the samplers.
    Seconds are after compilation unless said; ours counts moments, quantiles and R-hat in. Ours
    draws --num_samples, and a peer a tenth, since its time is proportional to the samples by then.
    Moments of ours must lie within four standard errors of the exact ones. `rwm.py` draws curves.
    """
    our_chains = 16_384
    peer_chains = 10_000
    ours = num_samples // our_chains // 2 * 2
    peers = num_samples // 10 // peer_chains
    sizes = {"ours": (our_chains, ours)}
    sizes |= dict.fromkeys(("scan", "jax", "blackjax"), (peer_chains, peers))
    sizes["numpy"] = (peer_chains, max(peers // 10, 2))
    named = {"scan": "lax.scan", "jax": "published JAX", "blackjax": "BlackJAX", "numpy": "NumPy"}
    rate = "millions/seconds"
    wide = "512-bit vectors if there are"
    lines = [Line("a billion samples", wide, "s", "ours", "seconds/billions")]
    for peer, shown in named.items():
        lines.append(Line("mixture", wide, "M/s", "ours", rate, peer, shown))
    first = "millions/first_seconds"
    lines.append(Line("mixture", "with compilation", "M/s", "ours", first, "jax", "published"))
    return Comparison(
        {name: ("ours", "rwm_peers.py", name, *map(str, size)) for name, size in sizes.items()},
        tuple(lines),
        packages={"ours": ("blackjax", "numpyro")},
        more=lambda results: {"largest_error_in_mcse": check_moments(results), "runs": results},
        kept=("seconds_by_samples", "seconds_by_chains"),
    )


def check_moments(results: Results) -> float:
    """The largest distance of a moment of ours from the exact one, in its standard errors.

    Raises:
        ValueError: it is over 4.
    """
    errors = [
        abs(run[name] - exact) / run[f"mcse_{name}"]
        for run in results.get("ours", ())
        for name, exact in (("mean", MEAN), ("variance", VARIANCE))
    ]
    if not max(errors, default=0.0) < MAX_ERRORS:
        raise ValueError(f"a moment is {max(errors):.1f} standard errors from the exact one")
    return max(errors, default=0.0)


COMPARISONS: Mapping[str, Callable[..., Comparison]] = {
    one.__name__: one
    for one in (
        estimators_throughput,
        evaluation,
        hmc_gradient,
        laplace,
        mclmc_steps,
        movielens_gradient,
        numpyro_nuts,
        rwm,
        scaling,
        sghmc,
        streaming,
        tables_throughput,
        train_throughput,
    )
}
