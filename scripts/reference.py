"""Writes pages from docstrings, names, metrics, configurations: `python -m scripts.reference`.

They are plain Markdown, so that the code host shows them as the site does.
"""

import contextlib
import importlib
import inspect
import pathlib
import re
import textwrap
from typing import Any

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"

API = {
    "Train, sample, load, evaluate": (
        *("ensemble.train", "ensemble.sample", "ensemble.distill", "ensemble.load"),
        *("ensemble.evaluate", "ensemble.default_config"),
    ),
    "What they return": (
        *("ensemble.run.result.Result", "ensemble.run.sample.Samples"),
        *("ensemble.predictor.Predictor", "ensemble.likelihoods.label_prediction.Prediction"),
        "ensemble.likelihoods.number_prediction.NumberPrediction",
        "ensemble.likelihoods.quantile_prediction.QuantilePrediction",
        "ensemble.evaluation.evaluation.Evaluation",
    ),
    "Errors": ("ensemble.UserError", "ensemble.RunFailed", "ensemble.Interrupted"),
    "scikit-learn": ("ensemble.EnsembleClassifier", "ensemble.EnsembleRegressor"),
    "Networks and densities of your own": (
        *("ensemble.networks", "ensemble.networks.register", "ensemble.networks.names"),
        *("ensemble.networks.create", "ensemble.networks.on_features"),
        *("ensemble.networks.from_nnx", "ensemble.networks.from_functions"),
        *("ensemble.densities", "ensemble.densities.register", "ensemble.densities.names"),
        *("ensemble.densities.create", "ensemble.densities.Density"),
    ),
    "One file that runs without the package": ("ensemble.export.export",),
    "One member per device, by hand": (
        *("ensemble.create_train_state", "ensemble.apply_model", "ensemble.update_model"),
    ),
    "Models split over devices": (
        *("ensemble.sharding.mesh.create_mesh", "ensemble.tasks.sharded_distributions.Sharded"),
        "ensemble.tasks.sharded_distributions.sharded_plate",
        *("ensemble.tasks.sharded_model.make_model", "ensemble.tasks.sharded_rows.check_rows"),
        "ensemble.methods.mcmc.leafwise_metric.leafwise_metric",
    ),
}
"""What programs of others use, by heading."""
SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$")
PICTURES = {
    "clutter_ensemble": (
        (
            "clutter.png",
            "Eight members against their ensemble, its calibration, and its most and least certain "
            "images",
        ),
    ),
    "digits_ensemble": (
        (
            "digits_members.png",
            "Accuracy and NLL of eight members and of their ensemble on digits",
        ),
        ("digits_uncertain.png", "The sixteen least certain digits"),
    ),
    "digits_logreg_hmc": (("digits_traces.png", "The four chains, draw by draw"),),
    "movielens_hmc": (
        (
            "movielens_titles.png",
            "What the draws recommend first to the user with most and the user with fewest watches",
        ),
    ),
    "mixture_rwm": (
        ("rwm_chains.png", "Seconds over chains: NumPy, JAX and BlackJAX beside this project"),
    ),
}
"""Of configurations: files of docs/images, and what they show."""
METRICS = {
    "scores": "Classes",
    "mixture": "The average of members, and their disagreement",
    "calibration": "Calibration",
    "abstention": "Abstention",
    "detection": "Out of distribution",
    "regression": "Numbers",
    "number_calibration": "Calibration of numbers",
    "censoring": "Censored targets",
    "ranking": "Recommendations",
    "score_intervals": "Intervals of scores",
    "analytic_intervals": "Intervals by formula",
    "bootstrap": "Intervals by resampling",
    "jackknife": "Comparisons",
    "grouped": "Intervals over groups",
    "tails": "Heavy tails",
}


def markdown(text: str) -> str:
    """A Google-style docstring as Markdown; its sections become lists."""
    lines, section, found = inspect.cleandoc(text).splitlines(), "", []
    for line in lines:
        if heading := SECTION.match(line):
            section = heading[1]
            found += [f"*{section}*", ""]
        elif section and line.startswith("    "):
            found.append(_entry(line[4:], section))
        else:
            section = "" if line and not line.startswith(" ") else section
            found.append(line)
    return "\n".join(found).strip()


def _entry(line: str, section: str) -> str:
    """A line of a section; the name that it begins with is code."""
    named = re.match(r"(\*{0,2}[\w.]+): ", line)
    if line.startswith(" ") or section in ("Returns", "Yields") or not named:
        return line.strip() if section in ("Returns", "Yields") else f"  {line.strip()}"
    return f"- `{named[1]}`: {line[named.end() :]}"


