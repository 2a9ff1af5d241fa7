"""Methods: how connections are chosen. To add one, write a file here and a row in METHODS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from snip.common.errors import InputError, KindError, nearest
from snip.methods.baselines import ERK, MAGNITUDE, RANDOM
from snip.methods.dns import DNS
from snip.methods.grasp import GRASP
from snip.methods.kinds import AtInitialisation, DuringTraining, Method, Needs, Score
from snip.methods.lc import LC
from snip.methods.lobs import L_OBS
from snip.methods.lwc import LWC
from snip.methods.obd import OBD
from snip.methods.sensitivity import FORCE, ITER_SNIP, SNIP, SNIP_IT, WEIGHT_GRADIENT
from snip.methods.svd import SVD
from snip.methods.sws import SWS
from snip.methods.synflow import SYNFLOW
from snip.network.network import Network
from snip.network.parameters import Predicate
from snip.scoring.batches import LossFn, name_of
from snip.scoring.gradients import Scores
from snip.selection.budgets import Scope

METHODS: dict[str, Method] = {
    "snip": SNIP,
    "weight-gradient": WEIGHT_GRADIENT,
    "random": RANDOM,
    "magnitude": MAGNITUDE,
    "erk": ERK,
    "grasp": GRASP,
    "synflow": SYNFLOW,
    "force": FORCE,
    "iter-snip": ITER_SNIP,
    "snip-it": SNIP_IT,
    # While or after a network is trained:
    "lwc": LWC,
    "dns": DNS,
    "lc": LC,
    "sws": SWS,
    "svd": SVD,
    "obd": OBD,
    "lobs": L_OBS,
}
OWN = Needs("a function of the user's")


def named_method(method: str | Score | Method) -> tuple[str, AtInitialisation]:
    """A method of the table by its name, or a user's own as it is; with its name."""
    if isinstance(method, str):
        if method not in METHODS:
            raise nearest("method", method, METHODS)
        found = METHODS[method]
        if isinstance(found, DuringTraining):
            raise InputError(
                f"method {method!r} prunes while it trains, by phases of its own, and scores "
                "nothing at the start: it is for snip.prune(model, data, method=...) and for "
                "snip run --method; here use one that scores, such as 'snip'."
            )
        return method, found
    if isinstance(method, AtInitialisation):
        ours = method.score.__module__.startswith("snip.")
        score = method.score if ours else _on_module(method.score)
        return name_of(method.score), replace(method, score=score)
    if not callable(method):
        raise KindError(f"method is {method!r}: give a name such as 'snip', or a function.")
    return name_of(method), AtInitialisation(_on_module(method), OWN)


def _on_module(score: Score) -> Callable[..., Scores]:
    """A user's function, called with the module as they gave it; ours take a Network."""

    def scored(
        model: nn.Module | Network,
        batches: Any,
        loss_fn: LossFn | None = None,
        *,
        params: Predicate | None = None,
        **settings: Any,
    ) -> Scores:
        network = Network.of(model, params)
        return score(network.given, batches, loss_fn, params=network.choice, **settings)

    return scored


def training_method(method: object) -> tuple[str, DuringTraining] | None:
    """A method that prunes while it trains, by its name or as it is; None for any other."""
    found = METHODS.get(method) if isinstance(method, str) else method
    if not isinstance(found, DuringTraining):
        return None
    return method if isinstance(method, str) else name_of(found.prune), found


def scope_of(name: str, method: Method, scope: Scope) -> Scope:
    """The scope that the user asked for, or the method's own."""
    own = method.scope if isinstance(method, AtInitialisation) else None
    if own is None or scope == own:
        return scope
    if scope != "global":
        raise InputError(
            f"scope is {scope!r}, but method {name!r} has its own, {own!r}: leave scope out."
        )
    return own
