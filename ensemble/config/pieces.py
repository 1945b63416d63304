"""Pieces of a run by name or path: where their code is. Importing this module imports none of it.

The value of `config.method`, `.model`, `.likelihood` and the like is the name of a built-in piece,
`package.module:Name`, `file.py:Name`, or in Python the class, function or object itself.
"""

import dataclasses
import difflib
import functools
import importlib
import itertools
import os
import pathlib
import pkgutil
import re
import sys
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ensemble.errors import InputError, in_one_line, in_own_code, is_own, shown


@dataclasses.dataclass(frozen=True)
class Kind:
    """The pieces of one kind.

    Attributes:
        key: Configuration key that selects one.
        noun: For messages.
        names: Code of the built-in pieces, `module:Name` by name.
        has: Attributes of the code; without any it is callable.
    """

    key: str
    noun: str
    names: Mapping[str, str]
    has: tuple[str, ...] = ()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self.names or is_path(name))

    def load(self, name: str) -> Any:
        """Returns the code of a piece.

        Raises:
            InputError: The piece is unknown, or cannot be imported, or may not be, or is none.
        """
        if name in self.names:
            return resolve(self.names[name])
        if not is_path(name):
            raise InputError(self.unknown(name))
        return self.check_made(name, find(name, f"config.{self.key}={name!r}"), "", self.has)

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Calls the code of a piece; an error in a user's code becomes one line.

        Raises:
            InputError: The piece cannot be loaded, or is a user's and fails.
        """
        code = self.load(name)
        try:
            return code(*arguments, **options)
        except InputError:
            raise
        except Exception as error:  # A user's program may raise anything.
            if name in self.names:
                raise
            raise InputError(
                f"the {self.noun} {shown(name)} failed {in_own_code(error)}"
            ) from error

    def unknown(self, name: Any) -> str:
        """The message for a name that is unknown."""
        known = f"one of {', '.join(self.names)}, or " if self.names else ""
        return (
            f"config.{self.key}={in_one_line(repr(name), 60)} is unknown. "
            f"{near_miss(str(name), self.names)}Use {known}your own as package.module:Name or "
            "file.py:Name"
        )

    def check_made(self, name: str, made: Any, wanted: str, has: Sequence[str] = ()) -> Any:
        """Returns the code of a piece, or what it has made, if it is usable.

        Args:
            name: Name or path of the piece.
            made: Its code, or what that has returned.
            wanted: Description of what must be returned, for the message; empty: it is the code.
            has: Attributes that are required; without any it must be callable.

        Raises:
            InputError: An attribute is missing.
        """
        lacks = [one for one in has or ("__call__",) if not hasattr(made, one)]
        if lacks:
            given = f"a {type(made).__name__}, which lacks {', '.join(lacks)}"
            rest = f"returns {given}; it must return {wanted}" if wanted else f"is {given}"
            raise InputError(f"the {self.noun} {shown(name)} {rest}")
        return made


def near_miss(name: str, names: Iterable[str]) -> str:
    """A hint at a known name that is like an unknown one; empty if there is none."""
    close = difflib.get_close_matches(name, [*names], n=1)
    return f"Did you mean {close[0]!r}? " if close else ""


_PATH = re.compile(r"(.*\.py|[^\W\d]\w*(\.[^\W\d]\w*)*):[^:]+")


def is_path(value: str) -> bool:
    """Whether a value has the form `module:Name` or `file.py:Name`."""
    return _PATH.fullmatch(value) is not None


def named(names: Iterable[str], value: str) -> str:
    """The name that a value has, such as `csv:PATH` for `csv:data.csv`; empty if there is none."""
    prefix, colon, rest = value.partition(":")
    if not colon:
        return value if value in names else ""
    return next((one for one in names if rest and one.startswith(f"{prefix}:")), "")


resolve = pkgutil.resolve_name
"""Imports what `module:Name` of this package names."""

# Pieces of users.

_GIVEN: dict[str, Any] = {}
"""Pieces that this process has been given or has imported, by path."""
_trusts = False
"""Whether a path of a workdir may be imported."""
_stand_ins: Mapping[str, Any] = {}
"""Pieces, by key, that the caller gives in place of those that a workdir names."""
_lent: dict[str, Any] = {}
"""The same by the paths that the workdir names, as long as it is opened."""


def path_of(piece: Any) -> str:
    """Records a piece that was given as an object, and returns its path.

    Of two pieces with one path, such as two versions of a notebook's class, the last one counts.
    Objects have numbers, and lambdas digests of their code.
    """
    named = piece if hasattr(piece, "__qualname__") else type(piece)
    module = named.__module__
    name = named.__qualname__ if named is piece else f"<{named.__qualname__} object>"
    if name.endswith("<lambda>"):  # The same code is the same run.
        code = piece.__code__
        name += f" {zlib.crc32(code.co_code + repr((code.co_names, code.co_consts)).encode()):08x}"
    file = str(getattr(sys.modules.get(module), "__file__", None))
    if module == "__main__" and file.endswith(".py") and os.path.isfile(file):
        module = _module_name(file)
    path = f"{module}:{name}"
    if name.endswith(">"):
        numbered = (path[:-1] + f" {k}" * (k > 1) + ">" for k in itertools.count(1))
        path = next(one for one in numbered if _GIVEN.get(one, piece) is piece)
    _GIVEN[path] = piece
    return path


def packages(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the versions of the installed packages that pieces come from, by package.

    Args:
        values: Of a configuration, flat.
    """
    from importlib import metadata  # Only few runs need it, and it takes as long as all else here.

    result = {}
    for value in values.values():
        if isinstance(value, str) and is_path(value):
            package = re.split("[.:]", value)[0]
            with suppress(metadata.PackageNotFoundError):
                result[package] = metadata.version(package)
    return result


