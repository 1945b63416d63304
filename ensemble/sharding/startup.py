"""What must be settled before JAX starts: memory, XLA's flags, devices, the compilation cache.

JAX reads XLA's flags when it starts its first backend, not when it is imported; so this may be
imported, and run, after everything else, as long as nothing has asked for a device.
"""

import contextlib
import ctypes
import functools
import glob
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import jax
from jax._src.xla_bridge import backends_are_initialized

from ensemble.config import trait
from ensemble.errors import InputError
from ensemble.notes import note


def process_started() -> float:
    """The `time.monotonic()` at which this process began, where the system tells; else now."""
    try:
        fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # Seconds since boot: `man proc`.
        return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.monotonic()


_XLA_FLAGS = {
    # Virtual devices wait for each other in collectives, 40 s by default, and then abort the
    # process: on a busy machine that is no deadlock.
    "--xla_cpu_collective_call_terminate_timeout_seconds": "600",
}


_BEFORE_0_11_2 = {
    # XLA:CPU hands single convolutions to its YNN library; its own Eigen path is the faster of the
    # two for their gradients, by 1.4 on one device with plain nn.Conv. XLA_FLAGS alone reaches it.
    # In 0.12 the library is the faster one: decision 0046.
    "--xla_cpu_experimental_ynn_fusion_type": "-LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION",
}


_GONE_IN_0_11_2 = "--xla_cpu_use_fusion_emitters"


# M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h: no block is too large to keep, and nothing is
# trimmed. With M_ARENA_MAX = 1 all threads share what is kept.
_MALLOC_PARAMETERS = {-3: 2**30, -1: 2**31 - 1}
_ONE_ARENA = {-8: 1}


_COMPUTES_WITH = {
    "jax_enable_x64": False,  # All is float32, and JAX refuses to carry both through a loop.
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
}
"""Settings of JAX that members and chains cannot move without."""


_is_forked = False


def _note_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or backends_are_initialized()


os.register_at_fork(after_in_child=_note_fork)


def check_not_forked() -> None:
    """Refuses a process that was forked after JAX had started: it has JAX's locks, not its threads.

    Raises:
        InputError: This is such a process, in which JAX would wait for ever.
    """
    if _is_forked:
        raise InputError(
            "this process was forked from one in which JAX had started, and JAX would hang here. "
            "Start workers by multiprocessing's 'spawn', or load the ensemble in the workers only"
        )


MAX_DEVICES = 1024
"""The most devices of a process. Each virtual CPU device takes threads, of which a system has only
so many."""


def configure(num_devices: int | None = None, method: str | None = None) -> None:
    """Settles the allocator, XLA's flags, the number of CPU devices and the compilation cache.

    Args:
        num_devices: of the configuration; None makes one CPU device per core, or as many as the
            user has set.
        method: of the configuration, where the process is to train; XLA's flags depend on it.

    Raises:
        InputError: there cannot be so many, or JAX has started already, with fewer devices; or it
            is to train, and JAX is set to what it cannot train with.
    """
    check_not_forked()
    if method is not None:
        _check_settings()
    configure_devices(num_devices, method)

    if num_devices is not None and num_devices > jax.local_device_count():
        raise InputError(
            f"config.num_devices={num_devices}, but JAX has {jax.local_device_count()} "
            f"{jax.default_backend()} device(s); lower it, or set it before JAX starts"
        )
    _set_compilation_cache()


def _check_settings() -> None:
    """Refuses settings of JAX by which programs cannot be traced."""
    for name, value in _COMPUTES_WITH.items():
        found = getattr(jax.config, name)
        found = getattr(found, "value", found)  # Of an enumeration.
        if found not in (value, "warn"):
            raise InputError(
                f"{name}={found!r} must be {value!r} where members are trained or chains sampled, "
                f"which is in float32: call jax.config.update({name!r}, {value!r}) first, or leave "
                f"{name.upper()} out of the environment"
            )


