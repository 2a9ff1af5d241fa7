"""Libraries that are not installed: one sentence each, with the line that installs them."""

import ast
import importlib
import json
import re
import sys
from pathlib import Path

import pytest
from needed import needed
from project_file import PROJECT

import snip

SOURCE = Path(snip.__file__).parent


@pytest.mark.parametrize(
    ("room", "libraries", "extra"),
    [
        ("lightning", ("lightning.pytorch", "pytorch_lightning"), "lightning"),
        ("transformers", ("transformers",), "transformers"),
        ("accelerate", ("accelerate",), "transformers"),
    ],
)
def test_an_absent_library_is_one_sentence(monkeypatch, room, libraries, extra):
    for library in libraries:
        monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"snip.integrations.{room}", raising=False)
    words = rf"needs {libraries[0].partition('.')[0]} .*pip install 'snip-prune\[{extra}\]'"
    with pytest.raises(ImportError, match=words) as caught:
        importlib.import_module(f"snip.integrations.{room}")
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, snip.InputError)


def test_every_extra_that_a_sentence_names_installs_the_library():
    asked = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "imported":
                last = node.args[-1]
                first = next((k.value for k in node.keywords if k.arg == "library"), node.args[0])
                if isinstance(first, ast.Constant):
                    asked.add((first.value.partition(".")[0], last.value))
    assert asked == {
        ("transformers", "transformers"), ("accelerate", "transformers"), ("wandb", "wandb"),
        ("mlflow", "mlflow"), ("ray", "ray"), ("tensorboard", "tensorboard"),
    }  # fmt: skip
    for library, extra in {*asked, ("lightning", "lightning")}:
        names = {re.split(r"[\[<>=]", text)[0] for text in optional(extra)}
        assert names & {library, f"{library}-skinny"}
        assert extra in " ".join(optional("dev"))


def optional(extra):
    return PROJECT["optional-dependencies"][extra]


def test_what_a_test_needs_is_missed_aloud_only_in_ci(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="In CI it must be there"):
        needed("no_such_library")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no_such_library is not installed"):
        needed("no_such_library")
    assert needed("json") is json
