"""Whatever the package imports is declared in pyproject.toml: always needed, or in an extra."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from project_file import PROJECT

import snip

SOURCE = Path(snip.__file__).parent


def distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s\[<>=!~;]", text, maxsplit=1)[0].lower() for text in requirements}


def imports(tree: ast.AST, *, inner: bool) -> Iterator[str]:
    """Top-level names of the packages imported: always, or (`inner`) only once they are needed."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif inner or not isinstance(node, (ast.FunctionDef, ast.If)):
            yield from imports(node, inner=inner)


def found(*, inner: bool) -> dict[str, set[str]]:
    """Package -> the files that import it; neither Python's own nor this one."""
    packages: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for name in imports(ast.parse(path.read_text()), inner=inner):
            if name != "snip" and name not in sys.stdlib_module_names:
                packages.setdefault(name, set()).add(str(path.relative_to(SOURCE)))
    return packages


@pytest.mark.parametrize("inner", [False, True])
def test_every_import_is_declared(inner: bool) -> None:
    declared = distributions(PROJECT["dependencies"])
    if inner:  # an import inside a function may be of a package that only an extra brings
        for extra in ("data", "onnx", "tensorboard"):
            declared |= distributions(PROJECT["optional-dependencies"][extra])
    known = packages_distributions()
    undeclared = {
        name: files
        for name, files in found(inner=inner).items()
        if not {owner.lower() for owner in known.get(name, [name])} & declared
    }
    assert undeclared == {}


def test_every_dependency_is_imported() -> None:
    known = packages_distributions()
    used = {owner.lower() for name in found(inner=True) for owner in known.get(name, [name])}
    assert distributions(PROJECT["dependencies"]) <= used
