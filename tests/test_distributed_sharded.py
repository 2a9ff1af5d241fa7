"""Models under FSDP2 in the states that users bring them in, in two processes."""

import traceback

import pytest
import torch
import torch.nn.functional as F
from distributed_parts import batches_of, mlp, shared
from processes import run_in_processes

import snip

PROCESSES = 2


def loss_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def whole(model):
    """Every parameter, gathered from all processes."""
    return {n: p.full_tensor() for n, p in model.named_parameters()}


def train(model, rank, masks, optimizer=None):
    """Some steps, through which what is pruned stays zero."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)
    before = whole(model)
    for batch in batches_of(rank, PROCESSES):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    masks.check(model)
    after = whole(model)
    assert all(not after[name][~mask].any() for name, mask in masks.items())
    assert any(not torch.equal(after[name], before[name]) for name in masks)


def evaluated(rank, roots=1):
    """A model after a forward without a backward, whose root has its parameters whole."""
    from torch.distributed.fsdp import fully_shard

    model = shared(mlp(), "fsdp") if roots > 1 else fully_shard(mlp())
    evaluate(model, rank)
    return model


def evaluate(model, rank):
    with torch.no_grad():
        model(batches_of(rank, PROCESSES)[0][0])


def alone(model, **settings):
    """The masks of one process on the data of all."""
    return snip.prune(model, batches_of(0, 1), sparsity=0.6, **settings)


def pruned_after_evaluation(rank):
    for roots in (1, 2):
        model = evaluated(rank, roots)
        masks = snip.prune(model, batches_of(rank, PROCESSES), sparsity=0.6)
        assert masks == alone(mlp())
        train(model, rank, masks)
        evaluate(model, rank)
        masks.check(model)
        assert snip.held_masks(model) == masks
        assert snip.Masks.from_zeros(model) == masks


def scored_after_evaluation(rank):
    expected = snip.connection_sensitivity(mlp(), batches_of(0, 1))
    found = snip.connection_sensitivity(evaluated(rank), batches_of(rank, PROCESSES))
    for name, score in expected.items():
        torch.testing.assert_close(found[name].full_tensor(), score)
    for method in ("random", "magnitude"):
        snip.prune(evaluated(rank), batches_of(rank, PROCESSES), sparsity=0.6, method=method)


def applied_after_evaluation(rank):
    masks = alone(mlp())
    model = shared(mlp(), "fsdp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    evaluate(model, rank)
    masks.apply(model)
    train(model, rank, masks, optimizer)


CASES = [pruned_after_evaluation, scored_after_evaluation, applied_after_evaluation]


def try_in_a_process(rank, count, folder):
    found = {}
    for case in CASES:
        try:
            case(rank)
            found[case.__name__] = ""
        except Exception:  # told to the test of that case
            found[case.__name__] = traceback.format_exc()
    torch.save(found, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    run_in_processes(try_in_a_process, folder, PROCESSES)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(PROCESSES)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_it_is_pruned_and_trained_as_in_one_process(case, found):
    assert [theirs[case.__name__] for theirs in found] == [""] * PROCESSES
