"""Settings of runs by name and in words, and those that tell runs apart which look alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from snip.runs.config import RunConfig


def value_of(config: RunConfig, name: str) -> Any:
    """A setting by its name in the identity, which leaves out defaults."""
    room, _, inner = name.rpartition(".")
    return getattr(config.training if room else config, inner)


def name_in_words(name: str) -> str:
    """The name of a setting as people read it."""
    return name.removeprefix("train.").replace("_", " ")


def value_in_words(value: Any) -> str:
    """The value of a setting as people read it."""
    if isinstance(value, (tuple, list)):
        return " and ".join(value_in_words(one) for one in value) or "none"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def told_apart(configs: Sequence[RunConfig], look: Callable[[RunConfig], str]) -> list[str]:
    """For each run the settings in which it differs from those that `look` alike, in words.

    It is empty where the look is enough. Seeds are left out: they stand beside every run.
    """
    alike: dict[str, list[RunConfig]] = {}
    for config in configs:
        alike.setdefault(look(config), []).append(config)
    names = {name: _differing(group) for name, group in alike.items()}
    return [
        ", ".join(
            f"{name_in_words(name)} {value_in_words(value_of(config, name))}"
            for name in names[look(config)]
        )
        for config in configs
    ]


def _differing(group: Sequence[RunConfig]) -> list[str]:
    """The settings, but for the seed, that are not the same in all of a group."""
    names = dict.fromkeys(name for config in group for name in config.identity())
    return [
        name
        for name in names
        if name != "seed" and len({str(value_of(config, name)) for config in group}) > 1
    ]
