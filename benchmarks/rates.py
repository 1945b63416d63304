"""How fast workers are, in peers' environments too: the standard library is enough."""

import os
import resource
import sys
import time
from collections.abc import Callable

MOST_SECONDS = "RATES_MOST_SECONDS"
"""Name of an environment variable: seconds that measurements take at most, to see that they run."""


def process_started() -> float:
    """The `time.monotonic()` at which this process began."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    began = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # Seconds since boot: `man proc`.
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - began)


def stay_on_one_core() -> None:
    """Lets what is started from now on have one core, where the system can say so."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def measure(
    work: Callable[[], float], seconds: float, finish: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Works for some seconds.

    Args:
        work: does a part, and says how much.
        seconds: at least, or as many as the environment allows.
        finish: waits for what is still on its way, within the time.

    Returns:
        `rate` of a second, and `cpu_rate` of a second of CPU.
    """
    seconds = min(seconds, float(os.environ.get(MOST_SECONDS, seconds)))
    done = 0.0
    start = time.perf_counter()
    cpu = time.process_time()
    while not done or time.perf_counter() - start < seconds:
        done += work()
    finish()
    elapsed = time.perf_counter() - start
    used = time.process_time() - cpu
    return {"rate": done / elapsed, "cpu_rate": done / used}


def peak_memory(who: int = resource.RUSAGE_SELF) -> float:
    """The most memory that this process, or one of its children, has had resident, GiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(who).ru_maxrss * unit / 2**30
