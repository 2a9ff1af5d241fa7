"""Control characters out of a file are shown, never obeyed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cli_fixtures import Snip
from safetensors.torch import save_file

from snip import InputError, Masks, report
from snip.common.console import say, show_table
from snip.common.errors import FileError, KindError
from snip.common.files import damaged
from snip.common.text import escaped
from snip.masks import Provenance

# Clears the screen, names the window, rings, turns the direction of writing, and no encoding.
EVIL = "\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202e\ud800"
pytestmark = pytest.mark.usefixtures("empty_folder")


def harmless(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


def test_how_they_are_shown() -> None:
    assert escaped("a\x1b[2J\u202e\r\n") == "a\\x1b[2J\\u202e\\r\\n"
    assert escaped("one\ntwo", keep="\n") == "one\ntwo"
    assert escaped("Gewichte für Straßen, 重み") == "Gewichte für Straßen, 重み"


@pytest.mark.parametrize("kind", [InputError, KindError, FileError])
def test_errors_show_them(kind: type[InputError]) -> None:
    assert harmless(str(kind(f"no parameter {EVIL}.")))
    assert harmless(str(damaged("file\x1b", f"{EVIL}\nerror: forged")))
    assert "\n" not in str(damaged("file", "one\nerror: forged"))


def test_inspect_of_masks(snip: Snip) -> None:
    name = EVIL.replace("\ud800", "")
    masks = Masks(
        {f"{name}.weight": torch.eye(2).bool()},
        Provenance(model=name, dataset=name, loss=name, protocol=f"{name}\nkept  all of them"),
    )
    masks.save("m.safetensors")
    code, out, error = snip("inspect", "m.safetensors")
    assert code == 0
    assert harmless(out + error)
    assert "\\x1b[2J" in out
    assert not any(line.startswith("kept  all") for line in out.splitlines())
    data = json.loads(snip("inspect", "m.safetensors", "--json")[1])
    assert data["provenance"]["loss"] == name  # nothing is lost to a program


def test_inspect_of_weights_and_folders(snip: Snip) -> None:
    name = EVIL.replace("\ud800", "")
    save_file({name: torch.eye(2)}, "w.safetensors")
    torch.save({name: torch.eye(2)}, "w.pt")
    Path("run").mkdir()
    Path("run/config.json").write_text(json.dumps({"model": EVIL, EVIL: 1}))
    for path, code in (("w.safetensors", 0), ("w.pt", 0), ("run", 2)):
        found, out, error = snip("inspect", path)
        assert found == code
        assert harmless(out + error), path


def test_a_report_shows_them() -> None:
    model = torch.nn.Sequential()
    model.add_module("evil\x1b[31m", torch.nn.Linear(2, 2))
    masks = Masks(
        {"evil\x1b[31m.weight": torch.eye(2).bool()},
        Provenance(left_out={"evil\x1b[31m.bias": f"because {EVIL}"}, input_shape=(2,)),
    )
    masks.apply(model)
    text = str(report(model, masks))
    assert harmless(text)
    assert "\\x1b[31m" in text


def test_what_is_said_and_shown_in_tables(capsys: pytest.CaptureFixture[str]) -> None:
    say(EVIL)
    show_table(("name",), [(EVIL,)])
    assert harmless(capsys.readouterr().out)