def configure_devices(num_devices: int | None = None, method: str | None = None) -> None:
    """Does what `configure` does, but JAX does not start: other processes may be met first."""
    number = _num_cpu_devices(num_devices)
    _keep_freed_memory(method is None or trait("method", method, "one_arena"))
    jaxlib = tuple(map(int, re.findall(r"\d+", importlib.metadata.version("jaxlib"))[:3]))
    is_older = jaxlib < (0, 11, 2)
    own = {} if method is None else dict(trait("method", method, "xla_flags"))
    flags = (_BEFORE_0_11_2 if is_older else {}) | _XLA_FLAGS | own
    _set_xla_flags({name: flags[name] for name in flags if is_older or name != _GONE_IN_0_11_2})

    try:
        jax.config.update(_NUM_DEVICES, number)
    except RuntimeError:  # JAX has started: a notebook, a test, a second run of one process.
        if method is not None and num_devices is None:
            _say_what_is_idle(number)


def _say_what_is_idle(num_cores: int) -> None:
    """Says that JAX has started with fewer CPU devices than it would have been given."""
    found = jax.local_device_count()
    if jax.default_backend() == "cpu" and found < num_cores:
        note(
            f"JAX was used before this run, with {found} CPU device{'s' * (found > 1)}, so "
            f"{num_cores - found} of {num_cores} cores may stay idle: begin the program with "
            f"jax.config.update('jax_num_cpu_devices', {num_cores}), or train first."
        )


_NUM_THREADS = "PJRT_NPROC"
"""Threads of XLA:CPU beside those of devices; the environment variable is read as JAX starts."""


@contextlib.contextmanager
def limited_threads(number: int | None) -> Iterator[None]:
    """Within it, JAX starts with at most so many threads that compute, and as many CPU devices.

    They belong to the process and stay as they are: if JAX has started already, with another
    number, a line says so. Compiling programs takes threads of its own.

    Args:
        number: of threads; None for as many as there would be.

    Raises:
        InputError: there cannot be so many.
    """
    if number is None:
        yield
        return
    if number not in range(1, MAX_DEVICES + 1):
        raise InputError(
            f"n_jobs={number} must be a whole number from 1 to {MAX_DEVICES}, or None for all cores"
        )
    devices, threads = jax.config.values[_NUM_DEVICES], os.environ.get(_NUM_THREADS)
    try:
        jax.config.update(_NUM_DEVICES, number)
    except RuntimeError:  # JAX has started.
        if devices != _NOT_CHOSEN:
            _note_that_threads_stay(number)
        yield
        return
    os.environ[_NUM_THREADS] = str(number)
    try:
        yield
    finally:
        del os.environ[_NUM_THREADS]  # Processes that this one starts have limits of their own.
        if threads is not None:
            os.environ[_NUM_THREADS] = threads
        with contextlib.suppress(RuntimeError):  # JAX has started.
            jax.config.update(_NUM_DEVICES, devices)


@functools.cache
def _note_that_threads_stay(number: int) -> None:
    note(
        f"n_jobs={number} changes nothing here: JAX was used before in this process, and keeps the "
        "threads that it has started with. Fit in a new process."
    )


_NUM_DEVICES = "jax_num_cpu_devices"
_FORCED_DEVICES = "--xla_force_host_platform_device_count"
_NOT_CHOSEN = -1  # JAX's, of jax_num_cpu_devices.


def _num_cpu_devices(num_devices: int | None) -> int:
    """The number of CPU devices of the configuration, else of the environment, else of cores.

    Raises:
        InputError: there cannot be so many.
    """
    chosen = jax.config.values[_NUM_DEVICES]
    found = re.findall(rf"{_FORCED_DEVICES}=?(\S*)", os.environ.get("XLA_FLAGS", ""))
    found += [str(chosen)] if chosen != _NOT_CHOSEN else []
    found = found if num_devices is None else [str(num_devices)]
    for value in found:
        if not value.isdecimal() or int(value) not in range(1, MAX_DEVICES + 1):
            raise InputError(
                f"there cannot be {value} devices; set config.num_devices, JAX_NUM_CPU_DEVICES or "
                f"{_FORCED_DEVICES} of XLA_FLAGS to a whole number from 1 to {MAX_DEVICES}"
            )
    return num_devices or (chosen if found else num_cores())


