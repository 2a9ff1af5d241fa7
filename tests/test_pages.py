"""Every block of code in the README and in docs/ runs, in the order of its page."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from cli_fixtures import Snip
from expected_warnings import expects
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import snip as package

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
# A comment right before a block: it is a file, or a sketch of what the test that it names does,
# such as code for several processes. A sketch is not run; Python is compiled.
ROLE = r"(?:<!-- (file|sketch of): (\S+) -->\n)?"
BLOCK = re.compile(rf"^{ROLE}```(\w*)[^\n]*\n(.*?)^```$", re.M | re.S)
# What a command is given besides, so that it ends within seconds; "": it runs as it stands.
SHORTER = {
    "run": "--iterations 20 --eval-every 10",
    "demo": "--iterations 20",
    "prune": "",
    "reproduce": "--dry-run",
    "models": "",
    "data": "",
    "runs": "",
}
LENGTH = re.compile(r"--(epochs|schedule) \S+")  # a length of the page's own
# Pages about a model and data that the reader has: each block begins with these anew, and of
# commands, which have names of the reader's own in them, only the flags are checked. The code of
# all other pages stands alone, from the first block to the last.
ABOUT_THE_READERS = ("README.md", "docs/command-line.md", "docs/methods.md")


class Block(NamedTuple):
    role: str  # "file", "sketch of" or nothing
    target: str  # of that role
    language: str
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        role, target, language, code = found.groups(default="")
        yield Block(role, target, language, code, text.count("\n", 0, found.start(4)))


def readers() -> dict[str, object]:
    """What a reader of the README has: a model, its data, a loss, a trained model."""
    torch.manual_seed(0)
    images, labels = torch.rand(60, 1, 6, 6), torch.randint(3, (60,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=20)

    def network() -> nn.Module:
        layers = nn.Linear(36, 20), nn.ReLU(), nn.Linear(20, 3)
        return nn.Sequential(nn.Flatten(), *layers)

    return {
        "snip": package, "torch": torch, "nn": nn,
        "model": network(), "trained": network(), "batch": (images, labels),
        "images": images, "labels": labels, "loader": loader, "dataset": loader,
        "own_loss": lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
    }  # fmt: skip


def python(page: str, block: Block, names: dict[str, object]) -> None:
    # Three dots stand for the reader's own loss; all other dots are Python that does nothing.
    text = block.text.replace("lambda model, batch: ...", "own_loss")
    # Empty lines before it: a traceback then has the line of the page.
    exec(compile("\n" * block.line + text, ROOT / page, "exec"), names)


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a block, one per line or semicolon, without comments."""
    for line in text.splitlines():
        for part in line.partition("#")[0].split(";"):
            if part.strip():
                yield shlex.split(part)


def test_a_block_is_found_with_its_role_and_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    text = "one\n<!-- file: a.py -->\n```python\nx\n```\n```\nsnip demo\n```\n"
    (tmp_path / "page.md").write_text(f"{text}<!-- sketch of: tests/a.py -->\n```python\ny\n```\n")
    first, second, third = blocks("page.md")
    assert first == ("file", "a.py", "python", "x\n", 3)
    assert second == ("", "", "", "snip demo\n", 6)
    assert third == ("sketch of", "tests/a.py", "python", "y\n", 10)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("empty_folder")
@expects("losses")
def test_the_code_of_a_page_runs(page: str, snip: Snip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(os.getcwd())  # where the page's own files are
    names: dict[str, object] = {"__name__": page}
    for block in blocks(page):
        if block.role == "sketch of":
            assert (ROOT / block.target).is_file(), f"{page}: there is no {block.target}"
            if block.language == "python":
                compile(block.text, page, "exec")
        elif block.role == "file":
            Path(block.target).write_text(block.text)
        elif block.language == "python":
            python(page, block, readers() if page in ABOUT_THE_READERS else names)
        elif block.language == "":
            for words in commands(block.text):
                run(page, words, snip)
        else:
            assert block.language in ("bibtex", "text"), block
    if page == "docs/start.md":
        check_the_start(names)


def check_the_start(names: dict[str, object]) -> None:
    """The page ends with a network that is sparse and has learnt something."""
    assert 0 < names["alive"] <= round(names["total"] * (1 - 0.95))
    assert names["wrong"] < 0.1 * len(names["mnist"].test)


def run(page: str, words: list[str], snip: Snip) -> None:
    """Run a command of a page, shortened, or check what can be checked of it."""
    program, *arguments = words
    if program == "make":
        assert f"\n{arguments[0]}:" in (ROOT / "Makefile").read_text(), words
    elif program != "snip":
        raise AssertionError(f"{page} has a command that no test runs: {shlex.join(words)}")
    elif page in ABOUT_THE_READERS:
        help_text = snip(arguments[0], "--help")[1]
        flags = [word for word in arguments if word.startswith("--")]
        assert all(flag in help_text for flag in flags), words
    else:
        line = LENGTH.sub("", shlex.join(arguments))
        code, _, complaints = snip(*shlex.split(f"{line} {SHORTER[arguments[0]]}"))
        assert code == 0, (words, complaints)


def test_a_page_that_fails_is_told_by_its_line() -> None:
    block = Block("", "", "python", "1 / 0\n", 41)
    with pytest.raises(ZeroDivisionError) as caught:
        python("docs/start.md", block, {})
    assert caught.traceback[-1].lineno + 1 == 42
