"""The command that repeats a run, from its configuration: the inverse of `run_config`."""

from __future__ import annotations

import shlex
from typing import Any

from snip.cli.configuration import run_config
from snip.cli.flags import RUN_FIELDS, TRAIN_FIELDS
from snip.cli.options import flag_rows
from snip.runs import RunConfig

ALWAYS = ("model", "sparsity", "seed")
# What other flags take their defaults from.
DECISIVE = ("model", "sparsity", "dataset", "method", "optimizer")


def command_of(config: RunConfig, threads: int | None = None) -> str:
    """`snip run` with the flags that differ from their defaults; `threads` decide last bits."""
    values = _values(config)
    plain = _values(run_config({name: values[name] for name in ("model", "sparsity")}))
    usual = _values(run_config({name: values[name] for name in DECISIVE}))
    usual |= {name: plain[name] for name in DECISIVE}
    # Of your own network the length is asked for, unless it is given.
    needed = (*ALWAYS, "iterations") if config.is_user_model else ALWAYS
    names = [name for name in values if name in needed or values[name] != usual[name]]
    words = [word for name in names for word in _words(name, values[name])]
    words += ["--threads", str(threads)] if threads else []
    return shlex.join(["snip", "run", *words])


def _values(config: RunConfig) -> dict[str, Any]:
    run = {name: getattr(config, name) for name in RUN_FIELDS}
    return run | {name: getattr(config.training, name) for name in TRAIN_FIELDS}


def _given(name: str, value: Any) -> Any:
    """A value as the command line hands it over."""
    if name == "lr_drops":
        return ",".join(map(str, value)) or "none"
    return str(value) if name == "floor" else value


def _words(name: str, value: Any) -> list[str]:
    flag, _, no = flag_rows()[name]["names"][0].partition("/")
    if no:
        return [flag if value else no]
    value = _given(name, value)
    return [
        flag,
        f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value),
    ]
