"""What this machine's devices do: every method, members, samplers and their peers, in 40 minutes.

    scripts/on_accelerator.sh --out=runs/on_device
    python benchmarks/on_device.py --out=runs/on_device.json --page=runs/on_device.md

Each stage is a process with a limit of its own, so none that fails or hangs stops the others:

- devices: members on one device and on all, which must predict the same;
- methods: digits of 8x8 by each method, whose NLL is that of another platform up to rounding;
- mnist: the how-to's CNN on noise of MNIST's size, in batches of 128, for ensembles of several
  sizes, and predictions of these; howto, torch: the same CNN by the how-to's own functions, one
  member a device, and by a loop of PyTorch over eight members;
- resnet20: eight ResNet-20s on noise of CIFAR-10's shape;
- hmc_mnist: gradients of the logistic regression on noise of MNIST's size, also BlackJAX's;
- walks: a billion steps of random-walk Metropolis, also BlackJAX's;
- nuts: NUTS on eight schools, four chains, also NumPyro's.

Three questions of time that XLA's estimates raise for accelerators have rows of their own.
`walks_8192` moves as many numbers at a time as suit a CPU's cache. Of the most members,
`train_bfloat16` has `config.dtype`.

The page says how much of a roofline each rate is. --only runs some stages again and keeps the other
rows of the file. --tiny takes small sizes, to see that it runs; on CPUs a stage for each core runs
at once.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import rates
import rooflines
from rows import Results, Row

HERE = pathlib.Path(__file__).resolve().parent
FEW = {"eval_every_epochs": 100, "checkpoint_every_epochs": 100}
MEMBERS = {"model": "cnn", "ensemble_size": 4, "num_epochs": 10, "batch_size": 64, **FEW}
LAPLACE = {"model": "cnn", "ensemble_size": 4, "batch_size": 64, "method": "laplace"}
CHAINS = {"model": "mlp", "mlp.widths": "16", "num_chains": 4}
DRAWS = {**CHAINS, "sampler.num_warmup": 50, "sampler.num_samples": 50}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "sgd": MEMBERS,
    "varied": {**MEMBERS, "method": "hyper_ensemble"},
    "snapshots": {**MEMBERS, "method": "snapshot_ensemble"},
    "swag": {**MEMBERS, "method": "swag"},
    "mc_dropout": {**MEMBERS, "method": "mc_dropout", "dropout": 0.2},
    "batch_ensemble": {**MEMBERS, "method": "batch_ensemble"},
    "cross_fitted": {**MEMBERS, "method": "kfold_bagging"},
    "laplace": LAPLACE,
    "laplace_kronecker_draws": {
        **LAPLACE,
        "laplace.structure": "kronecker",
        "num_draws": 20,
    },
    "hmc": {**DRAWS, "method": "hmc"},
    "mclmc": {**DRAWS, "method": "mclmc"},
    "sghmc": {
        **CHAINS,
        "method": "sghmc",
        "sgmcmc.num_burn_in": 200,
        "sgmcmc.num_samples": 50,
        "sgmcmc.steps_per_draw": 5,
    },
}
FEW_METHODS = ("sgd", "hmc")
"""The methods of --tiny."""
SMALL = {"model": "mlp", "mlp.widths": "16", "num_epochs": 1}
"""What members of digits have in --tiny: a CNN takes some seconds to compile, and mnist has it."""
SIZES = (1, 8, 64)
TINY_SIZES = (1, 2)
NUM_CHAINS = 8
TORCH_MEMBERS = 8
RESNET = {"model": "resnet20", "ensemble_size": 8, "batch_size": 128, "shuffle": "independent"}
SCHOOLS = {
    "y": np.array([28.0, 8, -3, 7, -1, 1, 18, 12]),
    "sigma": np.array([15.0, 10, 16, 11, 9, 11, 10, 18]),
}
_NUM_ROUNDS = 5


def digits(tiny: bool) -> dict[str, np.ndarray]:
    """scikit-learn's, or some of them."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = (found.images[..., None] * 15).astype(np.uint8)
    number = 200 if tiny else len(images)
    return {"inputs": images[:number], "labels": found.target[:number]}


