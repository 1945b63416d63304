"""Counts the places where code knows a tenant of a contract by name: `make lint` runs it.

    python -m scripts.forbidden_names
    python -m scripts.forbidden_names --renew

The kinds of finds are in `KINDS`. The table `[tool.forbidden_names]` of pyproject.toml keeps a
count for each kind. A count that is above the table fails, and so does a count below it, until
`--renew` lowers the table: the counts only fall. Nothing of what is checked is imported.
"""

import argparse
import ast
import pathlib
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

KINDS = {
    "isinstance_of_tenant": "a tenant is asked for outside its own folder, or a library's class "
    "outside the networks",
    "comparison_with_name": "the name of a method, task, likelihood, model or data set is compared "
    "with, outside the registry, configs and command lines",
    "num_classes": "outside the likelihoods of classes, their scores, pictures and pages, and the "
    "fields of Linen modules",
    "any_in_contract": "a task, state or info is `Any`, or nothing, in a contract's signature",
    "task_files": "a file outside the tasks takes, holds or uses a task",
    "placing": "arrays are placed or fetched without `ensemble.sharding`",
}

_CONTRACTS = ("method", "likelihood", "network", "source", "task")
_TENANTS = ("networks", "sources", "tasks", "methods", "likelihoods")
"""Folders whose classes are tenants."""

_MAY_COMPARE = ("registry", "configs", "commands", "__main__")
_MAY_COUNT_CLASSES = (
    "likelihoods.categorical",
    "likelihoods.classes",  # What the likelihoods of classes have in common.
    "metrics",
    "pictures",
    "likelihoods.class_weights",
    "evaluation",  # Of classifiers: these are their pages.
)
_MAY_PLACE = ("sharding", "tasks.sharded_model")  # The latter on a mesh that a program gives.
_PLACING = (
    "NamedSharding", "PartitionSpec", "device_put", "device_get", "make_mesh", "process_allgather",
    "make_array_from_callback", "make_array_from_single_device_arrays", "broadcast_one_to_all",
)  # fmt: skip
_LIBRARIES = ("flax.",)
_ARRAYS = "arrays"  # What data that a program gave are called.
_START_AND_END = ("init", "advance", "join", "from_host")
"""Functions of a contract that return a state or an info."""


class Find(NamedTuple):
    """A place that a rule forbids."""

    kind: str
    path: pathlib.Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.what}"


