"""What the tests of the README and of the pages under docs/ read out of them."""

import re

import flax.linen as nn
import numpy as np
from conftest import ROOT

from ensemble.config.build import all_fields

README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", *DOCS]


def blocks(page, language=r"\w*"):
    """Pairs of language and text of a page's fenced blocks."""
    return re.findall(rf"^```({language})\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def python_blocks(page):
    return [text for _, text in blocks(page, "python")]


def entries(page, heading):
    """The names in the first column of the tables below a heading of a page."""
    (section,) = re.findall(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page.read_text(), re.DOTALL | re.MULTILINE
    )
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall("`([^`]+)`", cell)}


def of_evaluations():
    """The entries of an evaluation that the page on workdirs describes."""
    return entries(ROOT / "docs" / "workdirs.md", "evaluation/report.json")


def training_commands(page):
    """Every command of a page that trains, each on one line."""
    text = page.read_text().replace("\\\n", " ")
    return re.findall(r"^(?:\.venv/bin/)?ensemble train .*$", text, re.MULTILINE)


def check_training_command(command):
    """The configuration is bundled or the reader's; keys are known, or of the reader's piece."""
    config = re.search(r"--config=(\S+?)(:\w+)?(\s|$)", command)
    assert config, command
    assert config[1] == "mine.py" or (ROOT / "configs" / f"{config[1]}.py").is_file(), command
    keys = set(re.findall(r"--config\.(\S+?)=", command))
    assert ".py:" in command or keys <= set(all_fields()), command


def prose(page):
    """The lines of a page outside of its fenced blocks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return text.splitlines()


def broken_links(page):
    """Links of a page into the repository, pictures too, that lead nowhere."""
    links = re.findall(r"\]\((?!http)([^)#]+)\)", "\n".join(prose(page)))
    return [link for link in links if not (page.parent / link).exists()]


class MyModule(nn.Module):
    """The module that a reader is expected to have."""

    num_classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes)(x.reshape((len(x), -1)))


def names_of_a_reader():
    """What a reader of the pages is expected to have."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 200)
    inputs = (labels[:, None] + rng.normal(size=(200, 5))).astype(np.float32)
    return {
        "inputs": inputs,
        "labels": labels,
        "new_inputs": inputs[:7],
        "X_train": inputs[:150],
        "y_train": np.array(list("abcd"))[labels[:150]],
        "X_test": inputs[150:],
        "y_test": np.array(list("abcd"))[labels[150:]],
        "MyModule": MyModule,
    }


def images_of_a_reader():
    """The same where the page is about images."""
    images = np.random.default_rng(0).random((16, 28, 28, 1), np.float32)
    return {"images": images, "labels": np.arange(16) % 10}
