"""After the selection: does the input still reach the outputs, and what would make it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from snip.common.errors import InputError, warn
from snip.common.text import listed
from snip.masks import Masks, empty_layers, nearly_empty_layers
from snip.network.calls import Call
from snip.network.layout import Packed
from snip.network.network import Network
from snip.network.paths import Follower, Reach, unpruned
from snip.network.reader import LearnedOutputs
from snip.selection.select import meets_floor

# Floors to try first: parts of what a layer would keep if all were equally sparse. They change
# little, and a tenth is often enough. Where outputs stay unreached, "erk" gives small layers more.
PARTS = (0.1, 0.3)
MORE = (2, 4, 8)  # if nothing else helps: so many times the connections, to name a sparsity

Select = Callable[..., Masks]  # the selection once more, with other settings
Settings = dict[str, Any]  # as a user would write them
Cure = tuple[Settings, Masks]  # and the masks that they give


def with_a_path(
    network: Network,
    masks: Masks,
    call: Call | None,
    select: Select | None,
    *,
    repair: bool,
    batch_dim: int = 0,
    learned: LearnedOutputs | None = None,
    silent: Sequence[str] = (),
    rescore: Callable[[], Settings] | None = None,
) -> Masks:
    """The masks, or with `repair` others if no path is left; a warning says what was done.

    `call` is what the model was called with, `learned` knows on which outputs the loss depends,
    and `select(floor=...)` selects again; None if nothing can. `rescore` scores in another way if
    no output is reached, and gives the settings with which `select` then selects by those scores:
    they are tried before any floor. A network without a path computes a constant, and hours of
    training would be lost. It is repaired and not refused, because the repaired masks keep as many
    connections as were asked for, and a script that tries many sparsities goes on.
    Outputs that no input reaches are repaired if a floor reaches them all. Whoever chose a floor or
    a scope is told what would help. Every network is followed: layers that keep thousands of
    connections may still fail to meet. Of `silent` layers, on which the loss does not depend, the
    user has heard already.
    """
    if call is None:
        _warn_of_empty(network, masks, silent, bypassed=False, floors=select is not None)
        return masks
    follows = partial(Follower, network.given, call, batch_dim, learned)
    looking = partial(_looked, network, masks, select, repair, silent, follows)
    better = looking(cures=[] if rescore is None else None)
    if better is None and rescore is not None:
        # Not while the model is followed, when it is not as its user left it.
        better = looking(cures=[rescore()])
    return masks if better is None else better


def _looked(
    network: Network,
    masks: Masks,
    select: Select | None,
    repair: bool,
    silent: Sequence[str],
    follows: Callable[[], Follower],
    *,
    cures: list[Settings] | None,
) -> Masks | None:
    """The masks or better ones. None if no output is reached and `cures` are to be made first."""
    floors = select is not None  # whether there is a floor to advise
    with follows() as follower:
        found = follower.reached(masks)
        wanted = _wanted(follower, masks, found)
        if found is None or not wanted:  # the probe knows nothing of this model
            _warn_of_empty(network, masks, silent, bypassed=False, floors=floors)
            return masks
        better = masks
        if found.reached < wanted:
            if cures is None and not found.reached:
                return None
            search = _Search(follower, wanted, found.reached)
            better = _repaired(network, masks, search, select, repair, cures or [])
            if better is masks and not found.reached:
                return masks
        if not empty_layers(better, network.packed):
            return better
        cut = follower.cut_inputs(better)
        if cut:
            return _repaired(
                network, better, _Search(follower, wanted, wanted, cut), select, repair
            )
    if better is masks or cures:
        _warn_of_empty(network, better, silent, bypassed=True, floors=floors)
    return better


def _wanted(follower: Follower, masks: Masks, found: Reach | None) -> int:
    """Number of outputs that the input reaches without masks, which need not be all."""
    if found is None or found.reached == found.outputs:
        return 0 if found is None else found.reached
    whole = follower.reached(unpruned(masks))
    return 0 if whole is None else whole.reached


def _repaired(
    network: Network,
    masks: Masks,
    search: _Search,
    select: Select | None,
    repair: bool,
    cures: Sequence[Settings] = (),
) -> Masks:
    """The masks or, if that is allowed, those of a cure; a warning names only what was tried."""
    lost, cannot = _lost(network, masks, search)
    cures = [*cures, *_cures(masks, network.packed)]
    cure = None if select is None else search.among(cures, select)
    vain = f" Tried in vain: {'; '.join(search.failed)}." if search.failed else ""
    if cure is None:
        warn(f"{lost}{cannot}{vain}")
        return masks
    settings, other = cure
    some = bool(search.before) or search.most < search.wanted
    to = f" to {search.most:,} of {search.wanted:,} outputs" if some else ""
    to = " from every input" if search.inputs else to
    # An output more or less is no reason to leave the ranking that was asked for altogether.
    if repair and "sparsity" not in settings and (not search.before or "floor" in settings):
        warn(
            f"{lost}pruned with {_written(settings)} instead, which leaves as many connections and "
            f"a path{to}. floor=0 prunes without this."
        )
        return other
    warn(f"{lost}{cannot} With {_written(settings)} a path{to} is left: that was tried.{vain}")
    return masks


def _lost(network: Network, masks: Masks, search: _Search) -> tuple[str, str]:
    """Describe what the masks lose, and what that means for the network."""
    if search.inputs:
        many = len(search.inputs) > 1
        return (
            f"{_left(network, masks)}, and nothing of the input{'s' * many} "
            f"{listed(search.inputs)} reaches the output: "
        ), f"the network cannot learn from {'them' if many else 'it'}."
    if search.before:
        return (
            f"{search.wanted - search.before:,} of {search.wanted:,} outputs are not reached by "
            f"any input at sparsity {masks.sparsity:.4g} and can only be constants: "
        ), "the network cannot learn them."
    lost = f"{_left(network, masks)}, and no path leads from the input to the output: "
    return lost, "the network cannot learn."


class _Search:
    """Looks for masks with which the input reaches all outputs that it reaches in the model."""

    def __init__(
        self, follower: Follower, wanted: int, before: int, inputs: Sequence[str] = ()
    ) -> None:
        self.follower, self.wanted, self.before = follower, wanted, before
        self.inputs = inputs  # arguments that reach no output, and should
        self.most = 0  # how many outputs the best masks reach
        self.failed: list[str] = []  # what did not help, as a user would write it

    def among(self, cures: Iterable[Settings], select: Select) -> Cure | None:
        """The first that reaches all. If no output was reached before, else that with the most."""
        best = None
        for cure in cures:
            # More connections are only tried where the network would be worth nothing without.
            if "sparsity" in cure and (best is not None or self.before):
                break
            other = _selected(select, cure)
            if other is None:
                continue
            reached = self._reached(other)
            if reached >= self.wanted or (reached > self.most and not self.before):
                best, self.most = (cure, other), reached
            else:
                self.failed.append(_written(cure))
            if reached >= self.wanted:
                break
        return best

    def _reached(self, masks: Masks) -> int:
        """Number of outputs reached; 0 if one of the inputs still reaches nothing."""
        found = [self.follower.reached(masks, only) for only in (None, *self.inputs)]
        counts = [0 if x is None else x.reached for x in found]
        return counts[0] if all(counts) else 0


def _cures(masks: Masks, packed: Packed) -> list[Settings]:
    """Other settings for the selection: of as many connections, then of more."""
    asked = masks.provenance
    density = 1 - masks.sparsity
    floors = [float(f"{part * density:.1g}") for part in PARTS]  # to be written down
    ranked = {} if asked.scope == "global" else {"scope": "global"}
    # In one ranking, a floor that every layer has already would select the same masks.
    if not ranked and not asked.floor:
        floors = [floor for floor in floors if not meets_floor(masks, floor, packed)]
    cures: list[Settings] = [{**ranked, "floor": floor} for floor in floors]
    cures += [] if asked.scope == "erk" else [{"scope": "erk"}]
    least = 1 - (asked.sparsity_asked or masks.sparsity)
    return cures + [
        {"sparsity": float(f"{1 - least * more:.3g}")} for more in MORE if least * more < 1
    ]


def _selected(select: Select, cure: Settings) -> Masks | None:
    """The masks that a cure gives, if it can be had."""
    # A model that is pruned already may have too little left, and a cost budget has no floors.
    with suppress(InputError):
        return select(**({"floor": 0} if "scope" in cure else {}) | cure)
    return None


def _written(cure: Settings) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in cure.items())


def _warn_of_empty(
    network: Network, masks: Masks, silent: Sequence[str], *, bypassed: bool, floors: bool
) -> None:
    empty = [name for name in empty_layers(masks, network.packed) if name not in silent]
    if empty:
        how = "passes by another way" if bypassed else "ends there unless a shortcut passes it by"
        advice = "scope='global' with a floor=... keeps some of every layer."
        warn(
            f"nothing is left of {listed(empty)} at sparsity {masks.sparsity:.4g}: the signal "
            f"{how}. {advice if floors else 'A lower sparsity keeps more.'}"
        )


def _left(network: Network, masks: Masks) -> str:
    empty, few = empty_layers(masks, network.packed), nearly_empty_layers(network.module, masks)
    what = "some is left of every layer"
    if empty or few:
        much = "nothing" if empty else "too little"
        what = f"{much} is left of {listed(empty or few)}"
    return f"{what} at sparsity {masks.sparsity:.4g}"
