"""What must be settled before JAX starts: memory, XLA's flags, devices, the compilation cache.

JAX reads XLA's flags when it starts its first backend, not when it is imported; so this may be
imported, and run, after everything else, as long as nothing has asked for a device.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
from contextlib import suppress
from functools import cache

import jax
from jax._src.xla_bridge import backends_are_initialized

from ensemble.config import trait
from ensemble.errors import InputError

_NEWEST_TRIED = (0, 12, 0, 1)
"""Version of JAX: a newer one may lack a flag, and XLA aborts a process that names such."""
# Virtual devices wait for each other in collectives, 40 s by default, and then abort the process:
# on a busy machine that is no deadlock.
_XLA_FLAGS = {"--xla_cpu_collective_call_terminate_timeout_seconds": "600"}
_CHANGED = (0, 11, 2)
"""Version of JAX from which on single convolutions are faster by XLA's YNN library than by its
Eigen path (decision 0046), and fused operations are compiled in the newer way alone."""
_BEFORE = {"--xla_cpu_experimental_ynn_fusion_type": "-LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"}
_GONE = "--xla_cpu_use_fusion_emitters"
# M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h: no block is too large to keep, and nothing is
# trimmed. With M_ARENA_MAX = 1 all threads share what is kept.
_MALLOC_PARAMETERS = {-3: 2**30, -1: 2**31 - 1}
_ONE_ARENA = {-8: 1}


_forks: list[bool] = []
"""True for each fork that has made this process, if JAX had started before it."""
os.register_at_fork(after_in_child=lambda: _forks.append(backends_are_initialized()))


def check_not_forked() -> None:
    """Refuses a process that was forked after JAX had started: it has JAX's locks, not its threads.

    Raises:
        InputError: This is such a process, in which JAX would wait for ever.
    """
    if any(_forks):
        raise InputError(
            "this process was forked from one in which JAX had started, and JAX would hang here. "
            "Start workers by multiprocessing's 'spawn', or load the ensemble in the workers only"
        )


_NUM_DEVICES = "jax_num_cpu_devices"
_FORCED_DEVICES = "--xla_force_host_platform_device_count"
_NUM_THREADS = "PJRT_NPROC"
"""Threads of XLA:CPU beside those of devices; the environment variable is read as JAX starts."""
_NOT_CHOSEN = -1  # JAX's, of jax_num_cpu_devices.


def configure(num_devices: int | None = None, method: str | None = None) -> None:
    """Settles the allocator, XLA's flags, the number of CPU devices and the compilation cache.

    Args:
        num_devices: Devices of the configuration; None makes one CPU device per core, or as many as
            the user has set.
        method: Method of the configuration, where the process is to train; XLA's flags depend on
            it.

    Raises:
        InputError: JAX has started already, with fewer devices; or it is to train, and JAX is set
            to what it cannot train with.
    """
    check_not_forked()
    if method is not None and jax.config.jax_enable_x64:
        raise InputError(
            "jax_enable_x64=True must be False where members are trained or chains sampled, which "
            "is in float32: set jax.config.update('jax_enable_x64', False), or leave "
            "JAX_ENABLE_X64 out of the environment"
        )
    configure_devices(num_devices, method)
    if num_devices is not None and num_devices > jax.local_device_count():
        raise InputError(
            f"config.num_devices={num_devices}, but JAX has {jax.local_device_count()} "
            f"{jax.default_backend()} device(s); lower it, or set it before JAX starts"
        )
    # Compiled programs are kept between processes, where the user has not chosen a place.
    if jax.config.values["jax_compilation_cache_dir"] is None:
        folder = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
        jax.config.update("jax_compilation_cache_dir", f"{folder}/flax-ensembles/xla")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def configure_devices(num_devices: int | None = None, method: str | None = None) -> None:
    """Does what `configure` does, but JAX does not start: other processes may be met first."""
    number = _num_cpu_devices(num_devices)
    _keep_freed_memory(method is None or trait("method", method, "one_arena"))
    _set_xla_flags(_XLA_FLAGS | ({} if method is None else trait("method", method, "xla_flags")))
    with suppress(RuntimeError):  # JAX has started, and keeps what it has.
        jax.config.update(_NUM_DEVICES, number)


def limit_threads(number: int) -> None:
    """Has JAX start with at most so many threads that compute, and as many CPU devices.

    They belong to the process: if JAX has started already, it keeps those that it has. Compiling
    programs takes threads of its own.

    Args:
        number: Number of threads, from 1.
    """
    with suppress(RuntimeError):
        jax.config.update(_NUM_DEVICES, number)
        os.environ[_NUM_THREADS] = str(number)


def _num_cpu_devices(num_devices: int | None) -> int:
    """The number of CPU devices of the configuration, else of the environment, else of cores.

    Raises:
        InputError: There cannot be so many.
    """
    if num_devices is None:
        num_devices = int(jax.config.values[_NUM_DEVICES])
        if _FORCED_DEVICES in os.environ.get("XLA_FLAGS", ""):  # XLA heeds its own flag.
            return num_devices
        if num_devices == _NOT_CHOSEN:
            return num_cores()
    if num_devices not in range(1, 1025):  # Each takes threads, of which there are only so many.
        raise InputError(
            f"there cannot be {num_devices} devices; set config.num_devices, or "
            "JAX_NUM_CPU_DEVICES, to a whole number from 1 to 1024"
        )
    return num_devices


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _keep_freed_memory(one_arena: bool) -> None:
    """Tells glibc to keep the large blocks that are freed, for the next step to reuse.

    XLA:CPU takes and frees its temporaries each step. glibc hands blocks of some megabytes back
    to the kernel, which clears every page again when they are next taken: a third of a step.

    Args:
        one_arena: Whether all threads share one arena, which takes less memory. Where a program
            has been compiled, the arena is in small pieces, and two devices that run small
            operations search it one after the other: steps take two to three times as long.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # Not glibc.
        return
    for parameter, value in (_MALLOC_PARAMETERS | (_ONE_ARENA if one_arena else {})).items():
        mallopt(parameter, value)


def _set_xla_flags(chosen: dict[str, str]) -> None:
    """Appends the flags that the user has not set, where the CPU alone reads them.

    They make XLA's CPU compiler faster and do nothing for an accelerator, whose plug-in aborts the
    process for a flag that it does not know.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    version = jax.__version_info__
    chosen = chosen | _BEFORE if version < _CHANGED else {**chosen, _GONE: ""}
    wanted = [f"{name}={value}" for name, value in chosen.items() if value and name not in flags]
    if version <= _NEWEST_TRIED and not _has_plug_in():
        os.environ["XLA_FLAGS"] = " ".join([flags, *wanted]).strip()


@cache
def _has_plug_in() -> bool:
    """Whether JAX may load a plug-in of an accelerator, libtpu among them.

    To look through what is installed takes several milliseconds.
    """
    if jax.config.values["jax_platforms"] == "cpu":
        return False
    return bool(
        importlib.util.find_spec("libtpu") or importlib.metadata.entry_points(group="jax_plugins")
    )
