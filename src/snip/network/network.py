"""A user's network as Snip sees it: what each parameter is, read once and handed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError, KindError
from snip.common.text import listed
from snip.distributed.ranks import Ranks
from snip.distributed.wrapped import REPLICATED, SHARDED, inner, ranks_of, resharded, sharing
from snip.network.layout import Layout, LiveUnits, is_weight, layout_of
from snip.network.norms import TORCH_PRUNED, NormedWeight, normed_weights
from snip.network.parameters import (
    Place,
    Predicate,
    check_predicate,
    ordinary,
    parameter_places,
    why_out,
)

COMPETE, KEEP = BIASES = ("compete", "keep")
KEPT_BIAS = "bias, kept"


@dataclass(frozen=True, eq=False)
class ParameterFacts:
    """One parameter tensor; a tied one has its first name."""

    name: str
    tensor: nn.Parameter
    places: tuple[Place, ...]  # each name, with the layer that computes with it
    key: str  # the layer's name for it; of a tensor stored under a norm, for the weight
    layout: Layout
    norm: NormedWeight | None
    why_out: str | None  # None if it competes

    @property
    def layer(self) -> Any:
        """The layer that computes with it."""
        return self.places[0][1]

    @property
    def inputs_first(self) -> bool:
        """True for a weight stored as [inputs, outputs]: transposed convolutions, Conv1D."""
        return self.is_weight and any(
            layout_of(layer, self.key, self.tensor.ndim).makes for _, layer in self.places
        )

    @property
    def is_weight(self) -> bool:
        """True if it connects units; otherwise it is a bias."""
        return is_weight(self.tensor.shape)


@dataclass(frozen=True, eq=False)
class Network:
    """A model and its parameters. Made by `Network.of`, and passed on instead of the model."""

    given: nn.Module  # as the user passed it, wrappers included
    module: nn.Module  # the user's own module
    parameters: Mapping[str, ParameterFacts]
    params: Predicate | None = None  # the user's choice of parameters
    replicas: Ranks | None = None  # the ranks of a trainer that wraps the model elsewhere

    @classmethod
    def of(
        cls,
        model: nn.Module | Network,
        params: Predicate | None = None,
        *,
        biases: str = COMPETE,
        replicas: Ranks | None = None,
    ) -> Network:
        """Read a model; one that was read already is returned as it is.

        `params` is asked once about each name of a parameter. `replicas` are ranks that hold a
        replica of this plain module each.
        """
        if isinstance(model, Network):
            if params is not None or replicas is not None:
                raise KindError("this network was read already: leave out params=...")
            return model
        if params is not None:
            check_predicate(params)
        module = resharded(model)
        normed = normed_weights(module)
        places = parameter_places(module, normed)
        facts = {}
        for name, tensor in module.named_parameters():
            norm = normed.get(name)
            key = name.rpartition(".")[2] if norm is None else norm.key
            layout = layout_of(places[name][0][1], key, tensor.ndim)
            reason = why_out(places[name], tensor, params)
            facts[name] = ParameterFacts(name, tensor, places[name], key, layout, norm, reason)
        network = cls(model, module, facts, params, replicas)
        return network if biases == COMPETE else network.without_biases()

    def without_biases(self) -> Network:
        """The same network with the biases that compete left out."""
        facts = {
            name: fact
            if fact.is_weight or fact.why_out is not None
            else replace(fact, why_out=KEPT_BIAS)
            for name, fact in self.parameters.items()
        }
        network = replace(self, parameters=facts)
        weights = frozenset(network.competing)
        return replace(network, params=lambda name, _layer, _parameter: name in weights)

    @cached_property
    def choice(self) -> Predicate | None:
        """A predicate for the parameters that compete; None if the user gave none."""
        if self.params is None:
            return None
        competing = frozenset(self.competing)
        return lambda name, _layer, _parameter: name in competing

    @cached_property
    def competing(self) -> dict[str, nn.Parameter]:
        """The parameters that count in m, in the model's order, a tied one once."""
        return {f.name: f.tensor for f in self.parameters.values() if f.why_out is None}

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Every other parameter, with the reason."""
        return {f.name: f.why_out for f in self.parameters.values() if f.why_out is not None}

    @cached_property
    def packed(self) -> dict[str, tuple[str, ...]]:
        """The parts of each parameter that holds several layers."""
        return {f.name: f.layout.parts for f in self.parameters.values() if f.layout.parts}

    @cached_property
    def normed(self) -> dict[str, NormedWeight]:
        """The weights under weight norm or spectral norm, by the name of the stored tensor."""
        return {f.name: f.norm for f in self.parameters.values() if f.norm is not None}

    @cached_property
    def sharing(self) -> str | None:
        """REPLICATED, SHARDED, or None for an ordinary module. Other ways are refused."""
        shared = sharing(self.given)
        if shared is None and self.replicas is not None and not self.replicas.alone:
            return REPLICATED
        return shared

    @staticmethod
    def ranks_of(model: nn.Module | Network) -> Ranks:
        """The ranks that share a model which may not have been read yet."""
        return model.ranks if isinstance(model, Network) else ranks_of(model)

    @cached_property
    def ranks(self) -> Ranks:
        """The ranks that share the model; this one alone for an ordinary module."""
        own = ranks_of(self.given)
        return self.replicas if own.alone and self.replicas is not None else own

    @property
    def sharded(self) -> bool:
        """True if each rank holds a part of every parameter."""
        return self.sharing == SHARDED

    @property
    def called(self) -> nn.Module:
        """The module to call while scoring: DDP is stripped, so that no collective runs."""
        return inner(self.given)

    def require_competing(self) -> dict[str, nn.Parameter]:
        """`competing`, or an error that says why there are none."""
        if self.competing:
            return self.competing
        reasons = sorted(set(self.left_out.values()))
        raise InputError(
            f"{type(self.module).__name__} has no prunable parameters "
            f"({'; '.join(reasons) or 'it has no parameters at all'}). "
            "Choose some with params=lambda name, module, param: ..."
        )

    def require_scorable(self) -> dict[str, nn.Parameter]:
        """`competing`, or an error that says why this model cannot be scored."""
        ordinary(self.given)
        sharded = self.sharded  # which refuses other ways of sharing
        self.refuse_torch_pruned()
        competing = self.require_competing()
        inference = [name for name, tensor in competing.items() if tensor.is_inference()]
        if inference:
            raise InputError(
                f"these weights were made inside torch.inference_mode() and can never be trained: "
                f"{listed(inference)}. Build or copy the model outside."
            )
        normed = [name for name in self.normed if name in competing]
        if sharded and normed:
            raise InputError(
                f"{listed(normed)} is under weight norm or spectral norm, of which a process would "
                "have a part only (fully_shard): use DDP, or leave it out with params=..."
            )
        return competing

    def refuse_torch_pruned(self) -> None:
        """Raise if torch.nn.utils.prune owns a weight, which it rebuilds before each call."""
        names = [name for name, why in self.left_out.items() if why == TORCH_PRUNED]
        if names:
            raise InputError(
                "torch.nn.utils.prune has pruned this model, and computes weights from "
                f"{listed(names)} before each call: "
                "snip.integrations.torch_prune.from_pruned(model) takes its pruning over, and "
                "gives an ordinary model that holds the masks."
            )

    def live_units(self, masks: Mapping[str, torch.Tensor]) -> dict[str, LiveUnits]:
        """Live units per weight; with effective masks, those that lie on a path.

        A recurrent layer's hidden unit counts once for all its gates, and is alive if its input or
        its recurrent weights are: `weight_ih*` and `weight_hh*` then say the same of their outputs.
        """
        facts = {name: self.parameters[name] for name in masks}
        by_place = {(fact.layer, fact.key): masks[name] for name, fact in facts.items()}
        live = {}
        for name, fact in facts.items():
            if not is_weight(masks[name].shape):
                continue
            live[name] = units = fact.layout.live(masks[name])
            recurrent = isinstance(fact.layer, (nn.RNNBase, nn.RNNCellBase))
            if recurrent and fact.key.startswith(("weight_ih", "weight_hh")):
                end = fact.key[len("weight_ih") :]
                both = [by_place.get((fact.layer, f"weight_{kind}{end}")) for kind in ("ih", "hh")]
                rows = torch.stack([fact.layout.live(m).outputs for m in both if m is not None])
                hidden = rows.any(0).view(-1, fact.layer.hidden_size).any(0)
                live[name] = LiveUnits(hidden, units.inputs)
        return live


def prunable_parameters(
    model: nn.Module, predicate: Predicate | None = None
) -> dict[str, nn.Parameter]:
    """The parameters that count in m, in the model's order, a tied one once."""
    return Network.of(model, predicate).competing
