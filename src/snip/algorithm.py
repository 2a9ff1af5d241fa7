"""Algorithm 1, whole: score every connection, select those that stay, hold the rest at zero."""

from __future__ import annotations

import inspect
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from snip.common.errors import InputError, KindError, SnipWarning, warn
from snip.common.text import listed, percent
from snip.distributed.ranks import everybody
from snip.distributed.shards import local
from snip.distributed.wrapped import REPLICATED, SHARDED
from snip.masks import Masks, held_masks, versions
from snip.masks.masks import MIN_ZERO_SHARE, share_of_zeros
from snip.methods import DuringTraining, Method, Score, named_method, scope_of, training_method
from snip.methods.course import prune_trained
from snip.methods.kinds import DATA, AtInitialisation, one_shot
from snip.methods.rounds import Scored, Scorer
from snip.network.network import COMPETE, Network
from snip.network.norms import PARAMETRIZED
from snip.network.parameters import BY_PREDICATE, Predicate
from snip.scoring.batches import Data, LossFn
from snip.scoring.settings import Scoring, checked_scoring
from snip.selection.budgets import Scope, check_scope_names
from snip.selection.granularity import Granularity
from snip.selection.repair import with_a_path
from snip.selection.request import AUTO, CONNECTIONS, Request, scope_facts
from snip.selection.select import require_some_kept
from snip.training.config import TrainConfig

# The options of `prune` that methods which train obey.
OF_TRAINING = ("model", "batches", "sparsity", "params", "method", "training")
ALIKE = "Call snip.prune with the same model and settings in every process."
MANY_LEFT_OUT = 0.25  # of the parameters; norms and biases of ordinary networks are far less
ROWS = 8  # of each weight, looked at before all are: nearly all models have no zeros there


def prune(
    model: nn.Module | Network,
    batches: Any = None,
    *,
    sparsity: float | None = None,
    loss_fn: LossFn | None = None,
    params: Predicate | None = None,
    method: str | Score | Method = "snip",
    granularity: str | Granularity = "element",
    scope: Scope = "global",
    floor: float | str = AUTO,
    budget: str = CONNECTIONS,
    biases: str = COMPETE,
    scoring: Scoring = Scoring(),
    training: TrainConfig | None = None,
) -> Masks:
    """Remove all but the round(m (1 - sparsity)) most sensitive connections; returns the masks.

    `batches` is one batch (a tensor, a mapping, or a tuple or list with a tensor in it) or an
    iterable of them; `loss_fn(model, batch)` is cross-entropy of an (inputs, targets) pair unless
    given. Random, magnitude and ERK need none; with some, the paths of the network are followed.
    `method` is a name in `snip.methods.METHODS` or a function that scores; `scoring` says
    how it scores. `granularity` is what is kept or removed whole: "element", single connections;
    "channel", units, which `snip.shrink` then takes out; n of m inputs such as "2:4", which needs
    no sparsity; blocks of a weight such as "4x4". `floor` is what each layer keeps at least:
    "auto" is 0, or, if no path from input to output would be left, what leaves one.
    `budget="flops"` keeps the most sensitivity per FLOP: `sparsity` is then the fraction of the
    FLOPs that is saved. `biases="keep"` leaves them all. A model that is pruned already is pruned
    further. A model under DDP or `fully_shard` is pruned by all processes together, each with its
    own batches; all get the same masks. What is refused changes nothing.

    Methods that train (LWC, OBD and others) are for a trained model, on a snip data set, a
    DataLoader or a list of (inputs, labels): by cross-entropy, in phases that are parts of
    `training` (unless given, of twenty epochs). The model is then ready for a last training.
    """
    trained = training_method(method)
    if trained is not None:
        return _prune_trained(*trained, locals())
    with Network.ranks_of(model).raise_on_all():
        network = Network.of(model, params)
        if training is not None:
            raise InputError(
                "this method does not train: leave out training=..., and train after it."
            )
        name, chosen, request = checked_request(
            method, sparsity=sparsity, granularity=granularity, scope=scope, floor=floor,
            budget=budget, biases=biases, scoring=scoring,
        )  # fmt: skip
        network.require_scorable()
        whole, network = network, network if biases == COMPETE else network.without_biases()
        data = Data(_batches(batches, name, chosen, request), scoring.batch_dim)
        _require_possible(network, name, chosen, request, scoring)
    _agree(network, name, request, data, scoring)
    _warn_beforehand(whole)
    if chosen.reads != DATA or chosen.rounds is not one_shot:
        data.keep()
    masks = _selected(Scorer(network, chosen, data, loss_fn, scoring), request)
    masks = masks.with_provenance(
        method=name,
        budget=budget,
        left_out=network.left_out,
        seed=torch.initial_seed(),
        versions=versions(),
    )
    _agree_on_masks(network, masks)
    masks.apply(network.given)
    return masks


