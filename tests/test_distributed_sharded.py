"""Models under FSDP2 in the states that users bring them in, in two processes."""

import traceback
import warnings

import pytest
import torch
from distributed_parts import batches_of, mlp, shared
from processes import found_in_processes
from sharded_parts import PROCESSES, alone, evaluate, evaluated, loss_of, train, whole
from torch import nn

import snip


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


def sharded_after_pruning(rank):
    masks = alone(model := mlp())
    shared(model, "fsdp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, rank, masks, optimizer)  # nobody has asked for the masks before the first step
    for name, parameter in model.named_parameters():
        moment = optimizer.state[parameter]["momentum_buffer"].full_tensor()
        assert not moment[~masks[name]].any()
    assert snip.held_masks(model) == masks


def sharded_after_pruning_and_evaluated(rank):
    masks = alone(model := mlp())
    shared(model, "fsdp")
    evaluate(model, rank)
    with warnings.catch_warnings():
        warnings.simplefilter("error", snip.SnipWarning)
        assert snip.held_masks(model) == masks
        masks.check(model)
        further = snip.prune(model, batches_of(rank, PROCESSES), sparsity=0.8)
        assert all(not (mask & ~masks[name]).any() for name, mask in further.items())
        train(model, rank, further)


ALIVE = []


def sharded_by_columns_after_pruning(rank):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    alone(model := mlp())
    fully_shard(model, shard_placement_fn=lambda p: Shard(int(p.shape == (9, 6))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model, batches_of(rank, PROCESSES)[0]).backward()
    with pytest.raises(snip.InputError, match="which is not supported"):
        optimizer.step()
    ALIVE.append(model)  # which optimisers of other models, in the cases after this, must not mind


def gradients_as_found(rank):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    model = fully_shard(nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.Linear(9, 4)))
    loss_of(model, batches_of(rank, PROCESSES)[0]).backward()
    before = {n: (p.grad, p.grad.full_tensor().clone()) for n, p in model.named_parameters()}
    snip.connection_sensitivity(model, batches_of(rank, PROCESSES))
    for name, parameter in model.named_parameters():
        gradient, values = before[name]
        assert parameter.grad is gradient
        assert torch.equal(gradient.full_tensor(), values)


def gradients_that_are_not_summed_yet(rank):
    """A user who accumulates without synchronising prunes in between, and goes on."""
    first, second = batches_of(rank, PROCESSES)[:2]

    def accumulated(prunes):
        model = shared(mlp(), "fsdp")
        model.set_requires_gradient_sync(False)
        loss_of(model, first).backward()
        if prunes:
            scores = snip.connection_sensitivity(model, batches_of(rank, PROCESSES))
            expected = snip.connection_sensitivity(mlp(), batches_of(0, 1))
            for name, score in expected.items():
                torch.testing.assert_close(scores[name].full_tensor(), score)
        assert all(p.grad is None for p in model.parameters())
        loss_of(model, first).backward()  # still without synchronising
        assert all(p.grad is None for p in model.parameters())
        model.set_requires_gradient_sync(True)
        loss_of(model, second).backward()
        return {name: p.grad.full_tensor() for name, p in model.named_parameters()}

    plain, pruned = accumulated(False), accumulated(True)
    assert all(torch.equal(pruned[name], gradient) for name, gradient in plain.items())


def optimisers_in_backward(rank):
    model = shared(mlp(), "fsdp")
    own = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: own[p].step())
    before = whole(model)
    scores = snip.connection_sensitivity(model, batches_of(rank, PROCESSES))
    after = whole(model)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert scores["0.weight"].full_tensor().any()
    loss_of(model, batches_of(rank, PROCESSES)[0]).backward()
    assert not torch.equal(whole(model)["0.weight"], before["0.weight"])  # they step again


def mixed_precision(rank):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = fully_shard(mlp(), mp_policy=policy)
    masks = snip.prune(model, batches_of(rank, PROCESSES), sparsity=0.6)
    assert masks.kept == alone(mlp()).kept
    train(model, rank, masks)


class Tied(nn.Module):
    """A weight that two layers have, and one that is frozen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))
        self.b.weight = self.a.weight
        self.c.weight.requires_grad_(False)

    def forward(self, x):
        return self.d(self.c(self.b(self.a(x).tanh()).tanh()).tanh())


def tied_and_frozen(rank):
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(Tied())
    masks = snip.prune(model, batches_of(rank, PROCESSES), sparsity=0.6)
    assert masks == alone(Tied())
    assert not {"b.weight", "c.weight"} & set(masks)
    trained = [p for p in model.parameters() if p.requires_grad]
    train(model, rank, masks, torch.optim.SGD(trained, lr=0.1, momentum=0.9))


def convolutional():
    """Its last layer has fewer rows than there are processes."""
    torch.manual_seed(1)
    norm = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
    return nn.Sequential(norm, nn.Linear(48, 5), nn.Linear(5, 1))


def uneven_batches_of_a_batch_norm(rank):
    from torch.distributed.fsdp import fully_shard

    def images(seed):
        return (torch.randn(4 + seed, 1, 6, 6, generator=torch.Generator().manual_seed(seed)),)

    settings = {"sparsity": 0.5, "loss_fn": lambda model, batch: model(batch[0]).square().mean()}
    own = [images(0)] if rank == 0 else [images(1), images(2)]
    masks = snip.prune(fully_shard(convolutional()), own, **settings)
    everything = [images(0), images(1), images(2)]
    assert masks == snip.prune(convolutional(), everything, **settings)


CASES = [
    pruned_after_evaluation,
    scored_after_evaluation,
    applied_after_evaluation,
    sharded_after_pruning,
    sharded_after_pruning_and_evaluated,
    sharded_by_columns_after_pruning,
    gradients_as_found,
    gradients_that_are_not_summed_yet,
    optimisers_in_backward,
    mixed_precision,
    tied_and_frozen,
    uneven_batches_of_a_batch_norm,
]


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
    return found_in_processes(try_in_a_process, folder, PROCESSES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_it_is_pruned_and_trained_as_in_one_process(case, found):
    assert [theirs[case.__name__] for theirs in found] == [""] * PROCESSES