class Module:
    """A module's tree, and what its names mean.

    Attributes:
        name: without the package's: `run.loop`.
        path: relative to the repository.
        tree: parsed.
        imports: for each local name, the dotted name that it stands for.
        constants: the values of assignments at the top level, by name.
        classes: names of classes that the module defines.
    """

    def __init__(self, name: str, path: pathlib.Path, source: str):
        self.name = name
        self.path = path
        self.tree = ast.parse(source, str(path))
        self.imports: dict[str, str] = {}
        self.constants: dict[str, ast.expr] = {}
        self.classes = {node.name for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for one in node.names:
                    self.imports[one.asname or one.name.split(".")[0]] = (
                        one.name if one.asname else one.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                for one in node.names:
                    self.imports[one.asname or one.name] = f"{node.module}.{one.name}"
        for statement in self.tree.body:
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        self.constants[target.id] = statement.value
            elif isinstance(statement, ast.AnnAssign) and statement.value:
                self.constants[_last(statement.target)] = statement.value

    def is_in(self, *places: str) -> bool:
        """Whether it is one of these modules, or in one of these folders."""
        return any(f"{self.name}.".startswith(f"{place}.") for place in places)

    @property
    def folder(self) -> str:
        """The dotted name of the folder that it is in."""
        return ".".join(self.path.parent.parts)


class Package:
    """All modules of the package `ensemble` below a folder."""

    def __init__(self, root: pathlib.Path):
        self.modules: dict[str, Module] = {}
        for path in sorted((root / "ensemble").rglob("*.py")):
            relative = path.relative_to(root)
            parts = relative.with_suffix("").parts[1:]
            name = ".".join(parts[:-1] if parts[-1:] == ("__init__",) else parts)
            self.modules[name] = Module(name, relative, path.read_text())
        self.names = self._find_names()
        self._folders: dict[str, set[str]] = {}
        for module in self.modules.values():
            for name in module.classes if module.is_in(*_TENANTS) else ():
                self._folders.setdefault(name, set()).add(module.folder)
        self.tasks = self._find_tasks()
        self.name_holders = self._find_name_holders()

    def _find_names(self) -> set[str]:
        """Names of methods, tasks, likelihoods, sources and networks."""
        names = {_ARRAYS}
        registry = self.modules["registry"]
        for table in registry.constants.values():
            for key in table.keys if isinstance(table, ast.Dict) else ():
                names |= set(self.strings(registry, key))
        prefixes = {name.partition(":")[0] for name in names if ":" in name}
        names |= prefixes | {f"{prefix}:" for prefix in prefixes}
        for module in self.modules.values():
            for node in ast.walk(module.tree) if module.is_in("networks") else ():
                if isinstance(node, ast.Call) and _last(node.func) == "register" and node.args:
                    names |= set(self.strings(module, node.args[0]))
        return names

    def _find_tasks(self) -> set[str]:
        """Classes of tasks: the contract's, and those that annotate what is called `task`."""
        known = {
            name for one in self.modules.values() if one.is_in("tasks") for name in one.classes
        }
        found = {"Task"}
        for module in self.modules.values():
            for name, annotation, _ in _annotated(module.tree):
                if _is_task(name) and annotation:
                    found |= {_last(node) for node in ast.walk(annotation)} & known
        return found

    def _find_name_holders(self) -> set[str]:
        """What objects are called, after their class, whose field `task` is only a name."""
        return {
            node.name.lower()
            for module in self.modules.values()
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ClassDef)
            for field in node.body
            if isinstance(field, ast.AnnAssign)
            if _is_task(_last(field.target)) and _last(field.annotation) == "str"
        }

    def resolve(self, module: Module, node: ast.expr) -> str:
        """The dotted name that an expression stands for; empty if it is none."""
        if isinstance(node, ast.Attribute):
            base = self.resolve(module, node.value)
            return f"{base}.{node.attr}" if base else ""
        if not isinstance(node, ast.Name):
            return ""
        if node.id in module.imports:
            return module.imports[node.id]
        return f"ensemble.{module.name}.{node.id}"

    def value(self, module: Module, node: ast.expr) -> tuple[Module, ast.expr] | None:
        """The module and the expression of the constant that an expression names."""
        place, _, name = self.resolve(module, node).rpartition(".")
        owner = self.modules.get(place.removeprefix("ensemble").removeprefix("."))
        if owner is None or not place.startswith("ensemble"):
            return None
        if name in owner.constants:
            return owner, owner.constants[name]
        if name in owner.imports and owner is not module:  # It is passed on.
            return self.value(owner, ast.Name(name))
        return None

    def strings(self, module: Module, node: ast.expr | None) -> Iterator[str]:
        """The strings that an expression is or holds, as far as constants say."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            for one in node.elts:
                yield from self.strings(module, one)
        elif isinstance(node, ast.Starred):
            yield from self.strings(module, node.value)
        elif isinstance(node, ast.Name | ast.Attribute) and (found := self.value(module, node)):
            yield from self.strings(*found)

    def places(self, module: Module, node: ast.expr) -> Iterator[str]:
        """The dotted names in an expression of classes, as far as constants say."""
        if isinstance(node, ast.Tuple):
            for one in node.elts:
                yield from self.places(module, one)
        elif isinstance(node, ast.BinOp):
            yield from self.places(module, node.left)
            yield from self.places(module, node.right)
        elif isinstance(node, ast.Name | ast.Attribute):
            found = self.value(module, node)
            yield from self.places(*found) if found else [self.resolve(module, node)]

    def is_foreign(self, module: Module, place: str) -> bool:
        """Whether a module has no business with a class: a tenant elsewhere, or a library's."""
        if place.startswith(_LIBRARIES):
            return not module.is_in("networks")
        home, _, name = place.rpartition(".")
        owner = self.modules.get(home.removeprefix("ensemble."))
        if not home.startswith("ensemble") or name not in self._folders:
            return False
        if owner and name in owner.classes:
            folders = {owner.folder} if owner.is_in(*_TENANTS) else {module.folder}
        else:  # A folder's `__init__` passes it on.
            folders = self._folders[name]
        return not any(f"{module.folder}.".startswith(f"{folder}.") for folder in folders)


def isinstance_of_tenant(package: Package, module: Module) -> Iterator[tuple[int, str]]:
    """Asks for a tenant: by `isinstance` or `issubclass`, by comparing types, by `match`."""
    for node in ast.walk(module.tree):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Call) and _last(node.func) in ("isinstance", "issubclass"):
            asked = node.args[1:]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(one, ast.Call) and _last(one.func) == "type" for one in sides):
                asked = sides
        for one in asked:
            for place in package.places(module, one):
                if package.is_foreign(module, place):
                    yield one.lineno, place.rpartition(".")[2]