def noise(number: int, *shape: int) -> dict[str, np.ndarray]:
    """Images of noise, and labels."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (number, *shape), dtype=np.uint8)
    return {"inputs": images, "labels": rng.integers(0, 10, number)}


def run(config: Mapping[str, Any], data: Mapping[str, np.ndarray], workdir: str) -> dict[str, Any]:
    """Trains, loads and predicts; what it found, or the error."""
    import ensemble

    try:
        report = ensemble.train(dict(config), dict(data), workdir, show_progress=False).report
        ensemble.load(workdir)(data["inputs"][:64])
    except Exception as error:  # A row says so, and the others go on.
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    return {"nll": report["metrics"]["test"]["nll"]["value"], **report["timing"]}


def predictions(
    folder: pathlib.Path, images: np.ndarray, sizes: Sequence[int], num_rounds: int
) -> dict[str, Any]:
    """Images a second by size, in alternating rounds, and the share of 1/M that they are."""
    import ensemble

    ensembles = {size: ensemble.load(folder / f"train_{size}") for size in sizes}
    rates: dict[int, list[float]] = {size: [] for size in sizes}
    for k in range(1 + num_rounds):
        for size, one in ensembles.items():
            began = time.perf_counter()
            one(images)
            if k:  # The first one compiles.
                rates[size].append(len(images) / (time.perf_counter() - began))
    return {
        f"M={size}": {
            "images_per_second": statistics.median(each),
            "share_of_one_over_M": statistics.median(
                [size * ours / one for ours, one in zip(each, rates[1], strict=True)]
            ),
        }
        for size, each in rates.items()
    }


# Stages of this program: each yields its rows.


def devices(folder: pathlib.Path, tiny: bool) -> Iterator[Row]:
    """Members on one device and on all; few steps, so that rounding has not grown."""
    import ensemble

    config = {**MEMBERS, "num_epochs": 1, "num_devices": 1, **(SMALL if tiny else {})}
    data = digits(tiny)
    found = []
    for num_devices in (None, 1):  # JAX starts with all.
        config["num_devices"] = num_devices
        predictor = ensemble.train(config, data, show_progress=False).predictor
        found.append(predictor(data["inputs"][:200]).member_log_probs)
    import jax

    difference = float(np.max(np.abs(np.exp(found[0]) - np.exp(found[1]))))
    row: Row = {"case": "devices", "num_devices": jax.device_count()}
    row |= {"largest_difference_of_probabilities": difference}
    if difference > 0.01:
        row["error"] = f"probabilities differ by {difference:.3g}, which must be at most 0.01"
    yield row


def methods(folder: pathlib.Path, tiny: bool) -> Iterator[Row]:
    """Digits by each method."""
    for name, config in METHODS.items():
        if tiny and name not in FEW_METHODS:
            continue
        config = dict(config)
        if tiny:
            config |= SMALL if "num_epochs" in config else {}
            config |= {key: 20 for key in config if key.startswith("sampler.")}
        if config.get("method") == "laplace":
            config["init_from"] = str(folder / "sgd")
        yield {"case": name, **run(config, digits(tiny), str(folder / name))}


def mnist(folder: pathlib.Path, tiny: bool) -> Iterator[Row]:
    """The how-to's CNN in several sizes, and their predictions."""
    sizes = TINY_SIZES if tiny else SIZES
    data = noise(100 if tiny else 60_000, 28, 28, 1)
    for size in sizes:
        epochs = {"num_epochs": 3 if size < 64 else 2, "learning_rate": 0.01}
        batch = {"batch_size": 128}
        if tiny:
            epochs = {**epochs, "num_epochs": 1}
            batch = {"batch_size": 16}
        config = {**MEMBERS, **epochs, **batch, "ensemble_size": size}
        yield {"case": f"train_{size}", **run(config, data, str(folder / f"train_{size}"))}
    variants: Mapping[str, Mapping[str, Any]]
    variants = {"bfloat16": {"dtype": "bfloat16"}}
    for name, keys in variants.items():  # Of the most members.
        workdir = str(folder / f"train_{name}")
        yield {"case": f"train_{name}", **run({**config, **keys}, data, workdir)}
    images = data["inputs"][:20_000]
    rounds = 1 if tiny else _NUM_ROUNDS
    yield {"case": "predictions", **predictions(folder, images, sizes, rounds)}


def resnet20(folder: pathlib.Path, tiny: bool) -> Iterator[Row]:
    """ResNet-20s with group normalisation, as configs/cifar10_ensemble.py has them."""
    config = {**RESNET, **FEW, "num_epochs": 2, "learning_rate": 0.01}
    if tiny:
        config |= {"ensemble_size": 1, "batch_size": 16, "num_epochs": 1}
    data = noise(40, 16, 16, 3) if tiny else noise(50_000, 32, 32, 3)
    yield {"case": "resnet20", **run(config, data, str(folder / "resnet20"))}


def _eight_schools(y: np.ndarray, sigma: np.ndarray) -> None:
    """Rubin's, without centring."""
    import numpyro
    from numpyro import distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", len(y)):
        raw = numpyro.sample("raw", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu + tau * raw, sigma), obs=y)


