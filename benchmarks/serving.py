"""Latency of calls of changing size, in a process and over HTTP, beside ONNX Runtime.

    PYTHONPATH=. python benchmarks/serving.py --peer=ENV/bin/python \\
        --out=benchmarks/results/serving.json

Eight networks of 20 numbers are trained, exported, and converted by jax2onnx. In alternating rounds
fresh processes make 10,000 calls of 1 to 64 rows with each contestant, on one thread and on eight,
and compare every answer with the predictor's. The exported file without `read_model.py` compiles
anew for each size: it is measured once, at the end, beside the first round. In each round
`examples/serve.py` answers 16 clients over uvicorn, with the exported file and with ONNX Runtime in
its place. `--peer` is an interpreter that has all requirements, and jax2onnx>=0.17.1, onnx,
onnxruntime and uvicorn.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import itertools
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import side_by_side

NUM_INPUTS = 20
MAX_ROWS = 64
NAMES = {
    "loader": "read_model.py",
    "predictor": "ensemble.load",
    "file": "the file alone",
    "onnx": "ONNX Runtime",
}
THREADS = {1: "one thread", 8: "eight threads"}
SERVED_ROWS = 8
CLIENTS = 16


def main() -> None:
    """Measures all rounds; prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", required=True, help="interpreter with onnxruntime and uvicorn")
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        task, folder, *more = options.worker
        print(json.dumps(WORKERS[task](pathlib.Path(folder), *more)))
        return
    versions = side_by_side.versions_of(options.peer, ["jax", "jax2onnx", "onnxruntime", "uvicorn"])
    with tempfile.TemporaryDirectory() as folder:
        for task in ("train", "convert"):
            work(options, task, folder)
        calls: list[dict[str, Any]] = []
        requests: list[dict[str, Any]] = []
        rounds = [(k, ("loader", "predictor", "onnx")) for k in range(options.rounds)]
        for k, names in [*rounds, (0, ("file",))]:
            for threads, name in itertools.product(THREADS, names):
                found = work(options, "call", folder, name, threads, options.calls, k)
                calls.append({"name": name, "threads": threads, "round": k, **found})
            for name in [one for one in ("loader", "onnx") if one in names]:
                found = work(options, "serve", folder, name, options.requests, k)
                requests.append({"name": name, "round": k, **found})
            side_by_side.report(  # After each round: a run that is ended leaves what it has.
                [*rows_of_calls(calls), *rows_of_requests(requests)],
                options.out,
                arguments="--peer=ENV/bin/python",
                versions=versions,
                more={"calls": calls, "requests": requests},
            )


def work(options: argparse.Namespace, *task: Any) -> dict[str, Any]:
    """Does one thing in a fresh process of the peer's interpreter."""
    command = [options.peer, "serving.py", f"--peer={options.peer}", "--worker", *map(str, task)]
    found = side_by_side.run_worker(command)
    print(*task[2:], {k: round(v, 3) for k, v in found.items()}, file=sys.stderr, flush=True)
    return found


def rows_of_calls(measured: list[dict[str, Any]]) -> Any:
    """The rows on calls in a process."""
    for threads, setting in THREADS.items():
        of = {
            name: [one for one in measured if (one["name"], one["threads"]) == (name, threads)]
            for name in NAMES
        }
        for measure, unit, key in (
            ("ready", "s", "ready_seconds"),
            ("p50 of calls", "ms", "p50_ms"),
            ("p99 of calls", "ms", "p99_ms"),
            ("longest call", "ms", "p100_ms"),
            ("calls", "calls/s", "rate"),
            ("memory", "MiB", "mib"),
        ):
            ours = [one[key] for one in of["loader"]]
            for name in ("file", "predictor", "onnx"):
                peer = [one[key] for one in of[name]]
                if not peer:
                    continue
                yield side_by_side.compare(
                    measure,
                    setting,
                    unit,
                    ours[: len(peer)],
                    peer,
                    NAMES[name],
                    higher_is_better=key == "rate",
                )
        for measure, unit, key in (
            ("growth in the last nine tenths of the calls", "MiB", "grown_mib"),
            ("programs compiled in calls", "programs", "compiled"),
        ):
            for name in ("loader", "predictor"):
                about = (measure, f"{NAMES[name]}, {setting}", unit)
                yield side_by_side.compare(*about, [float(one[key]) for one in of[name]])


