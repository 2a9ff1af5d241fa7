"""Methods that train: any network, any data that can be read again, and what is refused."""

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from expected_warnings import expects
from networks import make
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import snip
from snip.data import load
from snip.methods import METHODS
from snip.methods.kinds import DuringTraining
from snip.training import TrainConfig

TRAINING = [name for name, method in METHODS.items() if isinstance(method, DuringTraining)]
TINY = TrainConfig(lr=0.02, iterations=12, lr_drops=())


def convolutional():
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 8, 3, groups=2),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


def loader():
    torch.manual_seed(0)
    images = torch.randn(60, 1, 8, 8)
    return DataLoader(TensorDataset(images, torch.arange(60) % 3), batch_size=20)


@pytest.mark.parametrize("method", TRAINING)
def test_a_data_loader_and_a_network_of_the_users_own_will_do(method):
    model = convolutional()
    masks = snip.prune(model, loader(), sparsity=0.6, method=method, training=TINY)
    assert masks.kept == round(masks.total * 0.4)
    masks.check(model)
    assert snip.held_masks(model) == masks
    assert masks.provenance.method == method
    assert all(hook is None or not hook for hook in (m._forward_hooks for m in model.modules()))
    assert torch.isfinite(model(torch.randn(2, 1, 8, 8))).all()


@expects("losses")
def test_a_snip_data_set_will_do_and_twice_is_the_same():
    mnist = load("mnist").subset(500, 50)
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, 10))
        config = TrainConfig(lr=0.02, iterations=6, lr_drops=())
        found.append((snip.prune(model, mnist, sparsity=0.9, method="dns", training=config), model))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1][1].weight, found[1][1][1].weight)


@pytest.mark.parametrize("method", ["lwc", "lc"])
def test_a_recurrent_network_is_no_obstacle_where_weights_are_all_that_counts(method):
    model = Recurrent()
    batches = [(torch.randn(4, 5, 3), torch.arange(4) % 2)] * 2
    masks = snip.prune(model, batches, sparsity=0.5, method=method, training=TINY)
    assert masks.kept == round(masks.total * 0.5)
    assert any("weight_hh" in name for name in masks)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


@pytest.mark.parametrize("method", ["svd", "obd", "lobs"])
def test_a_layer_that_a_method_cannot_take_is_refused_and_nothing_is_changed(method):
    model = Recurrent()
    before = copy.deepcopy(model.state_dict())
    batches = [(torch.randn(4, 5, 3), torch.arange(4) % 2)]
    with pytest.raises(snip.InputError, match=f"method '{method}' cannot take 'cell.weight_ih_l0'"):
        snip.prune(model, batches, sparsity=0.5, method=method)
    masks = snip.prune(
        model, batches, sparsity=0.5, method=method, training=TINY,
        params=lambda name, module, parameter: isinstance(module, nn.Linear),
    )  # fmt: skip
    assert all(name.startswith("head") for name in masks)
    assert before.keys() == model.state_dict().keys()


def test_a_weight_under_a_norm_is_refused_where_layers_must_be_plain():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    with pytest.raises(snip.InputError, match=r"cannot take '0\.parametrizations"):
        snip.prune(model, [(torch.randn(4, 3), torch.zeros(4).long())], sparsity=0.5, method="svd")


@pytest.mark.parametrize("method", ["dns", "lc", "sws"])
def test_a_weight_under_a_norm_is_refused_where_whole_rows_may_be_tried_at_zero(method):
    """Weight norm divides by the length of a row: NaN, after who knows how many hours."""
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    batches = [(torch.randn(4, 3), torch.zeros(4).long())]
    with pytest.raises(snip.InputError, match="under weight or spectral norm"):
        snip.prune(model, batches, sparsity=0.5, method=method, training=TINY)
    masks = snip.prune(model, batches, sparsity=0.5, method="lwc", training=TINY)
    assert any("parametrizations" in name for name in masks)
    assert torch.isfinite(model(batches[0][0])).all()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"loss_fn": lambda model, batch: 0}, "loss_fn is .* trains by cross-entropy"),
        ({"scope": "erk"}, "scope is 'erk'"),
        ({"granularity": "channel"}, "granularity is 'channel'"),
        ({"floor": 3}, "floor is 3"),
        ({"biases": "keep"}, "biases is 'keep'"),
        ({"scoring": snip.Scoring(reduction="ema")}, "scoring is"),
        ({"sparsity": 95}, "write 0.95"),
        ({"sparsity": 0.9999}, "keeps 0 of"),
    ],
)
def test_wrong_requests_are_refused(given, reason):
    settings = {"sparsity": 0.9, "method": "lwc", **given}
    with pytest.raises(snip.InputError, match=reason):
        snip.prune(convolutional(), loader(), **settings)


