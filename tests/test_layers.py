"""Who may import whom. A new edge is a visible line in this table."""

from __future__ import annotations

import ast
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

CONTRACTS = {"types", "errors", "tools", "model", "environment", "agent", "deadline", "rollout", "taskset", "testing"}

TABLE = {
    "types": "",
    "errors": "types",
    "tools": "types errors",
    "model": "types errors",
    "environment": "types errors tools model",
    "agent": "types errors tools model environment",
    "deadline": "",
    "rollout": "types errors tools model environment agent deadline",
    "cores": "",
    "files": "errors",
    "taskset": "types errors",
    "testing": "types errors tools model environment agent rollout taskset",
    # The public names: the contracts, and what stands above them only lazily.
    "": "contracts stream",
    "profiling": "errors files",
    "verification": "contracts cores profiling",
    "net": "errors",
    # Plugins, one a file or a folder, never each other; model backends share what is in their folder.
    "models": "contracts verification cores net",
    "agents.*": "contracts verification",
    "environments.*": "contracts verification",
    "store": "types errors files",
    "quality": "types",
    "collection": "contracts store quality cores files profiling",
    # A stand-in for a model speaks as a backend does, and a row is the same over HTTP as on disk.
    "serve": "contracts net store models",
    "config": "types errors model",
    "data": "files contracts store quality config",
    "plugins": "contracts models agents environments",
    "local": "contracts collection store",
    "instances": "contracts config plugins store",
    "launch": "contracts config instances collection store verification local net serve profiling",
    "stream": "contracts config collection store verification local",
    # A process that serves does as well.
    "services": "contracts config plugins collection quality store files cores net serve instances launch local "
    "engines verification profiling",
    # A worker process calls `launch`, as the command does.
    "engines": "contracts collection store instances launch local profiling",
    "cli": "contracts verification models store quality collection config data plugins instances launch engines "
    "services cores net serve profiling",
}

LAZILY = {("taskset", "datasets"), ("taskset", "zstandard")}
"""What a core module imports besides the standard library and msgspec, where it is needed."""

Edge = tuple[str, str]


def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name without `rollmill.`; the package itself is ''."""
    found = {}
    for path in sorted((SRC / "rollmill").rglob("*.py")):
        parts = path.relative_to(SRC / "rollmill").with_suffix("").parts
        if "tests" not in parts:
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text("utf-8"), str(path))
    return found


def imported(tree: ast.Module) -> Iterator[tuple[str, str | None]]:
    """Everything a module imports, wherever the import stands: the module, and the name taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield from ((node.module or "", alias.name) for alias in node.names)


MODULES = modules()


def ours(module: str, name: str | None) -> str | None:
    """The module of this package that an import reaches, None for everybody else's."""
    if module.partition(".")[0] != "rollmill":
        return None
    module = module.removeprefix("rollmill").removeprefix(".")
    inner = f"{module}.{name}".removeprefix(".")
    return inner if inner in MODULES else module


EDGES: set[Edge] = {
    (importer, target)
    for importer, tree in MODULES.items()
    for module, name in imported(tree)
    if (target := ours(module, name)) is not None
}


def unit(module: str) -> str:
    """The row of the table that speaks for a module."""
    first, _, rest = module.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if rest and f"{first}.*" in TABLE else first


def allowed(importer: str) -> set[str]:
    first = importer.partition(".")[0]
    words = set(TABLE.get(importer, TABLE.get(f"{first}.*", "")).split())
    # Whoever may import the contracts may take them from `rollmill` itself.
    return words | CONTRACTS | {""} if "contracts" in words else words


def test_every_module_has_a_row_and_every_row_a_module():
    packages = {"agents", "environments"}
    rows = {unit(module).partition(".")[0] for module in MODULES}
    assert rows == {row.removesuffix(".*") for row in TABLE}, "the table and the tree differ"
    assert packages <= rows


@pytest.mark.parametrize("importer", sorted({unit(module) for module in MODULES}), ids=lambda name: name or "rollmill")
def test_imports_only_what_the_table_allows(importer: str):
    wrong = {
        f"{source or 'rollmill'} imports {target or 'rollmill'}"
        for source, target in EDGES
        if unit(source) == importer and unit(target) != importer and unit(target) not in allowed(importer)
    }
    assert not wrong, f"not in the table of {__file__}: {'; '.join(sorted(wrong))}"


def test_nobody_imports_cli():
    assert not {edge for edge in EDGES if unit(edge[1]) == "cli" and unit(edge[0]) != "cli"}


@pytest.mark.parametrize("name", ["", *sorted(CONTRACTS)], ids=lambda name: name or "rollmill")
def test_core_needs_the_standard_library_and_msgspec_only(name: str):
    tops = {module.partition(".")[0] for module, _ in imported(MODULES[name])}
    others = tops - sys.stdlib_module_names - {"msgspec", "rollmill", "__future__"}
    assert not {top for top in others if (name, top) not in LAZILY}


def test_no_module_imports_itself_by_a_detour():
    # `rollmill` itself is left out: it only gives names, and those above the contracts lazily.
    graph: dict[str, set[str]] = {name: set() for name in MODULES if name}
    for importer, target in EDGES:
        if importer and target and importer != target:
            graph[importer].add(target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"a cycle: {' <- '.join(error.args[1])}")


def test_nothing_is_pickled():
    # What is unpickled can do anything; processes and clients speak JSON and msgpack.
    found = {
        f"{name} imports {module}"
        for name, tree in MODULES.items()
        for module, _ in imported(tree)
        if module.partition(".")[0] in ("pickle", "marshal", "shelve", "dill", "cloudpickle")
    }
    assert not found
