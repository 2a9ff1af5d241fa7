"""Shrinking by hand: what the small model is, what it keeps for training, and what is refused."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from shrink_parts import Residual, check, kill_inputs, kill_outputs, masked
from torch import nn

import snip
from snip.export.shrink import ShrinkReport, shrink, shrink_plan, shrink_report
from snip.masks import held_masks


def test_constants_of_any_activation_are_folded() -> None:
    for activation in (nn.ReLU(), nn.Tanh()):
        net = nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 2))
        kill_inputs(net[0], 1)
        nn.init.zeros_(net[0].bias)
        small = check(masked(net), torch.randn(5, 3))
        assert small[0].out_features == 3
        assert shrink_report(small).notes == ()


def test_zeros_need_no_mask() -> None:
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2))
    kill_outputs(net[1], 0)
    assert check(net, torch.randn(5, 3))[0].out_features == 3


def test_other_work_in_train_mode_is_noted() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.aux = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            return self.last(x) + self.aux(x) if self.training else self.last(x)

    report = shrink_report(check(masked(Auxiliary()), torch.randn(5, 3)))
    assert "eval mode" in report.notes[0]


def test_masks_are_cut_and_held() -> None:
    net = Residual()
    x, targets = torch.randn(4, 2, 6, 6), torch.tensor([0, 1, 1, 0])
    snip.prune(net, (x, targets), sparsity=0.7)
    small = check(net, (x)).train()
    masks = held_masks(small)
    assert masks is not None
    assert masks.provenance.shrunk_from["total"] > masks.total
    optimizer = torch.optim.AdamW(small.parameters(), lr=0.1, weight_decay=0.1)
    F.cross_entropy(small(x), targets).backward()
    optimizer.step()
    masks.check(small)


def test_the_model_is_left_alone() -> None:
    net = masked(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)))
    kill_outputs(net[3], 1)
    net[1].eval()
    state = copy.deepcopy(net.state_dict())
    x = torch.randn(5, 3)
    generator = torch.get_rng_state()
    small = shrink(net, x)
    assert torch.equal(generator, torch.get_rng_state())
    assert net.training
    assert not net[1].training
    assert [m.training for m in small] == [True, False, True, True]
    assert all(torch.equal(value, net.state_dict()[key]) for key, value in state.items())
    assert list(small.state_dict()) == list(state)
    assert held_masks(net) is not None


def test_copies_of_the_small_model() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    kill_outputs(net[1], 1)
    small = check(masked(net), torch.randn(5, 3))
    for twin in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert shrink_report(twin) == shrink_report(small)
        assert held_masks(twin) == held_masks(small)


def test_shrinking_twice_remembers_the_original() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    kill_outputs(net[2], 1)
    once = check(masked(net), torch.randn(5, 3))
    snip.release(once)
    kill_outputs(once[2], 2)  # unit 3 of the original
    twice = check(masked(once), torch.randn(5, 3))
    plan = shrink_plan(twice)
    assert plan["0"].outputs == plan["2"].inputs == (0, 2, 4)
    assert plan["0"].inputs is None


def test_batches_of_any_kind() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(
            self, x: torch.Tensor, mask: torch.Tensor | None = None, *, double: bool = False
        ) -> dict[str, torch.Tensor]:
            y = self.first(x)
            if mask is not None:
                y = y * mask
            return {"logits": self.last(y * 2 if double else y)}

    net = Two()
    kill_outputs(net.last, 1)
    masked(net)
    x = torch.randn(5, 3)
    for batch in (x, (x, torch.randn(5, 1)), {"x": x, "double": True}, {"mask": None, "x": x}):
        assert shrink(net, batch).first.out_features == 3
    with torch.inference_mode():
        assert shrink(net, x.clone()).first.out_features == 3


def test_shared_tied_and_hooked_layers_stay() -> None:
    def net() -> nn.Sequential:
        made = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
        kill_outputs(made[2], 1)
        return made

    x = torch.randn(5, 4)
    tied = net()
    tied[0].weight = tied[2].weight
    assert shrink_report(check(tied, x)).removed == 0
    hooked = net()
    hooked[2].register_forward_hook(lambda module, args, out: out + args[0].sum())
    assert shrink_report(check(hooked, x)).removed == 0
    twice = nn.BatchNorm1d(4, affine=False)
    normed_twice = nn.Sequential(nn.Linear(4, 4), twice, nn.Linear(4, 4), twice, nn.Linear(4, 2))
    kill_outputs(normed_twice[2], 1)
    assert shrink_report(check(normed_twice, x)).removed == 0
    normed = net()
    nn.utils.parametrizations.weight_norm(normed[2])
    assert check(normed, x)[0].out_features == 4


@pytest.mark.parametrize("kind", ["branch", "sizes", "other"])
def test_refusals_say_why(kind: str) -> None:
    class Bad(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if kind == "branch" and x.sum() > 0:
                return x
            y = self.first(x)
            if kind == "sizes":
                y = y.expand(5, 4)
            # Surgery changes the number, and tracing took the old one for a constant.
            return self.last(y * (self.first.out_features if kind == "other" else 1))

    net = Bad()
    kill_outputs(net.last, 1)
    if kind == "sizes":
        assert shrink(net, torch.randn(5, 3)).first.out_features == 4
        return
    words = "cannot follow" if kind == "branch" else "outputs differ"
    with pytest.raises(snip.InputError, match=words):
        shrink(net, torch.randn(5, 3))
    with pytest.raises(snip.InputError, match=r"does not run|cannot follow"):
        shrink(net, torch.randn(5, 7))


def test_report() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    kill_outputs(net[1], 1)
    report = shrink_report(check(masked(net), torch.randn(5, 3)))
    assert isinstance(report, ShrinkReport)
    assert report.removed == 1
    assert report.parameters == (26, 20)
    assert "4 -> 3" in str(report)
    with pytest.raises(snip.InputError, match=r"snip\.shrink"):
        shrink_report(net)