def comparison_with_name(package: Package, module: Module) -> Iterator[tuple[int, str]]:
    """Compares with a name: by an operator, `startswith` or `match`."""
    if module.is_in(*_MAY_COMPARE):
        return
    for node in ast.walk(module.tree):
        compared: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            compared = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            compared = [node.value]
        elif isinstance(node, ast.Call) and _last(node.func) == "startswith":
            compared = node.args
        for one in compared:
            if names := sorted(package.names.intersection(package.strings(module, one))):
                yield one.lineno, ", ".join(names)


def num_classes(package: Package, module: Module) -> Iterator[tuple[int, str]]:
    """Names the number of classes, in code or as a key."""
    if module.is_in(*_MAY_COUNT_CLASSES):
        return
    fields = {
        id(part)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        and any(package.resolve(module, base).startswith(_LIBRARIES) for base in node.bases)
        for part in ast.walk(node)
    }
    lines = {
        node.lineno
        for node in ast.walk(module.tree)
        if "num_classes" in _names_of(node) and id(node) not in fields and hasattr(node, "lineno")
    }
    for line in sorted(lines):
        yield line, "num_classes"


def any_in_contract(package: Package, module: Module) -> Iterator[tuple[int, str]]:
    """Leaves a task, a state or an info of a contract without a type."""
    if module.name not in _CONTRACTS:
        return
    for name, annotation, line in _annotated(module.tree):
        if set(name.split("_")) & {"task", "state", "info"} and _is_untyped(annotation):
            yield line, name
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.FunctionDef) or node.name not in _START_AND_END:
            continue
        if _is_untyped(node.returns):
            yield node.lineno, f"{node.name} returns it"


def task_files(package: Package, module: Module) -> Iterator[tuple[int, str]]:
    """Takes, holds or uses a task; the line is the first one that does."""
    if module.is_in("tasks", "task"):
        return
    lines = set()
    for name, annotation, line in _annotated(module.tree):
        said = {_last(node) for node in ast.walk(annotation)} if annotation else set()
        if said & package.tasks or (_is_task(name) and "str" not in said):
            lines.add(line)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            owner = _last(node.value)
            holds = node.attr.strip("_") == "task" and owner not in package.name_holders
            if holds or _is_task(owner):
                lines.add(node.lineno)
        elif isinstance(node, ast.Lambda) and any(_is_task(one.arg) for one in node.args.args):
            lines.add(node.lineno)
    if lines:
        yield min(lines), f"{len(lines)} lines"


def placing(package: Package, module: Module) -> Iterator[tuple[int, str]]:
    """Calls what JAX places and fetches arrays with."""
    for node in ast.walk(module.tree) if not module.is_in(*_MAY_PLACE) else ():
        if isinstance(node, ast.Call):
            name = _last(node.func)
            called = module.imports.get(name, name).rpartition(".")[2]
            if called in _PLACING:
                yield node.lineno, called


