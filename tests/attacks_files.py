"""Attacks on files: real ones of every kind, damaged byte by byte or given hostile fields.

A damaged file must read as it was, or be refused in a sentence. A file with hostile fields and
valid checksums may be another valid file, but raises nothing else and takes no memory that it
does not have. `python tests/attacks_files.py SEED COUNT` tries random ones in little memory.
"""

from __future__ import annotations

import copy
import random
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from hostile_kinds import KINDS
from hostile_values import NOTHING, WIDE, digest

from snip.common.errors import InputError, SnipWarning

LONGEST = 2500  # characters of a refusal, whatever it quotes


def nodes(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value in a tree of dicts and lists."""
    yield path
    pairs = tree.items() if isinstance(tree, dict) else ()
    pairs = list(enumerate(tree))[:3] if isinstance(tree, list) else pairs
    for key, value in pairs:
        yield from nodes(value, (*path, key))


def altered(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the tree with another value in one place, or without what is there."""
    if not path:
        return {} if value is NOTHING else value
    result = copy.deepcopy(tree)
    place = result
    for key in path[:-1]:
        place = place[key]
    if value is NOTHING:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return result


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one of them flipped, some cut out or written twice, or the end cut off."""
    at, length = chance.randrange(len(data)), chance.randrange(1, 64)
    return chance.choice(
        (
            data[:at],
            data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :],
            data[:at] + data[at + length :],
            data[:at] + data[at : at + length] + data[at:],
            data[:at] + chance.randbytes(length) + data[at + length :],
        )
    )


def refused(read_it: Callable[[], Any]) -> tuple[bool, Any]:
    """(True, None) if the file was refused in a sentence; (False, what was read) if not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SnipWarning)
            return False, read_it()
    except InputError as error:
        sentence, causes = str(error), list(chain_of(error))
    assert sentence
    assert len(sentence) < LONGEST, f"a sentence of {len(sentence)} characters"
    assert sentence.isprintable(), repr(sentence)
    # Memory that could not be had was asked for: no file may do that.
    assert not any(isinstance(e, MemoryError) or "allocate" in str(e) for e in causes), sentence
    return True, None


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__


def attack(seed: int) -> None:
    """One random attack on one random kind of file; AssertionError, or any other, is a finding."""
    chance = random.Random(seed)
    name = chance.choice(sorted(KINDS))
    kind = KINDS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = kind.make(Path(folder))
        whole, original = path.read_bytes(), digest(kind.read(path))
        trees = kind.trees(path)
        if not trees or chance.random() < 0.5:
            path.write_bytes(damaged(whole, chance))
            was_refused, found = refused(lambda: kind.read(path))
            assert was_refused or not kind.summed or digest(found) == original, (name, seed)
            return
        part, tree = chance.choice(sorted(trees.items()))
        place = chance.choice(list(nodes(tree)))
        kind.write(path, part, altered(tree, place, chance.choice((*kind.hostile, *WIDE))))
        refused(lambda: kind.read(path))


def limit_memory(room: int) -> None:
    """Leave this process `room` bytes beside what it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    for each in KINDS.values():  # what is made once needs more memory than a file
        with tempfile.TemporaryDirectory() as place:
            each.read(each.make(Path(place)))
    limit_memory(512 << 20)
    for number in range(first, first + count):
        attack(number)