def nuts(folder: pathlib.Path, tiny: bool) -> Iterator[Row]:
    """Four chains of `ensemble.sample`, then of NumPyro, on one device."""
    from ensemble.sharding import startup

    startup.configure(1, "nuts")
    import numpyro_nuts

    for case, sample in {"nuts": numpyro_nuts.ours, "nuts_numpyro": numpyro_nuts.peer}.items():
        found = sample(_eight_schools, SCHOOLS, 4, 1, 0, 50 if tiny else numpyro_nuts.NUM_DRAWS)
        yield {"case": case, **found, "rate": found["ess_min"] / found["sampling_seconds"]}


STAGES: Mapping[str, Callable[[pathlib.Path, bool], Iterator[Row]]] = {
    "devices": devices,
    "methods": methods,
    "mnist": mnist,
    "resnet20": resnet20,
    "nuts": nuts,
}


def commands(
    folder: pathlib.Path, tiny: bool, platform: str, num_devices: int
) -> Iterator[tuple[str, Sequence[str], float]]:
    """Stages in their order: case, command and seconds at most. A worker prints one row of JSON."""

    def own(stage: str, seconds: float) -> tuple[str, Sequence[str], float]:
        command = [__file__, f"--stage={stage}", f"--folder={folder}", *["--tiny"] * tiny]
        return stage, command, seconds

    def worker(case: str, seconds: float, *command: object) -> tuple[str, Sequence[str], float]:
        script, *arguments = map(str, command)
        return case, [str(HERE / script), *arguments], seconds

    yield own("devices", 180)
    yield own("mnist", 420)
    yield worker("howto", 120, "train_throughput_howto.py", "train", num_devices, *[8] * tiny)
    if platform != "tpu":  # For which PyTorch needs a package of its own.
        device = "cuda" if platform == "gpu" else "cpu"
        members = 1 if tiny else TORCH_MEMBERS
        yield worker("torch", 180, "torch_peers.py", "cnn", "float32", members, device)
    size = 1_000 if tiny else 60_000
    chains = 2 if tiny else NUM_CHAINS
    for case, who in {"hmc_mnist": "ours", "hmc_mnist_blackjax": "peer"}.items():
        yield worker(case, 180, "hmc_gradient.py", who, chains, 1, size)
    walkers, steps = (1_000, 100) if tiny else (1_000_000, 1_000)
    walks = {"walks": "ours", "walks_8192": "ours_8192", "walks_blackjax": "blackjax"}
    for case, who in walks.items():
        yield worker(case, 150, "rwm_peers.py", who, walkers, steps)
    yield own("nuts", 240)
    yield own("resnet20", 300)
    yield own("methods", 720)


def follow(
    case: str,
    command: Sequence[str],
    seconds: float,
    add: Callable[[Row], None],
    tiny: bool = False,
) -> str | None:
    """Runs a stage and adds its rows as they come; what was wrong with it at last."""
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if tiny:
        env[rates.MOST_SECONDS] = "0.1"
    began = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=errors, text=True, env=env
        ) as process,
    ):
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError):  # Others talk there, too.
                row = json.loads(line)
                if isinstance(row, dict):
                    add({"case": case, **row})
        status = process.wait()
        late = time.monotonic() - began >= seconds
        timer.cancel()
        timer.join()
        if status == 0:
            return None
        errors.seek(0)
        last = (errors.read().strip().splitlines() or ["nothing"])[-1][:300]
    return f"it took more than {seconds:.0f} s" if late else f"exit status {status}: {last}"


def rate_of(row: Row, num_devices: int) -> tuple[float, str, rooflines.Work | None] | None:
    """A row's rate, its unit, and the work of a unit where that was counted."""
    case = row["case"]
    if case.startswith("train_") or case == "resnet20":
        work = rooflines.RESNET20 if case == "resnet20" else rooflines.CNN
        return row["member_examples_per_second"], "member-examples", work
    if case in ("howto", "torch"):
        return row["rate"], "member-examples", rooflines.CNN
    if case.startswith("hmc_mnist"):
        work = rooflines.hmc_gradient(row["num_chains"], row["num_images"])
        return row["rate"], "gradients", work
    if case.startswith("walks"):
        return 1e6 * row["millions"] / row["seconds"], "steps", None
    return (row["rate"], "effective draws", None) if case.startswith("nuts") else None


