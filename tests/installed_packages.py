"""Packages of strangers, as an installer leaves them, on the path of a test or of a process."""

import importlib
import shutil
import textwrap

from ensemble import registry, tenants


def install(folder, package, version="1.0", entry_points=None, **modules):
    """Writes a package's modules and what is said of it.

    Args:
        folder: that is, or will be, on the path.
        package: its name.
        version: of it.
        entry_points: `{kind: {name: "module:OBJECT"}}`.
        **modules: their text, by name.
    """
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    uninstall(folder, package)
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = []
    for kind, points in (entry_points or {}).items():
        lines += [f"[{tenants.GROUPS}{kind}s]", *(f"{k} = {v}" for k, v in points.items())]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]))


def uninstall(folder, package):
    """Removes what is said of a package; its modules stay."""
    for old in folder.glob(f"{package}-*.dist-info"):
        shutil.rmtree(old)


def forget(monkeypatch):
    """Lets a test see other packages, and the next test none of them."""
    importlib.invalidate_caches()  # Folders that have changed within a tick of the clock.
    tenants.entry_points.cache_clear()
    for one in registry.KINDS.values():
        monkeypatch.setattr(one, "_loaded", {})
        monkeypatch.setattr(one, "registered", dict(one.registered))
