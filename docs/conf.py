"""The documentation site, which `make docs` builds from the pages where they lie.

The pages are Markdown for the code host first. What only the site needs is made here: its contents
are the tables of docs/README.md, and links to files that are no pages lead to the repository.
"""

import os
import pathlib
import re
import sys
import tomllib

from docutils import nodes
from numpy.typing import ArrayLike
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.typing import stringify_annotation

DOCS = pathlib.Path(__file__).resolve().parent
ROOT = DOCS.parent
REPOSITORY = os.environ.get("DOCS_REPOSITORY_URL", "")
"""Where the repository can be browsed, such as https://HOST/NAME/blob/COMMIT: only the one who
publishes the site knows it. Without it, links to files outside of docs/ are plain text."""

project = "Flax ensembles"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

sys.path.insert(0, str(ROOT))  # The reference is read from the package's docstrings.
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = [
    "_build",
    "README.md",  # docs/index.md includes it.
    "decisions",  # They are read in the repository.
]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # Links to headings are those of the code host.

nb_execution_mode = "off"  # tests/test_notebook.py executes it, and compares what is stored.

default_role = "py:obj"  # Names that docstrings quote are links where they are of the reference.
nitpick_ignore_regex = [
    ("py:obj", ".*"),
    # Types that the reference does not list, and aliases in annotations that are text.
    ("py:class", r"ensemble\..*|sharded_plate|Floats|Bounds|Arrays?|np\..*|numpy\._typing\..*"),
    ("py:class", r"(collections\.abc|pandas)\..*"),
    ("py:class", r"(jax\._src|jax\.nn|flax)\..*"),
    ("py:exc", "NotFittedError"),
]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
napoleon_attr_annotations = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

highlight_language = "none"  # Blocks without a language are commands, or what they print.
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_theme_options = {"light_css_variables": {"content-width": "56em"}}
html_title = f"{project} {version}"
html_show_copyright = False
html_copy_source = False


PROJECT = [
    f"Repository <{REPOSITORY.partition('/blob/')[0]}>",
    f"Changelog <{REPOSITORY}/CHANGELOG.md>",
    f"Contributing <{REPOSITORY}/CONTRIBUTING.md>",
    f"Decisions <{REPOSITORY}/docs/decisions/README.md>",
    f"Licence <{REPOSITORY}/LICENSE>",
]
"""Entries of the menu that lead to the repository."""


def sections() -> list[tuple[str, list[str]]]:
    """The headings of docs/README.md, each with the pages that its table links to."""
    parts = re.split(r"^## (.*)\n", (DOCS / "README.md").read_text(), flags=re.MULTILINE)
    links = re.compile(r"^\| \[[^]]+\]\(([\w/]+)\.\w+\)", re.MULTILINE)
    return [(parts[i], links.findall(parts[i + 1])) for i in range(1, len(parts), 2)]


