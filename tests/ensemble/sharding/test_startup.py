"""What is settled before JAX starts, seen in fresh processes."""

import json
import os
import subprocess
import sys
import types

import jax
import pytest
from conftest import ROOT

from ensemble import InputError
from ensemble.sharding import startup


def run_python(code, **env):
    clean = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", *env)}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**clean, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def printed(code, **env):
    done = run_python(code, **env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


FLAGS = "import json, os; from ensemble.sharding import startup; startup.configure();"


@pytest.mark.check
def test_the_flags_are_appended_and_jax_accepts_them():
    code = FLAGS + "import jax; jax.devices(); print(json.dumps(os.environ['XLA_FLAGS']))"
    flags = printed(code, XLA_FLAGS="--xla_cpu_enable_fast_math=false")
    assert flags.startswith("--xla_cpu_enable_fast_math=false --xla_cpu_")
    assert flags.endswith(" --xla_cpu_collective_call_terminate_timeout_seconds=600")


@pytest.fixture
def flags_after(monkeypatch):
    """XLA's flags after `configure`, in this process, whose JAX has started and heeds none."""

    def flags_after(method=None, before=""):
        monkeypatch.setenv("XLA_FLAGS", before)
        startup.configure(None, method)
        return os.environ["XLA_FLAGS"]

    return flags_after


def test_training_in_float64_is_refused(flags_after):
    with jax.enable_x64(True):
        flags_after()  # To predict: nothing is refused.
        with pytest.raises(InputError, match=r"jax_enable_x64=True.*False.*float32"):
            flags_after("deep_ensemble")


TIMEOUT = "--xla_cpu_collective_call_terminate_timeout_seconds"


def test_a_user_s_own_choice_stays(flags_after):
    assert flags_after(before=f"{TIMEOUT}=9") == f"{TIMEOUT}=9"


@pytest.mark.check
@pytest.mark.parametrize(("platforms", "is_set"), [("", False), ("cpu", True)])
def test_where_a_plug_in_may_be_loaded_no_flag_is_set(platforms, is_set, tmp_path):
    package = tmp_path / "fake_plug_in-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: fake_plug_in\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[jax_plugins]\nfake = fake_plug_in\n")
    code = (
        "import json, os; from ensemble.sharding import startup; startup.configure_devices();"
        "print(json.dumps(os.environ.get('XLA_FLAGS', '')))"
    )
    found = printed(code, JAX_PLATFORMS=platforms, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (TIMEOUT in found) == is_set


@pytest.mark.check
def test_num_devices_makes_that_many():
    code = "import json; from ensemble.sharding import startup; startup.configure(3);"
    assert printed(code + "import jax; print(json.dumps(jax.device_count()))") == 3


@pytest.mark.check
def test_the_default_is_a_device_per_core():
    code = FLAGS + "import jax; print(json.dumps(jax.device_count()))"
    assert printed(code) == len(os.sched_getaffinity(0))


@pytest.mark.check
def test_a_number_that_the_user_has_set_stays():
    code = FLAGS + "import jax; print(json.dumps(jax.device_count()))"
    assert printed(code, XLA_FLAGS="--xla_force_host_platform_device_count=3") == 3
    assert printed(code, JAX_NUM_CPU_DEVICES="5") == 5


@pytest.mark.check
def test_after_jax_has_started_its_devices_stay():
    code = (
        "import json, jax; jax.config.update('jax_num_cpu_devices', 2); jax.devices();"
        "from ensemble.sharding import startup; startup.configure(); startup.configure(1);"
        "print(json.dumps(jax.device_count()))"
    )
    assert printed(code) == 2
    done = run_python(code.replace("configure(1)", "configure(4)"))
    assert "config.num_devices=4, but JAX has 2 cpu device(s)" in done.stderr


@pytest.mark.check
def test_programs_are_cached_between_processes(tmp_path):
    code = FLAGS + "import jax; jax.jit(lambda x: x + 1)(1.0); print(json.dumps(True))"
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    clean = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**clean, **env}, check=True)
    assert list((tmp_path / "flax-ensembles" / "xla").iterdir())


def test_a_user_s_own_cache_keeps_its_rules(monkeypatch, tmp_path):
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: jax.config.values[name] for name in names}
    own = dict(zip(names, (str(tmp_path), 7.0, 4096), strict=True))
    try:
        for name, value in own.items():
            jax.config.update(name, value)
        monkeypatch.setenv("XLA_FLAGS", "")
        startup.configure()
        assert {name: jax.config.values[name] for name in names} == own
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


# So it is read only then.


def test_importing_the_package_imports_nothing_slow():
    code = (
        "import json, sys, ensemble;"
        "print(json.dumps([m for m in ('jax', 'flax', 'matplotlib') if m in sys.modules]))"
    )
    assert printed(code) == []


@pytest.mark.parametrize(
    ("method", "is_one"), [("deep_ensemble", True), (None, True), ("nuts", False)]
)
def test_devices_of_samplers_do_not_share_an_arena(monkeypatch, method, is_one):
    calls = []
    library = types.SimpleNamespace(mallopt=lambda *parameter: calls.append(parameter))
    monkeypatch.setattr(startup.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(startup, "_set_xla_flags", lambda flags: None)
    monkeypatch.setattr(startup.jax.config, "update", lambda name, value: None)
    startup.configure_devices(None, method)
    assert ((-8, 1) in calls) == is_one
    assert (-1, 2**31 - 1) in calls


THREADS = """
import json, os, jax
from ensemble.sharding import startup
startup.limit_threads(1)
jax.jit(lambda x: x @ x)(jax.numpy.ones((500, 500))).block_until_ready()
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
print(json.dumps([sum("XLAEigen" in name for name in names), jax.local_device_count()]))
"""


@pytest.mark.check
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are listed by /proc")
def test_jax_starts_with_so_many_threads():
    assert printed(THREADS, JAX_NUM_CPU_DEVICES="2", PJRT_NPROC="2") == [1, 1]


@pytest.mark.parametrize("number", [0, 2000])
def test_so_many_devices_cannot_be_chosen(monkeypatch, number):
    config = types.SimpleNamespace(values={"jax_num_cpu_devices": number})
    monkeypatch.setattr(startup, "jax", types.SimpleNamespace(config=config))
    for chosen in (None, number):
        with pytest.raises(InputError, match=f"cannot be {number} devices"):
            startup._num_cpu_devices(chosen)