def rows_of_requests(served: list[dict[str, Any]]) -> Any:
    """The rows on requests to a server."""
    ours, peer = ([one for one in served if one["name"] == name] for name in ("loader", "onnx"))
    setting = f"{CLIENTS} clients, 1 to {SERVED_ROWS} rows each"
    for measure, unit, key in (
        ("p50 of requests", "ms", "p50_ms"),
        ("p99 of requests", "ms", "p99_ms"),
        ("requests", "requests/s", "rate"),
    ):
        yield side_by_side.compare(
            measure,
            setting,
            unit,
            [one[key] for one in ours],
            [one[key] for one in peer],
            NAMES["onnx"],
            higher_is_better=key == "rate",
        )


def train(folder: pathlib.Path) -> dict[str, Any]:
    """Trains the ensemble and writes it, its export, and some inputs with their probabilities."""
    import ensemble
    from ensemble.export import export

    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(2_000, NUM_INPUTS)).astype(np.float32)
    labels = (inputs[:, :10].sum(1) > 0).astype(int) + (inputs[:, 10] > 1)
    config = {"model": "mlp", "ensemble_size": 8, "num_epochs": 1, "num_devices": 1}
    data = {"inputs": inputs, "labels": labels}
    run = ensemble.train(config, data, workdir=str(folder / "run"), show_progress=False)
    (folder / "model.bin").write_bytes(export(run.predictor))
    np.savez(folder / "expected.npz", inputs=inputs, probs=run.predictor(inputs).probs)
    return {"bytes": (folder / "model.bin").stat().st_size}


def convert(folder: pathlib.Path) -> dict[str, Any]:
    """Writes the same function as a file of ONNX."""
    import jax2onnx
    import onnx

    import ensemble

    predictor = ensemble.load(folder / "run")
    found = jax2onnx.to_onnx(predictor.function, [("batch", NUM_INPUTS)], model_name="ensemble")
    onnx.save(found, folder / "model.bin.onnx")
    return {"bytes": (folder / "model.bin.onnx").stat().st_size}


def make(name: str, folder: pathlib.Path) -> Any:
    """A contestant, ready to serve: from inputs to probabilities."""
    path = folder / "model.bin"
    if name == "onnx":
        import serving_onnx

        session = serving_onnx.Model(path)
        return lambda inputs: session(inputs)["probs"]
    if name == "loader":
        from ensemble.read_model import Model

        model = Model(path).compile()
        return lambda inputs: model(inputs)["probs"]
    if name == "predictor":
        import ensemble

        predictor = ensemble.load(folder / "run")
        for size in (1 << k for k in range(7)):  # Up to 64.
            predictor(np.zeros((size, NUM_INPUTS), np.float32))
        return lambda inputs: predictor(inputs).probs
    import jax.export

    call = jax.jit(jax.export.deserialize(bytearray(path.read_bytes())).call)
    return lambda inputs: np.asarray(call(inputs)["probs"])