@contextmanager
def trusting(trust: bool, **given: Any) -> Iterator[None]:
    """Within, workdirs are opened with this trust.

    Args:
        trust: If True, the paths that workdirs name are imported.
        **given: Pieces by key, such as `model`, which are used for the paths that workdirs name.
    """
    global _trusts, _stand_ins, _lent
    before = _trusts, _stand_ins, _lent
    _trusts = trust or _trusts
    _stand_ins = {key: one for key, one in given.items() if one is not None}
    _lent = {}
    try:
        yield
    finally:
        _trusts, _stand_ins, _lent = before


def find(path: str, what: str, key: str = "", *, trust: bool = False) -> Any:
    """Returns a user's piece.

    Args:
        path: Of the piece.
        what: Its mention in messages.
        key: Of the configuration.
        trust: If False, the path is of a workdir, and is only imported within `trusting(True)`.

    Raises:
        InputError: It was neither given nor imported and may not be, or importing it fails.
    """
    if key in _stand_ins:
        _lent[path] = _stand_ins[key]
    if path in _lent:
        return _lent[path]
    if path not in _GIVEN:
        module, _, name = path.rpartition(":")
        there = _loaded(module)
        found = _attribute(there, name)
        if not (trust or _trusts or _is_of_program(there, found)):
            raise InputError(
                f"{shown(what)} names code, which is not run for a workdir unless you trust "
                "it. Use trust=True or --trust, or import it in your program first"
            )
        _GIVEN[path] = _imported(module, name, what) if found is None else found
    return _GIVEN[path]


given_or_imported = functools.partial(find, trust=True)
"""Returns a piece that the caller names; see `find`."""


def _imported(module: str, name: str, what: str) -> Any:
    file = pathlib.Path(module)
    if module.endswith(".py") and not file.is_file():
        raise InputError(f"{what}: there is no file {file.absolute()}")
    try:
        there = module_of_file(file) if module.endswith(".py") else importlib.import_module(module)
    except (Exception, SystemExit) as error:  # A user's program may raise anything.
        raise InputError(
            f"{what} cannot be loaded: importing it failed {in_own_code(error)}"
        ) from error
    found = _attribute(there, name)
    if found is None:
        hint = near_miss(name, vars(there))
        raise InputError(f"{what}: {module} has no {name!r}. {hint}".strip())
    return found


def _loaded(module: str) -> Any:
    """A module that is imported already, of a file whatever its name; None if there is none."""
    name = _module_name(module)
    if name in sys.modules or name == module:
        return sys.modules.get(name)
    files = ((one, getattr(one, "__file__", None)) for one in [*sys.modules.values()])
    return next((one for one, file in files if file and os.path.realpath(file) == name), None)


def _is_of_program(module: Any, piece: Any) -> bool:
    """Whether a piece is a class or function that a module of the user's program defines.

    What Python and installed packages have is called for a workdir only if the workdir is trusted.
    """
    if piece is None or getattr(piece, "__module__", None) != module.__name__:
        return False
    file = getattr(module, "__file__", None)
    if file is None:
        return bool(module.__name__ == "__main__")
    return is_own(file) and is_own(os.path.realpath(file))


