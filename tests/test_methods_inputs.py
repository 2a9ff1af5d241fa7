"""What methods are given: batches that some need and others do not, and data to train on."""

import copy

import pytest
import torch
from expected_warnings import expects
from networks import make
from torch import nn
from torch.utils.data import TensorDataset

import snip
from snip.methods import METHODS, AtInitialisation
from snip.training import TrainConfig

FREE = ("random", "magnitude", "erk")  # which see neither data nor a call of the model
QUICK = TrainConfig(iterations=4, batch_size=8, lr_drops=())


def labelled():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(8, 6, generator=generator), torch.arange(8) % 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))


@pytest.mark.parametrize("method", FREE)
@expects("losses")
def test_a_method_that_sees_no_data_prunes_as_it_does_with_a_batch(method):
    model, batch = make("conv")
    torch.manual_seed(7)
    without = snip.prune(copy.deepcopy(model), sparsity=0.5, method=method)
    torch.manual_seed(7)
    assert without == snip.prune(model, batch, sparsity=0.5, method=method)
    assert (without.provenance.batches, without.provenance.input_shape) == (0, None)


@pytest.mark.parametrize("granularity", ["2:4", "4x4"])
@expects("losses", "pattern")
def test_patterns_and_blocks_need_no_batch(granularity):
    masks = snip.prune(network(), sparsity=0.5, method="magnitude", granularity=granularity)
    assert masks.provenance.granularity == granularity


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        *(({"method": name}, f"method '{name}' must see") for name in sorted(
            name for name, method in METHODS.items()
            if isinstance(method, AtInitialisation) and name not in FREE
        )),
        ({"method": "random", "budget": "flops"}, "budget 'flops'"),
        ({"method": "random", "granularity": "channel"}, "granularity 'channel'"),
    ],
)  # fmt: skip
def test_what_must_see_a_call_asks_for_a_batch_and_changes_nothing(options, reason):
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(snip.InputError, match=f"batches is missing: {reason}"):
        snip.prune(model, sparsity=0.5, **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_one_batch_is_enough_for_a_method_that_trains():
    model, other = network(), network()
    masks = snip.prune(model, labelled(), sparsity=0.5, method="lwc", training=QUICK)
    assert masks == snip.prune(other, [labelled()], sparsity=0.5, method="lwc", training=QUICK)


def test_methods_that_train_say_how_much_is_left_out():
    model = network()
    model[0].requires_grad_(False)
    with pytest.warns(snip.SnipWarning, match="not up for pruning"):
        snip.prune(model, [labelled()], sparsity=0.5, method="lwc", training=QUICK)


def test_methods_that_train_note_what_the_network_is_called_with():
    """So that a report of their masks knows FLOPs and follows paths."""
    model = network()
    masks = snip.prune(model, [labelled()], sparsity=0.5, method="lwc", training=QUICK)
    assert masks.provenance.input_shape == (6,)
    assert masks.provenance.uses == {"0.weight": 1, "0.bias": 1, "2.weight": 1, "2.bias": 1}
    text = str(snip.report(model, masks))
    assert "FLOPs per sample" in text
    assert "Paths were not followed" not in text


@pytest.mark.parametrize(
    ("data", "training", "reason"),
    [
        (TensorDataset(*labelled()), None, "a TensorDataset of single samples: give its batches"),
        ([labelled()], {}, "training is a dict: give a snip.TrainConfig"),
        ([(labelled()[0], torch.tensor(1))], None, r"labels \(\): give one label for each"),
        ([(labelled()[0], torch.ones(3).long())], None, r"labels \(3,\): give one label for each"),
        (None, None, "the data is a NoneType"),
    ],
)
def test_data_that_cannot_be_trained_on_is_told(data, training, reason):
    with pytest.raises(snip.InputError, match=reason):
        snip.prune(network(), data, sparsity=0.5, method="lwc", training=training)