def signature(name: str, value: Any) -> str:
    """How something is called, without types."""
    parameters = inspect.signature(value).parameters.values()
    bare = [str(one.replace(annotation=inspect.Parameter.empty)) for one in parameters]
    # Of a module or function that is a default, the name.
    bare = [re.sub(r"<(?:module|function) '?([\w.]+).*>$", r"\1", one) for one in bare]
    return f"{name}({', '.join(one for one in bare if one != 'self')})"


def find(path: str) -> Any:
    """What a dotted path names."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            found: Any = importlib.import_module(".".join(parts[:end]))
            for name in parts[end:]:
                found = getattr(found, name)
            return found
    raise LookupError(path)


def methods(value: Any) -> list[tuple[str, Any]]:
    """The public methods and properties of a class that are the package's own ideas."""
    theirs = {name for one in value.__mro__ if not _is_ours(one) for name in vars(one)}
    return [
        (name, one)
        for owner in reversed(value.__mro__)
        if _is_ours(owner)
        for name, one in vars(owner).items()
        if not name.startswith("_") and name not in theirs
        if inspect.isfunction(one) or isinstance(one, property)
    ]


def _is_ours(owner: type) -> bool:
    return owner.__module__.startswith("ensemble.")


def docstring(value: Any) -> str:
    """Its own, not one that it inherits."""
    return value.__doc__ or ""


def entry(path: str, level: int = 3) -> str:
    """The section of one name."""
    value, name = find(path), path.rpartition(".")[2]
    parts = [f"{'#' * level} `{path if inspect.ismodule(value) else name}`"]
    if inspect.isclass(value) or callable(value):
        where = path.rpartition(".")[0]
        is_plain = inspect.isclass(value) and issubclass(value, BaseException | dict)
        called = name if is_plain else signature(name, value)
        parts.append(f"```text\nfrom {where} import {name}\n{wrapped(called)}\n```")
    parts.append(markdown(docstring(value)))
    if inspect.isclass(value):
        for title, one in methods(value):
            called = title if isinstance(one, property) else signature(title, one)
            parts.append(f"**`{called}`**\n\n{markdown(docstring(one))}")
    return "\n\n".join(parts)


def wrapped(called: str) -> str:
    """A call on lines of at most 100 columns."""
    return textwrap.fill(called, 100, subsequent_indent="    ", break_on_hyphens=False)


def api() -> str:
    """The page docs/api.md."""
    parts = [
        "# Names",
        "What programs use. Shapes are in brackets, with M members, N examples, C classes, "
        "D devices or targets.",
        "The page is written from docstrings by `python -m scripts.reference`.",
    ]
    for heading, paths in API.items():
        parts += [f"## {heading}", *map(entry, paths)]
    return "\n\n".join(parts) + "\n"


def scored(module: str) -> list[str]:
    """The public functions of a module of `ensemble.metrics`, in their order."""
    path = f"ensemble.metrics.{module}"
    return [
        f"{path}.{name}"
        for name, one in vars(find(path)).items()
        if inspect.isfunction(one) and one.__module__ == path and not name.startswith("_")
    ]


def metrics() -> str:
    """The page docs/metrics.md."""
    parts = [
        "# Metrics",
        markdown(docstring(find("ensemble.metrics"))),
        "The page is written from docstrings by `python -m scripts.reference`.",
    ]
    for module, heading in METRICS.items():
        parts += [f"## {heading}", *map(entry, scored(module))]
    return "\n\n".join(parts) + "\n"


def configs() -> list[str]:
    """The names of the bundled configurations."""
    return sorted(one.stem for one in (DOCS.parent / "configs").glob("[a-z]*.py"))


def gallery() -> str:
    """The page docs/gallery.md."""
    parts = [
        "# Gallery of configurations",
        "Each is one file of `configs/`. Its text says the command, the hardware, the time and "
        "the result,\nor that these were not measured. `--config=NAME` finds them where only the "
        "package is installed.",
        "The page is written from docstrings by `python -m scripts.reference`.",
    ]
    for name in configs():
        parts.append(f"## {name}")
        parts += [f"![{text}](images/{file})" for file, text in PICTURES.get(name, ())]
        parts.append(markdown(docstring(find(f"ensemble.configs.{name}"))))
    return "\n\n".join(parts) + "\n"


PAGES = {"api.md": api, "metrics.md": metrics, "gallery.md": gallery}


if __name__ == "__main__":
    for page, text in PAGES.items():
        (DOCS / page).write_text(text())