def _attribute(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def _module_name(module: str) -> str:
    """Name in `sys.modules`; a file has its full path."""
    return str(pathlib.Path(module).expanduser().resolve()) if module.endswith(".py") else module


def module_of_file(file: pathlib.Path) -> Any:
    """Imports a Python file, once; its name in `sys.modules` is its full path."""
    name = _module_name(str(file))
    if name not in sys.modules:
        folder = os.path.dirname(name)
        module = types.ModuleType(name)
        module.__file__ = name
        sys.modules[name] = module  # As dataclasses and their annotations expect.
        sys.path.insert(0, folder)  # Modules of its folder come first, as in a Python program,
        try:
            code = compile(pathlib.Path(name).read_bytes(), name, "exec", dont_inherit=True)
            exec(code, vars(module))
        except BaseException:
            del sys.modules[name]
            raise
        finally:
            sys.path.remove(folder)
            if folder not in sys.path:  # and later last: its functions may import, too.
                sys.path.append(folder)
    return sys.modules[name]


# Built-in pieces.

_M = "ensemble.methods."
METHODS = Kind(
    "method",
    "method",
    {
        **{
            one: f"{_M}{one}:create"
            for one in (
                *("deep_ensemble", "snapshot_ensemble", "swag", "mc_dropout", "batch_ensemble"),
                *("hyper_ensemble", "kfold_bagging", "laplace"),
            )
        },
        "packed_ensemble": _M + "batch_ensemble:create",
        **dict.fromkeys(
            ("hmc", "nuts", "mclmc", "adjusted_mclmc", "parallel_tempering"), _M + "chains:create"
        ),
        **dict.fromkeys(("sgld", "sghmc"), _M + "sgmcmc:create"),
        "rwm": "ensemble.random_walk.method:create",
    },
)
_N = "ensemble.networks."
MODELS = Kind(
    "model",
    "network",
    {
        "cnn": _N + "cnn:CNN",
        "lenet5": _N + "lenet5:LeNet5",
        "logistic_regression": _N + "logistic_regression:LogisticRegression",
        "mlp": _N + "mlp:MLP",
        "resnet20": _N + "resnet:ResNet20",
        "resnet50": _N + "resnet50:ResNet50",
        "vit": _N + "vit:ViT",
        "matrix_factorisation": "ensemble.recommendation.factorisation:MatrixFactorisation",
    },
)
_L = "ensemble.likelihoods."
LIKELIHOODS = Kind(
    "likelihood",
    "likelihood",
    {
        "categorical": _L + "classes:Categorical",
        "bernoulli": _L + "classes:Bernoulli",
        "gaussian": _L + "numbers:Gaussian",
        "gaussian_homoscedastic": _L + "numbers:SharedGaussian",
        "student_t": _L + "numbers:StudentT",
        "laplace": _L + "numbers:Laplace",
        "log_normal": _L + "numbers:LogNormal",
        "mixture_of_gaussians": _L + "numbers:MixtureOfGaussians",
        "poisson": _L + "counts:Poisson",
        "negative_binomial": _L + "counts:NegativeBinomial",
        "quantiles": _L + "quantiles:QuantileRegression",
    },
    ("from_data", "from_dict", "predictive"),
)
_P = "ensemble.priors.families:"
PRIORS = Kind(
    "prior",
    "prior",
    {
        "normal": _P + "Normal",
        "laplace": _P + "Laplace",
        "student_t": _P + "StudentT",
        "correlated_normal": _P + "CorrelatedNormal",
    },
)
_O = "ensemble.methods.optimizers:"
OPTIMIZERS = Kind("optimizer", "optimizer", {one: _O + one for one in ("sgd", "adam", "adamw")})
SCHEDULES = Kind(
    "lr_schedule",
    "schedule",
    {one: _O + one for one in ("constant", "cosine", "warmup_cosine")},
)
_D = "ensemble.random_walk.densities:"
DENSITIES = Kind(
    "density",
    "density",
    {one: _D + one.upper() for one in ("gaussian_mixture", "correlated_gaussian")},
    ("start", "check", "logdensity_fn", "num_dims"),
)
AUGMENTATIONS = Kind("augment.function", "augmentation", {})
CALLBACKS = Kind("on_metrics", "callback", {})
TASKS = Kind(
    "task",
    "task",
    {
        "supervised": "ensemble.tasks.supervised:create",
        "distillation": "ensemble.tasks.distillation:create",
        "factorisation": "ensemble.recommendation.factorisation:create",
        "numpyro": "ensemble.numpyro_models.sample:create_task",
        "density": "ensemble.random_walk.method:create_task",
    },
)
