"""Reads what a native library declares of itself and makes the Python side from it.

The declarations are lines: "constant NAME VALUE", "struct NAME SIZE" followed by its
"field NAME TYPE OFFSET SIZE", and "kernel NAME TYPE ...". The C++ compiler made them from the
headers (native/border.hpp), so nothing about a kernel's arguments is written twice.
"""

import ctypes
from dataclasses import dataclass, field
from typing import Any

from snip.engine.kernels import constants
from snip.engine.kernels.structs import STRUCTS

TYPES: dict[str, Any] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "pointer": ctypes.c_void_p,
}


class BorderError(Exception):
    """The two sides do not fit."""


@dataclass
class Declarations:
    """What the library has, by name."""

    constants: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    fields: dict[str, list[tuple[str, str, int, int]]] = field(default_factory=dict)
    kernels: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> "Declarations":
        """Declarations from the library's lines."""
        found, struct = cls(), ""
        for kind, name, *rest in map(str.split, text.splitlines()):
            if kind == "constant":
                found.constants[name] = int(rest[0])
            elif kind == "struct":
                struct, found.sizes[name], found.fields[name] = name, int(rest[0]), []
            elif kind == "field":
                found.fields[struct].append((name, rest[0], int(rest[1]), int(rest[2])))
            elif kind == "kernel":
                found.kernels[name] = rest
        return found


def prototypes(text: str) -> dict[str, Any]:
    """Give the structs their fields and return the ctypes prototype of each kernel.

    BorderError where the library's constants, structs or types are not those of this package.
    """
    declared = Declarations.read(text)
    ours = {name: value for name, value in vars(constants).items() if name.isupper()}
    if ours != declared.constants:
        raise BorderError(f"constants {sorted(ours.items() ^ declared.constants.items())} differ")
    if STRUCTS.keys() != declared.sizes.keys():
        raise BorderError(f"structs {sorted(STRUCTS.keys() ^ declared.sizes.keys())} differ")
    for name in STRUCTS:
        _define(name, declared)
    return {
        name: ctypes.CFUNCTYPE(ctypes.c_int32, *map(_argument, types))
        for name, types in declared.kernels.items()
    }


def _define(name: str, declared: Declarations) -> None:
    """Set a struct's fields and check that they lie where the C++ compiler put them."""
    struct, fields = STRUCTS[name], declared.fields[name]
    struct._fields_ = [(each, _type(kind)) for each, kind, _, _ in fields]
    here = [(getattr(struct, each).offset, getattr(struct, each).size) for each, *_ in fields]
    there = [(offset, size) for _, _, offset, size in fields]
    if here != there or ctypes.sizeof(struct) != declared.sizes[name]:
        raise BorderError(f"struct {name} has fields that its header's marks do not tell")


def _type(name: str) -> Any:
    """A field's type. Pointers are plain addresses."""
    if name.endswith("*"):
        return ctypes.c_void_p
    if name not in TYPES:
        raise BorderError(f"type {name} is unknown")
    return TYPES[name]


def _argument(name: str) -> Any:
    """An argument's type. A pointer to a struct takes this struct and no other."""
    return ctypes.POINTER(STRUCTS[name[:-1]]) if name.endswith("*") else _type(name)
