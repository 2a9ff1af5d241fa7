"""What methods that train are given: mistakes are told in words, the user's own is left alone."""

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import snip
from snip.methods import METHODS
from snip.methods.kinds import DuringTraining
from snip.training import TrainConfig

TRAINING = [name for name, method in METHODS.items() if isinstance(method, DuringTraining)]
TINY = TrainConfig(lr=0.02, iterations=4, lr_drops=())
LONGER = TrainConfig(lr=0.02, iterations=40, lr_drops=())  # of which a round of LWC is six steps


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)
    return nn.Sequential(*layers).to(dtype)


def inputs(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(8, 6, generator=torch.Generator().manual_seed(0)).to(dtype)


LABELS = torch.arange(8) % 3


class InDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = network()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.inside(x)}


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter([(inputs()[0], 1)] * 8)


class Once:
    """Has a length, and gives its batches once."""

    def __init__(self, batches: int) -> None:
        self.left = iter([(inputs(), LABELS)] * batches)
        self.batches = batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Any]:
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
def test_data_and_outputs_that_have_no_loss_are_told_in_words(
    model: Any, data: Any, reason: str, method: str
) -> None:
    net = model()
    before = copy.deepcopy(net.state_dict())
    data = Once(1) if isinstance(data, Once) else data
    with pytest.raises(snip.InputError, match=reason):
        snip.prune(net, data, sparsity=0.5, method=method, training=TINY)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("method", ["lwc", "dns"])
def test_a_later_batch_that_has_no_loss_is_told_in_words_too(method: str) -> None:
    data = [(inputs(), LABELS), (inputs(), LABELS + 7)]
    with pytest.raises(snip.InputError, match=r"is out of bounds.*Give class indices"):
        snip.prune(network(), data, sparsity=0.5, method=method, training=LONGER)


def test_data_that_ends_in_the_middle_of_a_training_is_told_in_words() -> None:
    with pytest.raises(snip.InputError, match="no batches left when it is read again"):
        snip.prune(network(), Once(3), sparsity=0.5, method="lwc", training=LONGER)


def test_what_the_model_itself_raises_stays_as_it_is() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.calls = network(), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 1e3:
                raise RuntimeError("of the user's own")
            return self.inside(x)

    data = [(inputs(), LABELS), (inputs() + 1e3, LABELS)]
    with pytest.raises(RuntimeError, match="of the user's own"):
        snip.prune(Broken(), data, sparsity=0.5, method="lwc", training=LONGER)


@pytest.mark.parametrize("method", TRAINING)
@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_inside_no_grad_a_method_trains_all_the_same(method: str, around: Any) -> None:
    inside, outside, data = network(), network(), [(inputs(), LABELS)]
    with around():
        masks = snip.prune(inside, data, sparsity=0.5, method=method, training=TINY)
        assert not torch.is_grad_enabled()
    assert masks == snip.prune(outside, data, sparsity=0.5, method=method, training=TINY)


@pytest.mark.parametrize("method", TRAINING)
def test_gradients_of_the_users_own_stay_and_no_others_are_left(method: str) -> None:
    model = network(torch.float64)
    own = torch.full_like(model[0].weight, 7.0)
    model[0].weight.grad = own
    data = [(inputs(torch.float64), LABELS)]
    snip.prune(model, data, sparsity=0.5, method=method, training=TINY)
    assert model[0].weight.grad is own
    assert (own == 7.0).all()
    assert [n for n, p in model.named_parameters() if p.grad is not None] == ["0.weight"]


def test_gradients_stay_where_pruning_fails() -> None:
    model = network()
    data = [(inputs(), LABELS), (inputs(), LABELS + 7)]
    with pytest.raises(snip.InputError, match="out of bounds"):
        snip.prune(model, data, sparsity=0.5, method="dns", training=TINY)
    assert all(p.grad is None for p in model.parameters())


class Counted(DataLoader):
    started = 0

    def __iter__(self) -> Any:
        self.started += 1
        return super().__iter__()


def test_data_is_looked_at_once_before_it_is_trained_on() -> None:
    loader = Counted(TensorDataset(inputs(), LABELS), batch_size=2)
    training = TrainConfig(iterations=4, lr_drops=())  # surgery is as long: one epoch
    snip.prune(network(), loader, sparsity=0.5, method="dns", training=training)
    assert loader.started == 2


def test_each_parameter_is_asked_about_once() -> None:
    asked: Counter[str] = Counter()

    def weights(name: str, layer: nn.Module, parameter: nn.Parameter) -> bool:
        asked[name] += 1
        return parameter.ndim > 1

    settings: dict[str, Any] = {"sparsity": 0.5, "method": "lwc", "training": TINY}
    snip.prune(network(), [(inputs(), LABELS)], params=weights, **settings)
    assert asked == {"0.weight": 1, "0.bias": 1, "2.weight": 1, "2.bias": 1}
    masks = snip.prune(network(), [(inputs(), LABELS)], **settings)
    assert masks.provenance.left_out == {"0.bias": "bias, kept", "2.bias": "bias, kept"}