def call(folder: pathlib.Path, name: str, threads: str, calls: str, seed: str) -> dict[str, Any]:
    """Makes calls of changing size and times them."""
    compiled = []
    if name != "onnx":
        import jax

        jax.monitoring.register_event_duration_secs_listener(
            lambda event, *_, **__: (
                compiled.append(event) if event.endswith("backend_compile_duration") else None
            )
        )
    with np.load(folder / "expected.npz") as stored:
        inputs = stored["inputs"]
        expected = stored["probs"]
    start = time.perf_counter()
    predict = make(name, folder)
    ready = time.perf_counter() - start
    compiled.clear()
    rng = np.random.default_rng(int(seed))
    number = int(calls)
    sizes = rng.integers(1, MAX_ROWS + 1, number)
    starts = rng.integers(0, len(inputs) - MAX_ROWS, number)
    seconds = np.zeros(number)
    memory = np.zeros(number)

    def make_calls(which: range) -> float:
        furthest = 0.0
        for k in which:
            here = slice(starts[k], starts[k] + sizes[k])
            begun = time.perf_counter()
            probs = predict(inputs[here])
            seconds[k] = time.perf_counter() - begun
            furthest = max(furthest, float(np.abs(probs - expected[here]).max()))
            if k % 100 == 0:
                memory[k] = resident_mib()
        return furthest

    start = time.perf_counter()
    parts = [range(k, number, int(threads)) for k in range(int(threads))]
    with concurrent.futures.ThreadPoolExecutor(int(threads)) as pool:
        furthest = max(pool.map(make_calls, parts))
    elapsed = time.perf_counter() - start
    assert furthest < 1e-4, f"{name} says something else: {furthest}"
    memory = memory[memory > 0]
    return {
        "ready_seconds": ready,
        **percentiles(seconds),
        "rate": number / elapsed,
        "mib": resident_mib(),
        "grown_mib": memory[-1] - memory[len(memory) // 10],
        "compiled": len(compiled),
        "furthest": furthest,
    }


def percentiles(seconds: np.ndarray) -> dict[str, float]:
    """The percentiles of latencies."""
    return {f"p{q}_ms": float(np.percentile(seconds, q)) * 1e3 for q in (50, 90, 99, 100)}


def resident_mib() -> float:
    """Memory of this process."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def serve(folder: pathlib.Path, name: str, requests: str, seed: str) -> dict[str, Any]:
    """Starts the server of `examples`, and times requests of several clients."""
    place = folder / f"served_{name}"
    place.mkdir(exist_ok=True)
    reader = "benchmarks/serving_onnx.py" if name == "onnx" else "ensemble/read_model.py"
    shutil.copy(side_by_side.ROOT / reader, place / "read_model.py")
    shutil.copy(side_by_side.ROOT / "examples/serve.py", place)
    for file in folder.glob("model.bin*"):
        shutil.copy(file, place)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "serve:app", f"--port={port}", "--no-access-log"]
    server = subprocess.Popen([*command, "--log-level=error"], cwd=place)
    try:
        wait_for(port)
        return asyncio.run(ask(port, folder, int(requests), int(seed)))
    finally:
        server.terminate()
        server.wait()


def wait_for(port: int) -> None:
    """Returns when the server listens."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    raise TimeoutError("the server does not listen")


async def ask(port: int, folder: pathlib.Path, number: int, seed: int) -> dict[str, Any]:
    """Sends requests on connections that are kept, and compares the answers."""
    with np.load(folder / "expected.npz") as stored:
        inputs = stored["inputs"]
        expected = stored["probs"]
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, SERVED_ROWS + 1, number)
    starts = rng.integers(0, len(inputs) - SERVED_ROWS, number)
    bodies = [
        json.dumps(inputs[a : a + n].tolist()).encode() for a, n in zip(starts, sizes, strict=True)
    ]
    seconds = np.zeros(number)

    async def client(which: range) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for k in which:
            begun = time.perf_counter()
            head = f"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: {len(bodies[k])}\r\n\r\n"
            writer.write(head.encode() + bodies[k])
            answered = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in answered.partition(b"\r\n")[0], answered
            content = await body_of(reader, answered.lower())
            seconds[k] = time.perf_counter() - begun
            probs = np.asarray(json.loads(content)["probs"])
            assert np.abs(probs - expected[starts[k] : starts[k] + sizes[k]]).max() < 1e-4
        writer.close()

    async def all_clients(first: int, last: int) -> float:
        start = time.perf_counter()
        await asyncio.gather(*[client(range(first + k, last, CLIENTS)) for k in range(CLIENTS)])
        return time.perf_counter() - start

    await all_clients(0, number // 10)  # To warm up.
    elapsed = await all_clients(number // 10, number)
    timed = seconds[number // 10 :]
    return {**percentiles(timed), "rate": len(timed) / elapsed}


async def body_of(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """The body of a response, in one piece or in chunks."""
    if b"content-length:" in head:
        length = head.split(b"content-length:")[1].partition(b"\r\n")[0]
        return await reader.readexactly(int(length))
    content = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        content += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return content


WORKERS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "train": train,
    "convert": convert,
    "call": call,
    "serve": serve,
}


if __name__ == "__main__":
    main()