def toctree(entries: list[str], *options: str) -> str:
    """A table of contents; the code host would show it as text, so pages do not have it."""
    return "\n".join(["\n```{toctree}", *(f":{one}" for one in options), "", *entries, "```\n"])


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Appends the contents that only the site has."""
    if page != "index":
        return
    for caption, entries in [*sections(), *[("Project", PROJECT)] * bool(REPOSITORY)]:
        source[0] += toctree(entries, f"caption: {caption}", "hidden:")


_CODE = re.compile(r"(?<=:)(\n\n(?: {4}.*\n|\n)+)")
_QUOTED_OR_SPECIAL = re.compile(r"`[^`]*`|[|*]")


def read_as_plain_text(app: Sphinx, what: str, name: str, value, options, lines: list[str]) -> None:
    """Makes reStructuredText of a docstring, in which indented blocks are code and | is itself."""
    parts = _CODE.split("\n".join([*lines, ""]))
    for i in range(0, len(parts), 2):
        parts[i] = _QUOTED_OR_SPECIAL.sub(
            lambda found: found[0] if found[0].startswith("`") else f"\\{found[0]}", parts[i]
        ) + ":" * (i + 1 < len(parts))
    text = re.sub(r"(?m)^( *(?:Returns|Yields):\n +)(?=\S)", r"\1: ", "".join(parts))  # No type.
    text = f": {text}" if what in ("attribute", "data", "property") else text
    lines[:] = text.splitlines()


def skip_fields(app: Sphinx, what: str, name: str, value, skip: bool, options) -> bool | None:
    """Leaves out the fields of named tuples, which the docstring of the tuple lists."""
    return True if str(getattr(value, "__doc__", "")).startswith("Alias for field") else None


_NUMPY, _PYTHON = "https://numpy.org/doc/stable/reference", "https://docs.python.org/3/library"
ELSEWHERE = {
    "ArrayLike": f"{_NUMPY}/typing.html#numpy.typing.ArrayLike",
    "NDArray": f"{_NUMPY}/typing.html#numpy.typing.NDArray",
    "blackjax.mcmc.metrics.Metric": "https://blackjax-devs.github.io/blackjax",
    "collections.abc.Callable": f"{_PYTHON}/collections.abc.html#collections.abc.Callable",
    "collections.abc.Mapping": f"{_PYTHON}/collections.abc.html#collections.abc.Mapping",
    "collections.abc.Sequence": f"{_PYTHON}/collections.abc.html#collections.abc.Sequence",
    "flax.linen.module.Module": "https://flax-linen.readthedocs.io",
    "jax._src.mesh.Mesh": "https://docs.jax.dev/en/latest/jax.sharding.html#jax.sharding.Mesh",
    "jax.Array": "https://docs.jax.dev/en/latest/_autosummary/jax.Array.html",
    "jax.jaxlib._jax.Array": "https://docs.jax.dev/en/latest/_autosummary/jax.Array.html",
    "jaxlib._jax.Device": "https://docs.jax.dev/en/latest/_autosummary/jax.Device.html",
    "ml_collections.config_dict.config_dict.ConfigDict": "https://ml-collections.readthedocs.io",
    "numpy._typing._array_like.NDArray": f"{_NUMPY}/typing.html#numpy.typing.NDArray",
    "numpy.bool": f"{_NUMPY}/arrays.scalars.html#numpy.bool",
    "numpy.dtype": f"{_NUMPY}/generated/numpy.dtype.html",
    "numpy.float64": f"{_NUMPY}/arrays.scalars.html#numpy.float64",
    "numpy.int64": f"{_NUMPY}/arrays.scalars.html#numpy.int64",
    "numpy.ndarray": f"{_NUMPY}/generated/numpy.ndarray.html",
    "numpy.random.mtrand.RandomState": f"{_NUMPY}/random/legacy.html#numpy.random.RandomState",
    "numpyro.distributions.distribution.Distribution": "https://num.pyro.ai/en/stable",
    "os.PathLike": f"{_PYTHON}/os.html#os.PathLike",
}
"""Types of other projects in signatures, and their pages: the build uses no network."""


def link_elsewhere(app: Sphinx, env, node: pending_xref, contnode: nodes.Node) -> nodes.Node | None:
    """A link to another project's page."""
    address = ELSEWHERE.get(node.get("reftarget", ""))
    if address is None:
        return None
    return nodes.reference("", "", contnode, refuri=address, internal=False)


_ARRAY_LIKE = stringify_annotation(ArrayLike, "smart")
_NDARRAY = re.compile(r"~numpy\.ndarray\[tuple\[~typing\.Any, \.\.\.], ~numpy\.dtype\[([^]]*)]]")


_DEFAULTS = (
    (re.compile(r"<function (?:[\w.<>]*\.)?(\w+)(?: at \w+)?>"), r"\1"),
    (re.compile(r"<class '([\w.]+)'>"), r"\1"),
    (re.compile(r"<(?:factory|[\w. ]+ object(?: at \w+)?)>"), "..."),
)
"""Defaults that are no Python: Sphinx could not read a signature with one, nor link its types."""


def shorten_types(app: Sphinx, what: str, name: str, value, options, arguments, returned):
    """Writes NumPy's aliases of types as they are written in the code, and defaults as Python."""

    def shorten(text: str | None) -> str | None:
        if text is None:
            return None
        text = _NDARRAY.sub(r"NDArray[\1]", text.replace(_ARRAY_LIKE, "ArrayLike"))
        for pattern, words in _DEFAULTS:
            text = pattern.sub(words, text)
        return re.sub(r"NDArray\[~[\w.]*_ScalarT]", "NDArray", text)

    return shorten(arguments), shorten(returned)


def drop_links_back(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Removes links from code to the reference: those of a name with two modules lead nowhere."""
    if page.startswith("_modules/"):
        context["body"] = re.sub(r'<a class="viewcode-back".*?</a>', "", context["body"])


class LinksToTheRepository(SphinxPostTransform):
    """Links of a page to a folder of the repository, or to a file outside of docs/."""

    default_priority = 5  # Before MyST's resolver, which knows pages only.

    def run(self) -> None:
        for node in list(self.document.findall(pending_xref)):
            if node["refdomain"] == "py":
                continue
            path = (DOCS / node["refdoc"]).parent / node["reftarget"]
            if node["refdomain"] == "doc" and node["reftarget"] not in self.env.all_docs:
                path = DOCS / f"{node['reftarget']}.md"  # A page that is not of the site.
            elif node["reftype"] != "myst" or node["refdomain"] == "doc":
                continue
            if not path.exists():
                continue
            address = f"{REPOSITORY}/{path.resolve().relative_to(ROOT)}"
            link = nodes.reference(refuri=address, internal=False) if REPOSITORY else nodes.inline()
            link += node.children
            node.replace_self(link)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", read_as_plain_text, priority=100)  # Before napoleon.
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-signature", shorten_types)
    app.connect("missing-reference", link_elsewhere)
    app.connect("html-page-context", drop_links_back)
    app.add_post_transform(LinksToTheRepository)
