"""Functions are short enough to be read in one go, as CONTRIBUTING.md promises."""

import ast
from pathlib import Path

import snip

LONGEST_FUNCTION = 60  # lines
SOURCE = Path(snip.__file__).parent


def test_no_function_is_too_long() -> None:
    found = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[f"{path.name}: {node.name}"] = lines_of(node)
    assert {name: count for name, count in found.items() if count > LONGEST_FUNCTION} == {}


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Of the code: what a public function says of itself may be long."""
    said = ast.get_docstring(node, clean=False) or ""
    return (node.end_lineno or 0) - node.lineno + 1 - len(said.splitlines())
