"""Count what makes the source tree hard to read, per package, against ceilings that only fall.

    python tools/tree.py           # the table
    python tools/tree.py --check   # fail if a count is above its ceiling (part of `make lint`)
    python tools/tree.py --lower   # after a clean-up: lower the ceilings to the present counts

A feature that needs more lines raises its ceiling by hand in tree.json, in a commit that says why.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, CEILINGS = ROOT / "src", ROOT / "tools" / "tree.json"
TOTAL = "total"
COLUMNS = {
    "files": "Python files",
    "lines": "their lines",
    "single_importer": "modules that a single other module imports",
    "odd_docstrings": "docstrings that begin with Of, What, Whether, ...",
}
ODD_BEGINNINGS = ("Of ", "What ", "Whether ", "Where ", "Who ", "How ", "Which ")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Counts = dict[str, dict[str, int]]


def module_name(path: Path, source: Path) -> str:
    """Dotted name of a source file; a package's is that of its folder."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """First two parts of a module's name: its package, or a module beside the packages."""
    return ".".join(module.split(".")[:2])


def imported_by(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    """Modules of ours that a file imports, at its top or inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                if inner in modules or node.module in modules:
                    yield inner if inner in modules else node.module


def odd_docstrings(tree: ast.Module) -> int:
    """Number of docstrings that do not begin with a verb or a noun."""
    docstrings = (ast.get_docstring(n) or "" for n in ast.walk(tree) if isinstance(n, DOCUMENTED))
    return sum(text.startswith(ODD_BEGINNINGS) for text in docstrings)


def count_tree(source: Path = SOURCE) -> Counts:
    """All counts of each package, and their totals."""
    paths = {module_name(path, source): path for path in source.rglob("*.py")}
    texts = {module: path.read_text(encoding="utf-8") for module, path in paths.items()}
    importers: dict[str, set[str]] = defaultdict(set)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for module, text in texts.items():
        tree = ast.parse(text)
        for imported in imported_by(tree, {*texts}):
            importers[imported] |= {module} - {imported}
        for row in (package_of(module), TOTAL):
            counts[row]["files"] += 1
            counts[row]["lines"] += len(text.splitlines())
            counts[row]["odd_docstrings"] += odd_docstrings(tree)
    for module, by in importers.items():
        is_package = any(other.startswith(f"{module}.") for other in texts)
        for row in (package_of(module), TOTAL):
            counts[row]["single_importer"] += len(by) == 1 and not is_package
    return {row: {name: counts[row][name] for name in COLUMNS} for row in sorted(counts)}


def excesses(counts: Counts, ceilings: Counts) -> list[str]:
    """One sentence for each count above its ceiling; a new package counts in the total."""
    return [
        f"{row}: {counts[row][name]} {COLUMNS[name]}, at most {ceiling}"
        for row, limits in ceilings.items()
        if row in counts
        for name, ceiling in limits.items()
        if counts[row][name] > ceiling
    ]


def lowered(counts: Counts, ceilings: Counts) -> Counts:
    """Ceilings of the packages that exist, none above an earlier one."""
    return {
        row: {name: min(n, ceilings.get(row, {}).get(name, n)) for name, n in numbers.items()}
        for row, numbers in counts.items()
    }


def show(counts: Counts, ceilings: Counts) -> None:
    """Print every count, with its ceiling where that differs."""
    print(f"{'':28}" + "".join(f"{name:>20}" for name in COLUMNS))
    for row, numbers in counts.items():
        cells = [
            f"{n} of {most}" if (most := ceilings.get(row, {}).get(name, n)) != n else f"{n}"
            for name, n in numbers.items()
        ]
        print(f"{row:28}" + "".join(f"{cell:>20}" for cell in cells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail above a ceiling")
    parser.add_argument("--lower", action="store_true", help="lower the ceilings to the counts")
    options = parser.parse_args()
    counts = count_tree()
    ceilings = json.loads(CEILINGS.read_text()) if CEILINGS.exists() else {}
    above = excesses(counts, ceilings)
    if options.lower:
        text = json.dumps(lowered(counts, ceilings), indent=1)
        CEILINGS.write_text(text + "\n", encoding="utf-8")
    elif not options.check:
        show(counts, ceilings)
    for sentence in above:
        print(f"tools/tree.py: {sentence}", file=sys.stderr)
    return 1 if above and (options.check or options.lower) else 0


if __name__ == "__main__":
    sys.exit(main())