def checked_request(
    method: str | Score | Method = "snip", *, scoring: Scoring = Scoring(), **options: Any
) -> tuple[str, AtInitialisation, Request]:
    """The method with its name, and the request: everything that can be refused without a model."""
    name, chosen = named_method(method)
    options["scope"] = scope_of(name, chosen, options.get("scope", "global"))
    request = Request.of(**{"floor": AUTO} | options)
    checked_scoring(scoring)
    return name, chosen, request


def _batches(given: Any, name: str, method: AtInitialisation, request: Request) -> Any:
    """The batches; none at all if nothing that is asked for depends on them."""
    if given is not None:
        return given
    depends = {
        f"method {name!r}": method.reads == DATA or method.called,
        "budget 'flops'": request.by_cost,
        f"granularity '{request.granularity}'": request.granularity.needs_inputs,
    }
    for what, called in depends.items():
        if called:
            raise KindError(
                f"batches is missing: {what} must see what the model is called with. Give one "
                "batch, such as (inputs, targets)."
            )
    return ()


def _selected(scorer: Scorer, request: Request) -> Masks:
    """Score and select; where no path is left, score or select in another way."""
    first = scorer.score(request)
    rankings: dict[Scoring, Scored] = {scorer.scoring: first}
    other = _other_scoring(scorer)

    def selected(scoring: Scoring = scorer.scoring, **cure: Any) -> Masks:
        return rankings[scoring].select(**cure)

    def rescore() -> dict[str, Any]:
        assert other is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SnipWarning)  # the first scoring has said it
            rankings[other] = replace(scorer, scoring=other).score(request)
        return {"scoring": other}

    return with_a_path(
        scorer.network, first.select(), first.seen.call, selected,
        repair=request.may_be_repaired, batch_dim=scorer.scoring.batch_dim,
        learned=first.seen.learned, silent=first.silent,
        rescore=None if other is None else rescore,
    )  # fmt: skip


def _other_scoring(scorer: Scorer) -> Scoring | None:
    """By the norms' own statistics: for networks in which a batch's leave no path.

    This happens with depthwise convolutions at high sparsities; MobileNetV2 (three seeds) then
    trained to a higher accuracy than with any floor: see docs/defaults.md.
    """
    by_batch = scorer.method.reads == DATA and scorer.scoring.batch_norm == "train"
    norms = any(isinstance(module, _BatchNorm) for module in scorer.network.module.modules())
    # All ranks must try the same.
    again = all(scorer.network.ranks.all_gather(scorer.data.can_be_read_again))
    return replace(scorer.scoring, batch_norm="eval") if by_batch and norms and again else None


def _require_possible(
    network: Network, name: str, method: AtInitialisation, request: Request, scoring: Scoring
) -> None:
    """Refuse a request that this network cannot meet, or not the way it is shared."""
    competing = network.require_competing()
    check_scope_names(request.scope, competing)
    require_some_kept(sum(p.numel() for p in competing.values()), request.sparsity)
    shared = network.sharing
    if shared is None:
        return
    if shared not in method.shared:
        raise InputError(
            f"method {name!r} cannot be reduced over processes under {shared}: prune in one "
            "process and masks.apply(model) in all, or use a method such as 'snip'."
        )
    reduction = scoring.reduction
    if reduction == "ema" or (network.sharded and reduction != "abs_of_sum"):
        raise InputError(
            f"reduction is {reduction!r}, which depends on the order of the batches or on single "
            f"ones, and not only on their sum over processes ({shared}): use 'abs_of_sum'."
        )
    if network.sharded:
        _require_possible_in_shards(network, request)


def _require_possible_in_shards(network: Network, request: Request) -> None:
    wanted = {"granularity": (str(request.granularity), "element")}
    wanted["budget"] = request.budget, CONNECTIONS
    for option, (asked, only) in wanted.items():
        if asked != only:
            raise InputError(
                f"{option} is {asked!r}, which looks at whole layers, and each "
                f"process has parts of them (fully_shard): use {only!r}, or DDP."
            )
    if network.packed and request.least:
        raise InputError(
            f"floor is {request.floor!r}, but {listed(list(network.packed))} hold several layers, "
            "of which each process has parts (fully_shard): use floor=0, or DDP."
        )


def _agree(network: Network, name: str, request: Request, data: Data, scoring: Scoring) -> None:
    """Raise on every rank unless all ask for the same, of the same model."""
    if network.ranks.alone:
        return
    facts: dict[str, Any] = {"method": name, "sparsity": request.sparsity, "floor": request.floor}
    facts |= {"budget": request.budget, "biases": request.biases}
    facts |= {"granularity": repr(request.granularity), **scope_facts(request.scope)}
    facts |= {f"scoring.{option}": value for option, value in asdict(scoring).items()}
    for parameter, tensor in network.competing.items():
        # Replicas that are not alike would be pruned alike, and train apart.
        values = f", checksum {_checksum(tensor):x}" if network.sharing == REPLICATED else ""
        facts[f"parameter {parameter!r}"] = f"{tuple(tensor.shape)} {tensor.dtype}{values}"
    # A second pass over the batches must be made by all ranks or by none.
    facts["batches that can be read again"] = str(data.can_be_read_again)
    network.ranks.agree(facts, ALIKE)