def write_page(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file's rows as Markdown."""
    kind = content["device_kind"]
    number = content["num_devices"]
    peak = rooflines.PEAKS.get(kind)
    limits = f"The peaks of `{kind}` are not known, so no share of a roofline is."
    if peak:
        limits = (
            f"One can do {peak.flops / 1e12:.0f} TFLOP/s on float32 as JAX multiplies it by "
            f"default, and its memory passes on {peak.bandwidth / 1e12:.2f} TB/s ({peak.source})."
        )
    lines = [
        f"# {number} x {kind}",
        "",
        f"{content['machine']}; {content['devices']}. `{content['command']}` wrote this page.",
        f"{limits} FLOP and bytes are counted by hand, in `benchmarks/rooflines.py`.",
        "",
        "| case | rate a second | GFLOP/s | of the FLOP/s | of the bandwidth | of the roofline |",
        "|---|---|---|---|---|---|",
    ]
    others = []
    for row in content["rows"]:
        found = None if "error" in row or "left_out" in row else rate_of(row, number)
        if found is None:
            others.append(row)
            continue
        rate, unit, work = found
        cells = [f"{rate:,.4g} {unit}"]
        shares = rooflines.share(rate, work, kind, number) if work else {}
        flops = shares.get("flop_per_second")
        cells.append("" if flops is None else f"{float(flops) / 1e9:,.4g}")
        for name in ("of_peak_flops", "of_bandwidth", "of_roofline"):
            cells.append(f"{100 * float(shares[name]):.2g}%" if name in shares else "")
        lines.append(f"| {row['case']} | {' | '.join(cells)} |")
    lines += ["", "| case | found |", "|---|---|"]
    skip = {"case", "commit", "date"}
    for row in others:
        words = [f"{name} {_shown(one)}" for name, one in row.items() if name not in skip]
        lines.append(f"| {row['case']} | {'; '.join(words)} |".replace("\n", " "))
    path.write_text("\n".join(lines) + "\n")


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_ASK = "import jax, json; d = jax.devices(); print(json.dumps([d[0].platform, d[0].device_kind, "
_ASK += "len(d), f'{d}, JAX {jax.__version__}'[:300]]))"


def main() -> int:
    """Runs the stages and writes rows, and the page; the exit status is 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="JSON file to write")
    parser.add_argument("--page", type=pathlib.Path, help="Markdown file to write")
    parser.add_argument("--minutes", type=float, default=40, help="after which no stage goes on")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="stages to run; others are kept")
    parser.add_argument("--stage", choices=STAGES, help="of a process that this program starts")
    parser.add_argument("--folder", type=pathlib.Path, help="of the runs of a stage")
    args = parser.parse_args()
    if args.stage:
        for row in STAGES[args.stage](args.folder, args.tiny):
            print(json.dumps(row), flush=True)
        return 0
    if args.out is None:
        parser.error("--out=FILE.json is missing")
    # In a process of its own: JAX holds the devices that it has started.
    asked = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True)
    if asked.returncode:
        print(f"on_device.py: JAX finds no device: {asked.stderr[-300:]}", file=sys.stderr)
        return 2
    platform, kind, number, described = json.loads(asked.stdout.splitlines()[-1])
    head = {"device_kind": kind, "num_devices": number, "devices": described}
    name = __doc__.splitlines()[0]
    command = f"python benchmarks/on_device.py --out={args.out}{' --tiny' * args.tiny}"
    results = Results(args.out, benchmark=name, **head, command=command)
    end = time.monotonic() + 60 * args.minutes
    failed = []
    # Several at once measure nothing, and accelerators are one process's.
    at_once = (os.cpu_count() or 1) if args.tiny and platform == "cpu" else 1

    def add(row: Row) -> None:
        found = {name: value for name, value in row.items() if name != "case"}
        print(results.add({"case": row["case"]}, found), flush=True)
        if "error" in row:
            failed.append(row["case"])

    def measure(case: str, script: Sequence[str], seconds: float) -> None:
        left = end - time.monotonic()
        if left < 1:
            add({"case": case, "left_out": f"{args.minutes:g} minutes were over"})
            return
        wrong = follow(case, script, min(at_once * seconds, left), add, args.tiny)
        if wrong and "No module named" in wrong:
            add({"case": case, "left_out": wrong.rpartition(": ")[2]})
        elif wrong:
            add({"case": case, "error": wrong})

    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(at_once) as pool,
    ):
        stages = list(commands(pathlib.Path(folder), args.tiny, platform, number))
        names = [name for name, *_ in stages]
        if unknown := set(args.only or ()) - set(names):
            parser.error(f"--only={', '.join(unknown)} is no stage; there are {', '.join(names)}")
        stages = [one for one in stages if one[0] in (args.only or names)]
        for done in [pool.submit(measure, *stage) for stage in stages]:
            done.result()
    if args.page:
        write_page(args.page, json.loads(args.out.read_text()))
    if failed:
        print(f"on_device.py: failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
