"""What tests may cost: seconds of CPU, a test's own and those of the processes that it starts.

`make test` runs on every save, so it must stay quick: a test of it that takes more than
`TEST_SECONDS` fails. What compiling takes is not counted, for it is paid once and then kept on
disk, nor what a fixture takes that several tests share. A test that is over the limit is run once
more, when all is compiled, imported and built, also by its processes: it fails if it is over
the limit again. A test whose promise needs real processes of its own may say so with
`@pytest.mark.costs(seconds)`. All of it counts for `TOTAL_SECONDS`, which is printed.
"""

import contextlib
import json
import pathlib
import resource
import time

import jax
import pytest
from _pytest.runner import runtestprotocol

from benchmarks import side_by_side

TEST_SECONDS = 4.0
"""Of an unmarked test: set-up and call."""

TOTAL_SECONDS = {"": 480, "check": 600}
"""Of all tests of a mark: four minutes of two cores, and five."""

_ASKED = "/jax/compilation_cache/compile_requests_use_cache"
_FOUND = "/jax/compilation_cache/cache_hits"
_COMPILED = "/jax/core/compile/backend_compile_duration"


class Meter:
    """Seconds of CPU that count for the test that runs now."""

    def __init__(self):
        self.exempt = 0.0
        """Seconds so far that count for no test: of compiling and of what is shared."""
        self._nested = 0
        self._asked = None
        jax.monitoring.register_event_listener(self._note)
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, event, *_, **__):
        """Notes what JAX tells: a program is asked for, was found on disk, or is compiled."""
        if event == _ASKED and not self._nested:
            self._asked = cpu_seconds()
        elif event == _FOUND:
            self._asked = None
        elif event == _COMPILED and self._asked is not None:
            self.exempt += cpu_seconds() - self._asked
            self._asked = None

    @contextlib.contextmanager
    def shared(self):
        """What is within counts for no test."""
        began = cpu_seconds()
        self._nested += 1
        try:
            yield
        finally:
            self._nested -= 1
            if not self._nested:
                self.exempt += cpu_seconds() - began

    def read(self):
        """Seconds so far, of which only differences mean something."""
        return cpu_seconds() - self.exempt


def cpu_seconds():
    """Seconds of CPU of this process and of those of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


METER = Meter()


def limit_of(item):
    """Seconds that a test may take; None where there is no limit."""
    if any(item.get_closest_marker(name) for name in ("check", "soak")):
        return None
    mark = item.get_closest_marker("costs")
    return mark.args[0] if mark else TEST_SECONDS


def verdict(seconds, limit):
    """What is wrong with a test that took so long; None if nothing is."""
    if limit is None or seconds <= limit:
        return None
    return (
        f"took {seconds:.1f} s of CPU, a test of `make test` may take {limit:g}: make it "
        "smaller, test the promise at a lower layer, or mark it `check` (tests/budget.py)"
    )


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    if fixturedef.scope == "function":
        return (yield)
    with METER.shared():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    item.began = METER.read()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    finally:
        item.seconds = METER.read() - item.began


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """As pytest's own, but that what is over its limit is run twice."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    item.seconds = 0.0
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if all(report.passed for report in reports) and verdict(item.seconds, limit_of(item)):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if all(report.passed for report in reports):
            wrong = verdict(item.seconds, limit_of(item))
            if wrong:
                call = next(report for report in reports if report.when == "call")
                call.outcome, call.longrepr = "failed", f"{item.nodeid} {wrong}"
    for report in reports:
        report.cpu_seconds = item.seconds
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


class Total:
    """Adds up the seconds of the processes that run tests, and prints them."""

    def __init__(self, config):
        self.config = config
        self.others = 0.0
        self.began = time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.others += getattr(node, "workeroutput", {}).get("cpu_seconds", 0.0)

    def pytest_sessionfinish(self):
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["cpu_seconds"] = cpu_seconds()

    def pytest_terminal_summary(self, terminalreporter):
        tests = {}
        for reports in terminalreporter.stats.values():
            for report in reports:
                if getattr(report, "when", None) == "call" and hasattr(report, "cpu_seconds"):
                    tests[report.nodeid] = report.cpu_seconds
        terminalreporter.section("seconds of CPU")
        for nodeid in sorted(tests, key=tests.get, reverse=True)[:10]:
            terminalreporter.write_line(f"{tests[nodeid]:6.1f} {nodeid}")
        # Workers of pytest-xdist are children of this process, and may not all have ended.
        mine = resource.getrusage(resource.RUSAGE_SELF)
        total = mine.ru_utime + mine.ru_stime + self.others if self.others else cpu_seconds()
        terminalreporter.write_line(total_line(total, self.config.option.markexpr))
        is_worker = hasattr(self.config, "workeroutput")
        if self.config.option.soak_results and not is_worker:
            outcomes = ("passed", "failed", "error", "skipped")
            counts = {name: len(terminalreporter.stats.get(name, [])) for name in outcomes}
            counts["counted"] = counted(terminalreporter.stats)
            path = pathlib.Path(self.config.option.soak_results)
            seconds = time.monotonic() - self.began
            note_soak(path, self.config.args, counts, seconds, total)


def counted(stats):
    """What tests that passed have counted: by what, such as `kills of sgd`, how often what."""
    found = {}
    for report in stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "counted":
                found |= value
    return found


def total_line(seconds, markexpr):
    """What the tests took, and may take."""
    mark = next((mark for mark in ("check", "soak") if markexpr.startswith(mark)), "")
    of = f" of the {TOTAL_SECONDS[mark]}" if mark in TOTAL_SECONDS else ""
    return f"{seconds:6.0f} in all{of} (tests/budget.py): whoever adds one moves or removes one"


def pytest_addoption(parser):
    parser.addoption("--soak_results", help="A JSON file to which a run of `make soak` is added.")


def pytest_configure(config):
    config.pluginmanager.register(Total(config), "total")


def note_soak(
    path: pathlib.Path, tests: list[str], counts: dict, seconds: float, cpu: float
) -> None:
    """Adds a row for a run of `make soak` to a JSON file.

    Args:
        path: of the file.
        tests: files and folders whose tests ran.
        counts: of tests by how they ended, and what they have counted.
        seconds: that it took.
        cpu: seconds of CPU that it took.
    """
    row = {
        **side_by_side.provenance(),
        "tests": tests,
        **counts,
        "seconds": round(seconds),
        "cpu_seconds": round(cpu),
    }
    about = {"machine": side_by_side.describe_machine(), "command": "make soak", "rows": []}
    content = json.loads(path.read_text()) if path.exists() else about
    content["rows"].append(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
