"""`snip.prune` under DDP and FSDP2 in real processes: the masks of one process on the same data."""

from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from distributed_parts import NETWORKS, batches_of, exact_loss, shared
from expected_warnings import expects
from processes import found_in_processes
from torch import nn

import snip
from snip.methods import METHODS
from snip.methods.baselines import random_scores
from snip.methods.kinds import AtInitialisation, exponential, one_shot

HOW = ("ddp", "fsdp")
COUNTS = (2, 4)  # of processes
ROUNDED = 1e-6  # of the largest score: how far float sums in another order may lie apart
METHODS_OF = {
    "ddp": ["snip", "weight-gradient", "random", "magnitude", "erk", "grasp", "synflow", "force",
            "iter-snip", "snip-it"],
    "fsdp": ["snip", "weight-gradient", "random", "magnitude", "erk", "force", "iter-snip",
             "snip-it"],
}  # fmt: skip
SETTINGS = {
    "plain": {},
    "biases kept": {"biases": "keep"},
    "floor": {"floor": 2},
    "layer": {"scope": "layer"},
    "sum": {"scoring": snip.Scoring(loss_reduction="sum")},
}


def quick(name):
    """The method, in three rounds instead of up to a hundred."""
    method = METHODS[name]
    return method if method.rounds is one_shot else replace(method, rounds=exponential(3))


def asked(how):
    """Name -> (network, settings of prune), of all that is tried."""
    found = {f"{how} {m}": ("mlp", {"method": quick(m)}) for m in METHODS_OF[how]}
    # Under DDP every process selects by itself, so that settings of the selection change nothing.
    settings = SETTINGS if how == "fsdp" else {"plain": {}, "sum": SETTINGS["sum"]}
    found |= {f"{how} {name}": ("mlp", given) for name, given in settings.items()}
    found[f"{how} exact"] = ("dyadic", {"loss_fn": exact_loss})
    found[f"{how} zero head"] = ("zero-head", {})
    if how == "ddp":
        sums = snip.Scoring(reduction="sum_of_abs")
        found["ddp sum of abs"] = ("mlp", {"scoring": sums})
        found["ddp flops"] = ("mlp", {"budget": "flops"})
        found["ddp blocks"] = ("mlp", {"granularity": "1x2"})
        found["ddp units"] = ("mlp", {"granularity": "channel"})
    return found


ASKED = {name: what for how in HOW for name, what in asked(how).items()}


def asked_of(count):
    """What so many processes try: four of them everything."""
    few = [f"{how} {name}" for how in HOW for name in ("plain", "exact")]
    return list(ASKED) if count == 4 else few


SPARSITY = 0.6


def pruned(name, batches, how=None, rank=0):
    """The masks, the weights after pruning, and the provenance's samples."""
    network, settings = ASKED[name]
    model = NETWORKS[network]()
    wrapped = model if how is None else shared(model, how)
    torch.manual_seed(7 + rank)  # processes differ in what they would draw
    masks = snip.prune(wrapped, batches, sparsity=SPARSITY, **settings)
    masks.check(wrapped)
    assert snip.held_masks(wrapped) == masks
    return masks


