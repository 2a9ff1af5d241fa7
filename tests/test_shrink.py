"""Shrinking by hand: constants, what is kept, and what is refused and told."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from shrink_parts import IMAGE, Net, check, kept, kill_inputs, kill_outputs, masked, residual
from torch import nn

import snip
from snip.export.shrink import ShrinkReport, shrink_plan
from snip.masks import Masks, held_masks


def test_unread_units_and_constants_go():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    net[0].bias.data = torch.tensor([1.0, 2.0, -3.0, 4.0])
    kill_inputs(net[0], 1, 2)
    kill_outputs(net[2], 3)
    small = check(masked(net), torch.randn(5, 3))
    assert small[0].weight.shape == (1, 3)
    assert small[0].out_features == 1
    assert small[2].in_features == 1
    # relu(2) = 2 of unit 1 is folded, relu(-3) = 0 of unit 2 adds nothing.
    expected = net[2].bias + 2 * net[2].weight[:, 1]
    torch.testing.assert_close(small[2].bias, expected)


def test_one_empty_layer_keeps_one_unit():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    net[2].weight.data.zero_()
    small = check(masked(net), torch.randn(5, 3))
    assert [small[i].out_features for i in (0, 2, 4)] == [1, 1, 2]


def test_a_masked_bias_that_takes_a_constant_is_a_connection_again():
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    kill_inputs(net[0], 0)
    net[1].bias.data.zero_()
    Masks({n: p != 0 for n, p in net.named_parameters()}).apply(net)
    small = check(net, torch.randn(4, 3))
    masks = held_masks(small)
    assert masks is not None
    assert masks["1.bias"].all()
    masks.check(small)


@pytest.mark.parametrize(
    ("options", "goes"),
    [
        ({}, True),
        ({"padding": 1}, False),
        ({"padding": "same"}, False),
        ({"padding": "valid"}, True),
        ({"padding": 1, "padding_mode": "reflect"}, True),
        ({"padding": 1, "padding_mode": "circular", "stride": 2, "dilation": 2}, True),
    ],
)
def test_zero_padding_makes_a_constant_differ_at_the_border(options, goes):
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 4, 3, **options), nn.Conv2d(4, 2, 1))
    kill_inputs(net[0], 1)
    small = check(masked(net), IMAGE)
    assert small[0].out_channels == (2 if goes else 3)
    if not goes:
        [(reason, count)] = kept(small, "0")
        assert (count, "'1'" in reason, "border" in reason) == (1, True, True)
    net[0].bias.data[1] = 0  # a zero constant is the same everywhere
    assert check(net, IMAGE)[0].out_channels == 2


def test_a_new_bias_where_there_was_none():
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 4, 3, bias=False), nn.Flatten())
    kill_inputs(net[0], 1)
    small = check(masked(net), IMAGE)
    assert small[1].bias.shape == (4,)
    assert "1.bias" in dict(held_masks(small))  # the masks know it
    assert snip.shrink_report(small).folded == 4


def test_patterns_of_constants_are_folded_by_a_linear_layer():
    net = nn.Sequential(
        nn.Conv2d(2, 3, 1), nn.Conv2d(3, 3, 3, padding=1), nn.Flatten(), nn.Linear(108, 4)
    )
    kill_inputs(net[0], 0)
    net[1].weight.data[1, 1:] = 0  # reads only the constant: a pattern with a border
    small = check(masked(net), IMAGE)
    assert small[1].out_channels == 2
    assert small[3].in_features == 72


@pytest.mark.parametrize(
    ("pool", "goes"),
    [
        (nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), True),
        (nn.AvgPool2d(3, 2, padding=1), False),
        (nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), True),
        (nn.AvgPool2d(2), True),
        (nn.AvgPool2d(2, divisor_override=3), False),
        (nn.AdaptiveAvgPool2d(3), True),
        (nn.AdaptiveMaxPool2d(3), True),
        (nn.ZeroPad2d(1), False),
        (nn.ConstantPad2d(1, 5.0), False),
        (nn.ReplicationPad2d(1), True),
        (nn.Upsample(scale_factor=2), True),
        (nn.Dropout(0.5), True),
        (nn.GELU(), True),
        (nn.PReLU(), False),
        (nn.PReLU(3), False),
        (nn.InstanceNorm2d(3), False),
        (nn.GroupNorm(3, 3), False),
        (nn.Softmax2d(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_carries_a_constant(pool, goes):
    net = nn.Sequential(nn.Conv2d(2, 3, 1), pool, nn.Conv2d(3, 4, 1))
    kill_inputs(net[0], 1)
    net[0].bias.data = torch.tensor([0.5, -0.6, 0.7])
    small = check(masked(net), IMAGE)
    assert small[0].out_channels == (2 if goes else 3)


def test_batch_norm_turns_a_constant_into_another():
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 1))
    net[1].running_mean.copy_(torch.randn(3))
    net[1].bias.data = torch.randn(3) + 2
    kill_inputs(net[0], 0, 2)
    small = check(masked(net), IMAGE)
    assert small[1].num_features == 1
    assert small[1].running_var.shape == (1,)


def test_zero_initialised_norms_do_not_kill():
    """The usual trick of residual networks: gamma starts at zero and grows."""
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 1))
    nn.init.zeros_(net[1].weight)
    assert snip.shrink_report(check(masked(net), IMAGE)).removed == 0


def test_constants_of_any_activation_are_folded():
    for activation in (nn.ReLU(), nn.Tanh()):
        net = nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 2))
        kill_inputs(net[0], 1)
        nn.init.zeros_(net[0].bias)
        small = check(masked(net), torch.randn(5, 3))
        assert small[0].out_features == 3
        assert snip.shrink_report(small).notes == ()


def test_zeros_need_no_mask():
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2))
    kill_outputs(net[1], 0)
    assert check(net, torch.randn(5, 3))[0].out_features == 3


def test_other_work_in_train_mode_is_noted():
    def code(m, x):
        x = m.first(x)
        return m.last(x) + m.aux(x) if m.training else m.last(x)

    net = Net(code, first=nn.Linear(3, 4), last=nn.Linear(4, 2), aux=nn.Linear(4, 2))
    report = snip.shrink_report(check(masked(net), torch.randn(5, 3)))
    assert "eval mode" in report.notes[0]


def test_masks_are_cut_and_held():
    net = residual()
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


def test_the_model_is_left_alone():
    net = masked(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)))
    kill_outputs(net[3], 1)
    net[1].eval()
    state = copy.deepcopy(net.state_dict())
    x = torch.randn(5, 3)
    generator = torch.get_rng_state()
    small = snip.shrink(net, x)
    assert torch.equal(generator, torch.get_rng_state())
    assert net.training
    assert not net[1].training
    assert [m.training for m in small] == [True, False, True, True]
    assert all(torch.equal(value, net.state_dict()[key]) for key, value in state.items())
    assert list(small.state_dict()) == list(state)
    assert held_masks(net) is not None


def test_copies_of_the_small_model():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    kill_outputs(net[1], 1)
    small = check(masked(net), torch.randn(5, 3))
    for twin in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert snip.shrink_report(twin) == snip.shrink_report(small)
        assert held_masks(twin) == held_masks(small)


def test_shrinking_twice_remembers_the_original():
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    kill_outputs(net[2], 1)
    once = check(masked(net), torch.randn(5, 3))
    snip.release(once)
    kill_outputs(once[2], 2)  # unit 3 of the original
    twice = check(masked(once), torch.randn(5, 3))
    plan = shrink_plan(twice)
    assert plan["0"].outputs == plan["2"].inputs == (0, 2, 4)
    assert plan["0"].inputs is None


def test_batches_of_any_kind():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x, mask=None, *, double=False):
            y = self.first(x)
            if mask is not None:
                y = y * mask
            return {"logits": self.last(y * 2 if double else y)}

    net = Two()
    kill_outputs(net.last, 1)
    masked(net)
    x = torch.randn(5, 3)
    for batch in (x, (x, torch.randn(5, 1)), {"x": x, "double": True}, {"mask": None, "x": x}):
        assert snip.shrink(net, batch).first.out_features == 3
    with torch.inference_mode():
        assert snip.shrink(net, x.clone()).first.out_features == 3


def test_models_shrunk_in_inference_mode_can_be_trained():
    net, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3)
    with torch.inference_mode():
        small = snip.shrink(masked(net), x)
    small(x).sum().backward()
    assert all(p.grad is not None for p in small.parameters())


def test_shared_tied_and_hooked_layers_stay():
    def net():
        made = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
        kill_outputs(made[2], 1)
        return made

    x = torch.randn(5, 4)
    tied = net()
    tied[0].weight = tied[2].weight
    assert snip.shrink_report(check(tied, x)).removed == 0
    hooked = net()
    hooked[2].register_forward_hook(lambda module, args, out: out + args[0].sum())
    assert snip.shrink_report(check(hooked, x)).removed == 0
    twice = nn.BatchNorm1d(4, affine=False)
    normed_twice = nn.Sequential(nn.Linear(4, 4), twice, nn.Linear(4, 4), twice, nn.Linear(4, 2))
    kill_outputs(normed_twice[2], 1)
    assert snip.shrink_report(check(normed_twice, x)).removed == 0
    normed = net()
    nn.utils.parametrizations.weight_norm(normed[2])
    assert check(normed, x)[0].out_features == 4


@pytest.mark.parametrize("kind", ["branch", "sizes", "other"])
def test_refusals_say_why(kind):
    def code(m, x):
        if kind == "branch" and x.sum() > 0:
            return x
        y = m.first(x)
        if kind == "sizes":
            y = y.expand(5, 4)
        # Surgery changes the number, and tracing took the old one for a constant.
        return m.last(y * (m.first.out_features if kind == "other" else 1))

    net = Net(code, first=nn.Linear(3, 4), last=nn.Linear(4, 2))
    kill_outputs(net.last, 1)
    if kind == "sizes":
        assert snip.shrink(net, torch.randn(5, 3)).first.out_features == 4
        return
    words = "cannot follow" if kind == "branch" else "outputs differ"
    with pytest.raises(snip.InputError, match=words):
        snip.shrink(net, torch.randn(5, 3))
    with pytest.raises(snip.InputError, match=r"does not run|cannot follow"):
        snip.shrink(net, torch.randn(5, 7))


def test_report():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    kill_outputs(net[1], 1)
    report = snip.shrink_report(check(masked(net), torch.randn(5, 3)))
    assert isinstance(report, ShrinkReport)
    assert report.removed == 1
    assert report.parameters == (26, 20)
    assert "4 -> 3" in str(report)
    with pytest.raises(snip.InputError, match=r"snip\.shrink"):
        snip.shrink_report(net)
