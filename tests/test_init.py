"""The public names."""

import ast
from importlib import import_module
from pathlib import Path

import rollmill as rm


def test_every_public_name_is_there() -> None:
    assert rm.__all__ == sorted(rm.__all__)
    assert all(getattr(rm, name) is not None for name in rm.__all__)


def test_a_name_that_is_not_there_is_an_ordinary_mistake() -> None:
    assert not hasattr(rm, "colect")


def test_a_name_of_above_means_the_same_before_and_after_it_was_used() -> None:
    assert rm.collect is rm.collect
    assert callable(rm.collect)


def test_a_checker_and_an_interpreter_know_the_same_names() -> None:
    tree = ast.parse(Path(str(rm.__file__)).read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    named = {(alias.name, str(node.module)) for node in imports for alias in node.names if node.module != "importlib"}
    assert sorted(name for name, _ in named) == rm.__all__
    assert all(getattr(rm, name) is getattr(import_module(module), name) for name, module in named)