_RULES = (
    isinstance_of_tenant,
    comparison_with_name,
    num_classes,
    any_in_contract,
    task_files,
    placing,
)


def find(root: pathlib.Path) -> list[Find]:
    """Finds all that is forbidden in `ensemble/` below a folder.

    Args:
        root: of the repository.
    """
    package = Package(root)
    return [
        Find(rule.__name__, module.path, line, what)
        for rule in _RULES
        for module in package.modules.values()
        for line, what in sorted(set(rule(package, module)))
    ]


def _annotated(tree: ast.AST) -> Iterator[tuple[str, ast.expr | None, int]]:
    """Names, annotations and lines of parameters and fields; what is returned has no name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            yield _last(node.target), node.annotation, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                yield one.arg, one.annotation, one.lineno
            if node.returns:
                yield "", node.returns, node.lineno


def _names_of(node: ast.AST) -> tuple[object, ...]:
    """What a node of a tree calls something."""
    fields = ("id", "attr", "arg", "name", "value")
    return tuple(one for one in (getattr(node, field, None) for field in fields))


def _last(node: ast.AST) -> str:
    """The last part of a dotted name; of an annotation in quotes what it says."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _is_task(name: str) -> bool:
    return name.strip("_") == "task" or name.endswith("_task")


def _is_untyped(annotation: ast.expr | None) -> bool:
    """Whether an annotation is missing, or `Any`, also as a part of a tuple or a union."""
    if annotation is None:
        return True
    if isinstance(annotation, ast.BinOp):
        return _is_untyped(annotation.left) or _is_untyped(annotation.right)
    if isinstance(annotation, ast.Subscript) and _last(annotation.value) in ("tuple", "Optional"):
        inner = annotation.slice
        return any(map(_is_untyped, inner.elts if isinstance(inner, ast.Tuple) else [inner]))
    return _last(annotation) in ("Any", "object")


def verdict(counts: Mapping[str, int], table: Mapping[str, int]) -> list[str]:
    """What is wrong with counts, one line each.

    Args:
        counts: by kind.
        table: what they may be.
    """
    wrong = []
    for kind, meaning in KINDS.items():
        count, most = counts[kind], table[kind]
        if count > most:
            wrong.append(f"{kind} is {count}, must be at most {most}: {meaning}")
        elif count < most:
            wrong.append(
                f"{kind} has fallen from {most} to {count}; keep it there: "
                "python -m scripts.forbidden_names --renew"
            )
    return wrong


def read_table(text: str) -> dict[str, int]:
    """The counts that a pyproject.toml keeps."""
    return tomllib.loads(text)["tool"]["forbidden_names"]


def lowered(text: str, counts: Mapping[str, int]) -> str:
    """A pyproject.toml with the counts that have fallen; none is raised.

    Args:
        text: of the file.
        counts: of now.
    """
    head, title, rest = text.partition("[tool.forbidden_names]\n")
    table, blank, tail = rest.partition("\n\n")
    for kind, most in read_table(text).items():
        table = re.sub(rf"^{kind} = \d+", f"{kind} = {min(most, counts[kind])}", table, flags=re.M)
    return head + title + table + blank + tail


def main(argv: list[str], root: pathlib.Path) -> int:
    """Prints what is found; returns the exit status.

    Args:
        argv: of the command line.
        root: of the repository.
    """
    parser = argparse.ArgumentParser(description="Counts forbidden names.")
    parser.add_argument("--renew", action="store_true", help="Lowers counts that have fallen.")
    arguments = parser.parse_args(argv)
    finds = find(root)
    counts = {kind: sum(one.kind == kind for one in finds) for kind in KINDS}
    for one in finds:
        print(one)
    project = root / "pyproject.toml"
    if arguments.renew:
        project.write_text(lowered(project.read_text(), counts))
    wrong = verdict(counts, read_table(project.read_text()))
    print(", ".join(f"{kind} {count}" for kind, count in counts.items()))
    for line in wrong:
        print(f"forbidden names: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], pathlib.Path(__file__).resolve().parent.parent))