class TwoHeads(nn.Module):
    """Each process's loss is of another head, and calls the model with a function."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.heads = nn.Linear(6, 20), nn.ModuleList([nn.Linear(20, 4) for _ in "ab"])

    def forward(self, x, activation):
        hidden = activation(self.body(x))
        return tuple(head(hidden) for head in self.heads)


def of_odd_models(rank, count):
    """Masks of models under DDP whose calls cannot be sent, or whose norms would talk."""
    batches = batches_of(rank, count)
    heads = shared(TwoHeads(), "ddp")
    masks = snip.prune(
        heads,
        batches,
        sparsity=0.9,
        loss_fn=lambda model, batch: F.cross_entropy(
            model(batch[0], activation=lambda x: x.tanh())[rank % 2], batch[1]
        ),
    )
    # DDP refuses the norm on a CPU, and the norm itself an input that is there.
    normed_model = shared(normed(), "ddp")
    normed_model.module[1] = nn.SyncBatchNorm.convert_sync_batchnorm(normed_model.module[1])
    synced = snip.prune(normed_model, batches[: 1 + rank], sparsity=SPARSITY)
    assert "forward" not in vars(normed_model.module[1])
    drawn = random_scores(shared(NETWORKS["mlp"](), "fsdp"))["0.weight"].to_local()
    return {
        "two heads": dict(masks.items()),
        "synced": dict(synced.items()),
        "drawn": (drawn.numel() * 4, drawn.untyped_storage().nbytes()),
    }


def normed():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 4))


def prune_in_a_process(rank, count, folder):
    found = {}
    for name in asked_of(count):
        network, _ = ASKED[name]
        masks = pruned(name, batches_of(rank, count, network), name.split()[0], rank)
        found[name] = dict(masks.items()), masks.provenance.samples
    for how in HOW:
        model = shared(NETWORKS["mlp"](), how)
        batches = batches_of(rank, count)
        batches = batches[:1] if rank else batches  # processes with fewer batches
        scores = snip.connection_sensitivity(model, batches)
        full = {n: s.full_tensor() if how == "fsdp" else s for n, s in scores.items()}
        found[f"{how} scores"] = full
        again = snip.prune(model, batches, sparsity=0.5)
        further = snip.prune(model, batches, sparsity=0.8)
        assert all(not (mask & ~again[name]).any() for name, mask in further.items())
        found[f"{how} grads"] = [p.grad is None for p in model.parameters()]
    found |= of_odd_models(rank, count)
    torch.save(found, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Gives what each of so many processes made; they are started once."""

    @cache
    def found(count):
        folder = tmp_path_factory.mktemp("prune")
        return found_in_processes(prune_in_a_process, folder, count)

    return found


@pytest.mark.parametrize(
    ("count", "name"), [(count, name) for count in COUNTS for name in asked_of(count)]
)
@expects("losses", "zeros")
def test_the_masks_are_those_of_one_process_on_the_same_data(count, name, made):
    network, _ = ASKED[name]
    alone = pruned(name, batches_of(0, 1, network))
    assert 0 < alone.kept < alone.total
    for masks, samples in (theirs[name] for theirs in made(count)):
        assert samples == alone.provenance.samples
        for key, mask in alone.items():
            assert torch.equal(mask, masks[key]), key


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("how", HOW)
def test_scores_differ_by_rounding_only(how, count, made):
    batches = [b for rank in range(count) for b in batches_of(rank, count)[: 1 if rank else None]]
    alone = snip.connection_sensitivity(NETWORKS["mlp"](), batches)
    largest = max(float(score.max()) for score in alone.values())
    for theirs in made(count):
        for name, score in alone.items():
            apart = (theirs[f"{how} scores"][name] - score).abs().max()
            assert apart <= ROUNDED * largest, name
        assert all(theirs[f"{how} grads"])  # which were None, and are again


def test_a_call_that_cannot_be_sent_and_heads_of_its_own_for_each_process(made):
    first, *others = (theirs["two heads"] for theirs in made(2))
    for masks in others:
        assert all(torch.equal(mask, masks[name]) for name, mask in first.items())
    # Both heads are learned, each by one process.
    assert all(first[f"heads.{head}.weight"].any() for head in (0, 1))


def test_a_synchronised_batch_norm_scores_by_each_batch(made):
    batches = [b for rank in range(2) for b in batches_of(rank, 2)[: 1 + rank]]
    alone = snip.prune(normed(), batches, sparsity=SPARSITY)
    for theirs in made(2):
        assert all(torch.equal(theirs["synced"][name], mask) for name, mask in alone.items())


def test_random_scores_of_a_part_take_the_memory_of_a_part(made):
    for theirs in made(2):
        needed, taken = theirs["drawn"]
        assert taken == needed


def test_every_method_at_initialisation_says_how_it_may_be_shared():
    for name, method in METHODS.items():
        if isinstance(method, AtInitialisation):
            assert ("DistributedDataParallel" in method.shared) == (name in METHODS_OF["ddp"])
            assert ("fully_shard" in method.shared) == (name in METHODS_OF["fsdp"])
