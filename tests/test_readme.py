"""The README is short, its Python runs as it stands, and its shell commands name what exists."""

import pytest
from markdown_pages import (
    README,
    MyModule,
    broken_links,
    check_training_command,
    names_of_a_reader,
    python_blocks,
    training_commands,
)

from ensemble import networks, registry


def test_it_is_short():
    assert len(README.read_bytes()) <= 8_000
    assert [line for line in README.read_text().splitlines() if len(line) > 120] == []


@pytest.mark.check
def test_the_python_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry.NETWORKS, "registered", dict(registry.NETWORKS.registered))
    (block,) = python_blocks(README)
    namespace = names_of_a_reader()
    exec(block, namespace)
    assert isinstance(networks.create("mine", 3).module, MyModule)
    assert namespace["p"].probs.shape == (7, 4)


@pytest.mark.parametrize("command", training_commands(README) or ["none"])
def test_the_training_commands_are_valid(command):
    check_training_command(command)


def test_every_link_into_the_repository_leads_somewhere():
    assert "](docs/" in README.read_text()
    assert broken_links(README) == []