def num_cores() -> int:
    """The cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1


def _keep_freed_memory(one_arena: bool) -> None:
    """Tells glibc to keep the large blocks that are freed, for the next step to reuse.

    XLA:CPU takes and frees its temporaries each step. glibc hands blocks of some megabytes back
    to the kernel, which clears every page again when they are next taken: a third of a step.

    Args:
        one_arena: whether all threads share one arena, which takes less memory. Where a program
            has been compiled, the arena is in small pieces, and two devices that run small
            operations search it one after the other: steps take two to three times as long.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # Not glibc.
        return
    for parameter, value in (_MALLOC_PARAMETERS | (_ONE_ARENA if one_arena else {})).items():
        mallopt(parameter, value)


def _set_xla_flags(chosen: Mapping[str, str]) -> None:
    """Appends those flags that what will run knows and the user has not set.

    They make XLA's CPU compiler faster and do nothing for an accelerator. So none is set where one
    is here and JAX may take it: its plug-in reads XLA_FLAGS by a list of its own, libtpu reads
    LIBTPU_INIT_ARGS, and asking would take the device.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    wanted = [f"{name}={value}" for name, value in chosen.items() if name not in flags]
    if wanted and not (_plug_ins() and _has_accelerator()):
        os.environ["XLA_FLAGS"] = " ".join([flags, *known_flags(wanted)]).strip()


_ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg", "/dev/accel*", "/dev/vfio/[0-9]*")
"""Files of Linux for NVIDIA's and AMD's GPUs, those of Windows, and TPUs."""


def _has_accelerator() -> bool:
    """Whether this machine shows the process a device for which JAX has a plug-in."""
    return any(glob.glob(pattern) for pattern in _ACCELERATORS)


def _plug_ins() -> list[str]:
    """Plug-ins of accelerators that JAX may load, libtpu among them, with their versions."""
    if (jax.config.values["jax_platforms"] or "") == "cpu":
        return []
    found = [name for name in ("libtpu", "jax_plugins") if importlib.util.find_spec(name)]
    found.append(os.environ.get("PJRT_NAMES_AND_LIBRARY_PATHS", ""))
    for entry in importlib.metadata.entry_points(group="jax_plugins"):
        found.append(f"{entry.name} {entry.dist and entry.dist.version}")
    return sorted(filter(None, found))


def known_flags(flags: Sequence[str]) -> list[str]:
    """Finds out which of XLA's flags are known here, without a risk to this process.

    XLA aborts a process that names a flag which it does not know, and releases drop some. So a
    child process tries each, a third of a second; what is known is kept, for each jaxlib, beside
    the cache of compiled programs. Where JAX may load plug-ins, the child starts JAX with them,
    which takes some seconds.

    Args:
        flags: such as `--xla_cpu_enable_fast_math=false`.

    Returns:
        Those that are known, in their order.
    """
    plug_ins = _plug_ins()
    version = importlib.metadata.version("jaxlib")

    def is_known(flag: str) -> bool:
        asked = " ".join([version, *plug_ins, flag])
        path = cache_folder() / "known_xla_flags" / hashlib.sha256(asked.encode()).hexdigest()
        if path.exists():
            return True
        try:
            subprocess.run(
                [sys.executable, "-c", _START_JAX if plug_ins else _READ_FLAGS],
                env={**os.environ, "XLA_FLAGS": flag},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=60,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return False
        with contextlib.suppress(OSError):  # Who cannot write there asks each time.
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return True

    return [flag for flag in flags if is_known(flag)]


_READ_FLAGS = """
from jaxlib import _jax
_jax.CompileOptions().executable_build_options.debug_options
"""
_START_JAX = "import jax\njax.devices()"


def cache_folder() -> pathlib.Path:
    """The folder of this user's files that can be made again.

    Raises:
        InputError: that is in a home folder which is not known.
    """
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return pathlib.Path(home).expanduser() / "flax-ensembles"
    except RuntimeError:  # There is no such user, or this one has no home.
        raise InputError(
            f"XDG_CACHE_HOME={home} is below a home folder that is not known here; set it in the "
            "environment to a path in full"
        ) from None


def _set_compilation_cache() -> None:
    """Keeps compiled programs between processes, where the user has not chosen a place."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
