"""The public names: one table, one stub that agrees with it, and no torch before it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import snip

WITHOUT_TORCH = "assert 'torch' not in sys.modules, sorted(sys.modules)"


def fresh(code: str) -> str:
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_stub_has_the_names_of_the_table() -> None:
    stub = Path(snip.__file__).with_suffix(".pyi")
    assert {
        alias.asname: node.module
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    } == snip._HOMES


def test_every_name_resolves_in_a_fresh_process() -> None:
    code = "import snip\nfor n in snip.__all__: print(n, getattr(snip, n) is not None)"
    assert fresh(code).split("\n")[:-1] == [f"{name} True" for name in snip.__all__]
    starred = fresh("from snip import *\nprint(prune.__name__, compact.__name__, Scoring())")
    assert starred.startswith("prune snip.export.compact Scoring(")


def test_names_are_listed_before_they_are_used() -> None:
    assert set(snip.__all__) <= set(dir(snip))
    assert "Scoring" in snip.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(snip, "prunes")


def test_neither_the_import_nor_the_version_loads_torch() -> None:
    # That `snip --help` does not either stands in test_cli.py.
    fresh(f"import snip\nsnip.InputError, snip.__version__\n{WITHOUT_TORCH}")
    fresh(f"from snip.cli import main\nassert main(['--version']) == 0\n{WITHOUT_TORCH}")
