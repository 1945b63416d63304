"""Test set-up: eight virtual CPU devices, whatever the machine, and a small task to learn."""

import atexit
import contextlib
import fcntl
import gc
import os
import pathlib
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence

# What a shell starts in the background ignores Ctrl-C, and so would the programs tested here.
signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # Until all is imported and collected: it would look at all of it again and again.

# Programs run for milliseconds here, and compile for seconds: compile them lightly, and once.
os.environ["JAX_PLATFORMS"] = "cpu"
XLA_FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",  # Each part of a program costs.
    "--xla_cpu_collective_call_terminate_timeout_seconds=600",  # Two cores may be busy.
)
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # They cost a tenth.
ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_MAPS = 30_000  # Linux allows 65,530.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "xla"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # Of processes that tests start too.
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

from typing import ClassVar

import fsspec
import jax
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from run_parts import workdir_of
from small_runs import leave_pictures_blank, make_blobs, small_config
from written_runs import runs

import ensemble
from scripts.launch_local import reserve_port

__all__ = ["make_blobs", "runs", "small_config"]

os.environ["XLA_FLAGS"] = " ".join(XLA_FLAGS)  # Read when JAX starts, below.
jax.config.update("jax_num_cpu_devices", 8)
assert jax.local_device_count() == 8  # Starts JAX: no run may settle for fewer.


_RESERVED = contextlib.ExitStack()
atexit.register(_RESERVED.close)


def free_port() -> int:
    """A port that nobody is given by chance while the tests run."""
    return _RESERVED.enter_context(reserve_port()).getsockname()[1]


@contextlib.contextmanager
def started(command: Sequence[str], **options) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive its block, also where a wait for it fails."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def run_all(commands, variables, seconds=300, **options):
    """Runs commands side by side, each with its variables; returns exit statuses and outputs."""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                started(command, stdout=subprocess.PIPE, env={**os.environ, **own}, **options)
            )
            for command, own in zip(commands, variables, strict=True)
        ]
        outputs = [process.communicate(timeout=seconds)[0] for process in processes]
    return [process.returncode for process in processes], outputs


@pytest.fixture(scope="module", autouse=True)
def pictures(request):
    """Draws pictures only where they are tested; programs in processes of their own draw theirs."""
    with pytest.MonkeyPatch.context() as patch:
        if not re.search("plot|charts|page|strangers|tensorboard", request.module.__name__):
            leave_pictures_blank(patch.setattr)
        yield


@pytest.fixture(scope="session")
def blobs() -> dict[str, np.ndarray]:
    return make_blobs()


@pytest.fixture(scope="session")
def blobs_run(blobs, tmp_path_factory):
    """The workdir of a finished run of `small_config()` on the blobs; only to be read."""
    with built_once(
        tmp_path_factory,
        "blobs_run",
        lambda path: ensemble.train(small_config(), data=blobs, workdir=str(path)),
    ) as path:
        yield path


@contextlib.contextmanager
def built_once(
    tmp_path_factory: pytest.TempPathFactory, name: str, build: Callable[[pathlib.Path], object]
) -> Iterator[pathlib.Path]:
    """A folder that one process of the tests builds for all; at the end it must be as it was.

    Args:
        tmp_path_factory: pytest's.
        name: of the folder.
        build: called with a path that is not there, which it makes.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # Which all workers of a run have in common.
    path = base / "shared" / name
    path.parent.mkdir(exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            build(path.with_suffix(".unfinished"))
            path.with_suffix(".unfinished").rename(path)
    before = files_of(path)
    yield path
    assert files_of(path) == before, f"a test wrote to {path}, which is only to be read: copy it"


def files_of(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of what a workdir holds, but for its lock."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MB, for `fill`."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root: a full disk was NOT tested")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: pathlib.Path, free: int = 0) -> pathlib.Path:
    """Fills a small disk but for some bytes; returns the file that takes the place."""
    path = disk / "ballast"
    with open(path, "wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while missing := shutil.disk_usage(disk).free - free:  # A run may write meanwhile.
            if missing < 0 or not ballast.write(b"x" * missing):
                break
    return path


class Bucket(MemoryFileSystem):
    """An object store in memory, behind the same `gs://` and epath as the real one."""

    protocol = ("gcs", "gs")
    store: ClassVar[dict] = {}

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).replace("gs://", "memory://"))


@pytest.fixture
def work(tmp_path):
    """The workdir of a run that has not begun."""
    return workdir_of(tmp_path)


@pytest.fixture
def bucket(monkeypatch):
    for prefix in Bucket.protocol:
        fsspec.register_implementation(prefix, Bucket, clobber=True)
    Bucket.store.clear()
    yield workdir_of("gs://bucket/run")
    for prefix in Bucket.protocol:
        fsspec.register_implementation(prefix, "gcsfs.GCSFileSystem", clobber=True)


@pytest.fixture(autouse=True, scope="module")
def few_memory_maps():
    """Every compiled program keeps some memory maps; a process that runs out of them crashes."""
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > MAX_MAPS:
        jax.clear_caches()
        gc.collect()


FIRST = (
    "test_runs.py",
    "test_kills.py",
    "test_sampling.py",
    # These wait, for the most part.
    "test_launch_local.py",
    "test_on_accelerator.py",
    "test_compare_methods.py",
    "test_commands.py",
    "test_ahead_of_time.py",
    "test_object_store.py",
)
"""Files whose tests take long together: begun late, one process would wait for them alone."""


def pytest_collection_finish() -> None:
    """Spares the garbage collector what is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # Before pytest-xdist reads the groups.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs what takes longest first: a file in one process, or a row of the table of runs."""
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
    for item in items:
        row = item.callspec.params.get("trained", "") if hasattr(item, "callspec") else ""
        item.add_marker(pytest.mark.xdist_group(f"{item.path.stem} {row}".strip()))