def test_data_that_is_used_up_or_of_another_kind_is_refused():
    model = convolutional()
    with pytest.raises(snip.InputError, match="cannot be read again and again"):
        snip.prune(model, iter(loader()), sparsity=0.5, method="lwc")
    with pytest.raises(snip.InputError, match=r"no \(inputs, labels\) pairs"):
        snip.prune(model, [torch.randn(2, 1, 8, 8)], sparsity=0.5, method="lwc")
    with pytest.raises(snip.InputError, match="does not train"):
        snip.prune(*make("mlp"), sparsity=0.5, training=TINY)


def test_a_training_that_diverges_leaves_the_model_as_it_was():
    model = convolutional()
    before = copy.deepcopy(model.state_dict())
    wild = TrainConfig(lr=1e30, iterations=12, lr_drops=())
    with pytest.raises(snip.InputError, match="training stopped"):
        snip.prune(model, loader(), sparsity=0.6, method="lwc", training=wild)
    assert snip.held_masks(model) is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("method", TRAINING)
def test_a_pruned_network_is_pruned_further_by_a_method_that_trains(method):
    """Its first rounds would leave more than there is, and have nothing to do."""
    model = convolutional()
    before = snip.prune(model, next(iter(loader())), sparsity=0.5)
    masks = snip.prune(model, loader(), sparsity=0.7, method=method, training=TINY)
    assert masks.kept == round(masks.total * 0.3)
    assert all(not (mask & ~before[name]).any() for name, mask in masks.items())
    before.check(model)


@pytest.mark.parametrize("method", TRAINING)
def test_more_than_is_left_is_refused_before_anything_is_trained(method):
    model = convolutional()
    snip.prune(model, next(iter(loader())), sparsity=0.5)
    before = copy.deepcopy(model.state_dict())

    class Unread(list):
        def __iter__(self):
            pytest.fail("the data was read")

    with pytest.raises(snip.InputError, match="connections are to stay but only"):
        snip.prune(model, Unread(loader()), sparsity=0.2, method=method, training=TINY)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("method", ["svd", "lc"])
def test_a_layer_that_loses_everything_is_told_and_no_floor_is_advised(method):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
    batches = [(torch.randn(20, 8), torch.arange(20) % 3)] * 2
    with pytest.warns(snip.SnipWarning, match=r"nothing is left of '0\.weight' .* cannot learn"):
        masks = snip.prune(model, batches, sparsity=0.9, method=method, training=TINY)
    assert not masks["0.weight"].any()
    said = " ".join(snip.report(model).warnings)
    assert "prune again with a lower sparsity or by another method" in said
    assert "floor" not in said


SHORT = TrainConfig(lr=0.02, iterations=4, lr_drops=())
LONGER = TrainConfig(lr=0.02, iterations=40, lr_drops=())  # of which a round of LWC is six steps


def network(dtype=torch.float32):
    torch.manual_seed(0)
    layers = nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)
    return nn.Sequential(*layers).to(dtype)


def inputs(dtype=torch.float32):
    return torch.rand(8, 6, generator=torch.Generator().manual_seed(0)).to(dtype)


LABELS = torch.arange(8) % 3


class InDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = network()

    def forward(self, x):
        return {"logits": self.inside(x)}


class Endless(IterableDataset):
    def __iter__(self):
        return iter([(inputs()[0], 1)] * 8)


class Once:
    """Has a length, and gives its batches once."""

    def __init__(self, batches):
        self.left = iter([(inputs(), LABELS)] * batches)
        self.batches = batches

    def __len__(self):
        return self.batches

    def __iter__(self):
        return self.left


