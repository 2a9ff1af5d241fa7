"""Methods: how connections are chosen. To add one, write a file here and a row in METHODS."""

from __future__ import annotations

from snip.common.errors import InputError, KindError, nearest
from snip.methods.kinds import AtInitialisation, DuringTraining, Method, Needs, Score
from snip.methods.snip import SNIP
from snip.methods.weight_gradient import WEIGHT_GRADIENT
from snip.scoring.batches import name_of

METHODS: dict[str, Method] = {
    "snip": SNIP,
    "weight-gradient": WEIGHT_GRADIENT,
}
OWN = Needs("a function of the user's")


def named_method(method: str | Score | AtInitialisation) -> tuple[str, AtInitialisation]:
    """A method of the table by its name, or a user's own as it is; with its name."""
    if isinstance(method, str):
        if method not in METHODS:
            raise nearest("method", method, METHODS)
        found = METHODS[method]
        if isinstance(found, DuringTraining):
            raise InputError(f"method {method!r} prunes while it trains: use snip run.")
        return method, found
    if isinstance(method, AtInitialisation):
        return name_of(method.score), method
    if not callable(method):
        raise KindError(f"method is {method!r}: give a name such as 'snip', or a function.")
    return name_of(method), AtInitialisation(method, OWN)
