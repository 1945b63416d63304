"""The documentation site, which `make docs` builds from the pages where they lie.

The pages are Markdown for the code host first. What only the site needs is made here: its contents
are the tables of docs/README.md, and links to files that are no pages lead to the repository.
"""

import os
import pathlib
import re
import tomllib

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

DOCS = pathlib.Path(__file__).resolve().parent
ROOT = DOCS.parent
REPOSITORY = os.environ.get("DOCS_REPOSITORY_URL", "")
"""Where the repository can be browsed, such as https://HOST/NAME/blob/COMMIT: only the one who
publishes the site knows it. Without it, links to files outside of docs/ are plain text."""

project = "Flax ensembles"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_nb"]
exclude_patterns = ["_build", "README.md"]  # docs/index.md includes README.md.

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # Links to headings are those of the code host.

nb_execution_mode = "off"  # tests/test_notebook.py executes it, and compares what is stored.

html_theme = "furo"
html_title = f"{project} {version}"
html_show_copyright = False
html_copy_source = False


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
    if page == "index":
        for caption, entries in sections():
            source[0] += toctree(entries, f"caption: {caption}", "hidden:")
    if page == "decisions/README":
        source[0] += toctree(["[0-9]*"], "glob:", "maxdepth: 1")


class LinksToTheRepository(SphinxPostTransform):
    """Links of a page to a folder of the repository, or to a file outside of docs/."""

    default_priority = 5  # Before MyST's resolver, which knows pages only.

    def run(self) -> None:
        for node in list(self.document.findall(pending_xref)):
            path = (DOCS / node["refdoc"]).parent / node["reftarget"]
            if node["refdomain"] == "doc" and node["reftarget"] not in self.env.all_docs:
                path = pathlib.Path(f"{node['reftarget']}.md")  # A page that is not of the site.
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
    app.add_post_transform(LinksToTheRepository)