@pytest.mark.parametrize("method", ["lwc", "obd", "dns"])
@pytest.mark.parametrize(
    ("model", "data", "reason"),
    [
        (network, [(inputs(), LABELS + 1)], "Target 3 is out of bounds.*Give class indices"),
        (network, [(inputs(), LABELS.int())], r"labels torch.int32 \(8,\) failed.*labels.long"),
        (network, [(inputs(), LABELS.float())], "labels torch.float32 .* failed.*labels.long"),
        (InDict, [(inputs(), LABELS)], "the model returns a dict, and training .* takes logits"),
        (network, DataLoader(Endless(), batch_size=4), "a DataLoader of unknown length"),
        (network, Once(1), "a Once that has no batches left when it is read again"),
        (network, [(inputs()[:0], LABELS[:0])], "give one label for each"),
        (network, [], "a list without batches"),
    ],
    ids=["range", "int32", "float", "dict", "endless", "once", "no images", "no batches"],
)
def test_data_and_outputs_that_have_no_loss_are_told_in_words(model, data, reason, method):
    net = model()
    before = copy.deepcopy(net.state_dict())
    data = Once(1) if isinstance(data, Once) else data
    with pytest.raises(snip.InputError, match=reason):
        snip.prune(net, data, sparsity=0.5, method=method, training=SHORT)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("method", ["lwc", "dns"])
def test_a_later_batch_that_has_no_loss_is_told_in_words_too(method):
    data = [(inputs(), LABELS), (inputs(), LABELS + 7)]
    with pytest.raises(snip.InputError, match=r"is out of bounds.*Give class indices"):
        snip.prune(network(), data, sparsity=0.5, method=method, training=LONGER)


def test_data_that_ends_in_the_middle_of_a_training_is_told_in_words():
    with pytest.raises(snip.InputError, match="no batches left when it is read again"):
        snip.prune(network(), Once(3), sparsity=0.5, method="lwc", training=LONGER)


def test_what_the_model_itself_raises_stays_as_it_is():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.calls = network(), 0

        def forward(self, x):
            if x.sum() > 1e3:
                raise RuntimeError("of the user's own")
            return self.inside(x)

    data = [(inputs(), LABELS), (inputs() + 1e3, LABELS)]
    with pytest.raises(RuntimeError, match="of the user's own"):
        snip.prune(Broken(), data, sparsity=0.5, method="lwc", training=LONGER)


@pytest.mark.parametrize("method", TRAINING)
@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_inside_no_grad_a_method_trains_all_the_same(method, around):
    inside, outside, data = network(), network(), [(inputs(), LABELS)]
    with around():
        masks = snip.prune(inside, data, sparsity=0.5, method=method, training=SHORT)
        assert not torch.is_grad_enabled()
    assert masks == snip.prune(outside, data, sparsity=0.5, method=method, training=SHORT)


@pytest.mark.parametrize("method", TRAINING)
def test_gradients_of_the_users_own_stay_and_no_others_are_left(method):
    model = network(torch.float64)
    own = torch.full_like(model[0].weight, 7.0)
    model[0].weight.grad = own
    data = [(inputs(torch.float64), LABELS)]
    snip.prune(model, data, sparsity=0.5, method=method, training=SHORT)
    assert model[0].weight.grad is own
    assert (own == 7.0).all()
    assert [n for n, p in model.named_parameters() if p.grad is not None] == ["0.weight"]


def test_gradients_stay_where_pruning_fails():
    model = network()
    data = [(inputs(), LABELS), (inputs(), LABELS + 7)]
    with pytest.raises(snip.InputError, match="out of bounds"):
        snip.prune(model, data, sparsity=0.5, method="dns", training=SHORT)
    assert all(p.grad is None for p in model.parameters())


class Counted(DataLoader):
    started = 0

    def __iter__(self):
        self.started += 1
        return super().__iter__()


def test_data_is_looked_at_once_before_it_is_trained_on():
    loader = Counted(TensorDataset(inputs(), LABELS), batch_size=2)
    training = TrainConfig(iterations=4, lr_drops=())  # surgery is as long: one epoch
    snip.prune(network(), loader, sparsity=0.5, method="dns", training=training)
    assert loader.started == 2


def test_each_parameter_is_asked_about_once():
    asked: Counter[str] = Counter()

    def weights(name, layer, parameter):
        asked[name] += 1
        return parameter.ndim > 1

    settings: dict[str, Any] = {"sparsity": 0.5, "method": "lwc", "training": SHORT}
    snip.prune(network(), [(inputs(), LABELS)], params=weights, **settings)
    assert asked == {"0.weight": 1, "0.bias": 1, "2.weight": 1, "2.bias": 1}
    masks = snip.prune(network(), [(inputs(), LABELS)], **settings)
    assert masks.provenance.left_out == {"0.bias": "bias, kept", "2.bias": "bias, kept"}