def _agree_on_masks(network: Network, masks: Masks) -> None:
    """Raise on every rank unless all have the same masks."""
    if not network.ranks.alone:
        network.ranks.agree(
            {"checksum of the masks": masks.digest()},
            "Nothing was pruned. The weights, or what the loss computes beside the data, are not "
            "the same in every process.",
        )


def _checksum(parameter: torch.Tensor) -> int:
    bits: Any = parameter.detach().reshape(-1).cpu().view(torch.uint8).numpy()
    return zlib.crc32(bits)


def _warn_beforehand(network: Network) -> None:
    _warn_of_own_masks(network)
    _warn_of_zeros(network)
    _warn_of_parametrized(network)
    _warn_of_left_out(network)


def _warn_of_own_masks(network: Network) -> None:
    """Warn that ranks which prune a model of their own each may end with different masks.

    The first rank says nothing: it may prune for all of them. If every rank prunes, there are
    others too.
    """
    everyone = everybody()
    if everyone.rank and network.sharing is None:
        warn(
            f"process {everyone.rank} of {everyone.size} prunes a model that it does not share: "
            "if the data, the weights or the seed differ, so do the masks, and the replicas will "
            f"train apart. Prune the model after wrapping it in {REPLICATED} or {SHARDED}, or in "
            "one process, and masks.apply(model) in all."
        )


def _warn_of_zeros(network: Network) -> None:
    """Warn if a model that holds no masks looks pruned: its zeros compete, and may be kept."""
    if held_masks(network.module) is not None:
        return
    facts = (network.parameters[name] for name in network.competing)
    weights = {fact.name: local(fact.tensor) for fact in facts if fact.is_weight}
    if share_of_zeros({name: weight[:ROWS] for name, weight in weights.items()}) < MIN_ZERO_SHARE:
        return
    zeros = share_of_zeros(weights)
    if zeros >= MIN_ZERO_SHARE:
        warn(
            f"{percent(zeros)} of the weights are zero and the model holds no masks: if it was "
            "pruned before, snip.Masks.from_zeros(model).apply(model) comes first, and what is "
            "left is pruned further. As it is, zeros may be among the connections that are kept."
        )


def _warn_of_parametrized(network: Network) -> None:
    """Name the weights that stay dense because their layers compute them from other tensors."""
    hidden = [name for name, why in network.left_out.items() if why.startswith(PARAMETRIZED)]
    if hidden:
        warn(
            f"{listed(hidden)} stay dense: their layers compute the weight from them. Remove the "
            "parametrization before pruning (torch.nn.utils.parametrize.remove_parametrizations).",
        )


def _warn_of_left_out(network: Network) -> None:
    """Warn if much of the model stays dense and nobody asked for it.

    The sparsity asked for is that of what is up for pruning. Tensors that a forward uses by itself,
    layers that Snip does not know, frozen weights and embeddings are not.
    """
    sizes = {name: fact.tensor.numel() for name, fact in network.parameters.items()}
    out = network.left_out
    unasked = [
        name
        for name in sorted(out, key=lambda name: -sizes[name])
        if out[name] != BY_PREDICATE and not out[name].startswith(PARAMETRIZED)
    ]
    share = sum(sizes[name] for name in unasked) / max(1, sum(sizes.values()))
    if share > MANY_LEFT_OUT:
        named = ", ".join(f"{name!r} ({out[name]})" for name in unasked[:3])
        more = f" and {len(unasked) - 3} more" if len(unasked) > 3 else ""
        warn(
            f"{percent(share)} of the model's parameters are not up for pruning and stay dense: "
            f"{named}{more}. params=lambda name, module, param: ... chooses what is pruned.",
        )


def _prune_trained(name: str, method: DuringTraining, given: Mapping[str, Any]) -> Masks:
    """`prune` by a method that trains. Options that it would not obey are refused."""
    for option, parameter in inspect.signature(prune).parameters.items():
        if option not in OF_TRAINING and given[option] != parameter.default:
            raise InputError(
                f"{option} is {given[option]!r}, but method {name!r} trains by cross-entropy and "
                f"ranks by a rule of its own: leave {option} out, or use a method such as 'snip'."
            )
    with Network.ranks_of(given["model"]).raise_on_all():
        network = Network.of(given["model"], given["params"])
        if network.sharing is not None:
            raise InputError(
                f"method {name!r} trains, which it does in one process: the model is under "
                f"{network.sharing}. Prune it before wrapping it and masks.apply(model) after "
                "that, or use a method such as 'snip'."
            )
    _warn_of_own_masks(network)
    _warn_of_left_out(network)
    where = network.given, given["batches"], given["sparsity"]
    return prune_trained(name, method, *where, network.choice, given["training"])
