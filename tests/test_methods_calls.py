"""OBD, SVD and L-OBS watch what layers are given: layers that they would get wrong are refused."""

import copy

import pytest
import torch
import torch.nn.functional as F
from expected_warnings import expects
from torch import nn

import snip
from snip.methods.obd import hessian_diagonal, recorded
from snip.training import TrainConfig

TINY = TrainConfig(lr=0.02, iterations=12, lr_drops=())
WATCHING = ["obd", "svd", "lobs"]


class Tenth(nn.Linear):
    """Computes with another weight than its own, zeros where its own has zeros."""

    def forward(self, input):
        return F.linear(input, self.weight * 0.1, self.bias)


class Padded(nn.Conv2d):
    """Computes torch's convolution of another input."""

    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(F.pad(input, (1, 1, 1, 1)), weight, bias)


class Attention(nn.Module):
    """Tokens [B, 4, 3], whose attention computes with the weight of its last layer by itself."""

    def __init__(self):
        super().__init__()
        self.heads, self.head = nn.MultiheadAttention(3, 1, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        x = x.view(len(x), 4, 3)
        return self.head(self.heads(x, x, x)[0].mean(1))


class ByItself(nn.Sequential):
    """Computes with the weight of its first layer without calling it."""

    def forward(self, x):
        return self[1](F.linear(x, self[0].weight, self[0].bias).relu())


class Rows(nn.Sequential):
    """Tokens [B, 4, 3] as rows [B * 4, 3] of its first layer."""

    def forward(self, x):
        return self[1](self[0](x.view(-1, 3)).relu().view(len(x), 4, -1).mean(1))


class TimeFirst(nn.Sequential):
    """Tokens [4, B, 3] for its first layer."""

    def forward(self, x):
        return self[1](self[0](x.view(-1, 4, 3).transpose(0, 1)).relu().mean(0))


class BatchFirst(nn.Sequential):
    def forward(self, x):
        return self[1](self[0](x.view(-1, 4, 3)).relu().mean(1))


class ByKeyword(nn.Sequential):
    def forward(self, x):
        return self[1](input=self[0](input=x).relu())


def two(kind: type[nn.Sequential], inputs: int = 12, classes: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return kind(nn.Linear(inputs, 5), nn.Linear(5, classes))


def batches(value: float | None = None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    inputs = torch.randn(6, 12)
    if value is not None:
        inputs[1, 2] = value
    return [(inputs, torch.arange(6) % 2)] * 2


def replaced() -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))
    model[0].forward = lambda x: F.linear(x, model[0].weight * 0.1)
    return model


REFUSED = {
    "tenth": (lambda: nn.Sequential(Tenth(12, 5), nn.ReLU(), nn.Linear(5, 2)), "0.weight"),
    "padded": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 4, 3)), Padded(1, 2, 3), nn.Flatten(), nn.Linear(24, 2)
        ),
        "1.weight",
    ),
    "replaced": (replaced, "0.weight"),
    "attention": (Attention, "heads.out_proj.weight"),
    "by itself": (lambda: two(ByItself), "0.weight"),
}


@pytest.mark.parametrize("method", WATCHING)
@pytest.mark.parametrize("kind", REFUSED)
@expects("dense", "losses", "untraced")
def test_layers_that_are_computed_elsewhere_are_refused(kind: str, method: str) -> None:
    make, name = REFUSED[kind]
    model = make()
    before = copy.deepcopy(model.state_dict())

    def own(full, module, parameter):  # an attention's own tensors are refused for another reason
        return isinstance(module, (nn.Linear, nn.Conv2d))

    said = f"method '{method}' cannot take '{name}', .* Leave it out with params=.* 'lwc' or 'snip'"
    with pytest.raises(snip.InputError, match=said):
        snip.prune(model, batches(), sparsity=0.5, method=method, params=own, training=TINY)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert snip.held_masks(model) is None
    assert not any(module._forward_hooks for module in model.modules())
    masks = snip.prune(
        model, batches(), sparsity=0.5, method=method, training=TINY,
        params=lambda full, module, parameter: own(full, module, parameter)
        and full.rpartition(".")[0] != name.rpartition(".")[0],
    )  # fmt: skip
    assert name not in masks


@pytest.mark.parametrize("kind", ["tenth", "padded", "replaced", "attention"])
def test_what_a_layers_class_shows_is_refused_before_the_data_is_read(kind: str) -> None:
    class Unread(list):
        def __iter__(self):
            pytest.fail("the data was read")

    make, name = REFUSED[kind]
    with pytest.raises(snip.InputError, match=f"cannot take '{name}'.* torch's own forward"):
        snip.prune(
            make(), Unread(batches()), sparsity=0.5, method="svd", training=TINY,
            params=lambda full, module, parameter: full == name,
        )  # fmt: skip


@pytest.mark.parametrize("method", WATCHING)
def test_a_weight_of_two_layers_is_refused(method: str) -> None:
    model = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12))
    model[2].weight = model[0].weight
    said = f"'{method}' cannot take '0.weight', .* weights of its own, .* '2.weight' too"
    with pytest.raises(snip.InputError, match=said):
        snip.prune(model, batches(), sparsity=0.5, method=method, training=TINY)


@pytest.mark.parametrize("kind", [Rows, TimeFirst])
def test_obd_refuses_layers_whose_inputs_are_not_one_per_image(kind: type[nn.Sequential]) -> None:
    model = two(kind, inputs=3)
    with pytest.raises(snip.InputError, match=r"'0.weight'.* for 6 images the layer was given \["):
        hessian_diagonal(model, batches(), dict(model.named_parameters()))


@pytest.mark.parametrize("kind", [Rows, TimeFirst])
@expects("untraced")
def test_the_inputs_of_all_images_are_one_to_lobs(kind: type[nn.Sequential]) -> None:
    """H is a mean over all positions of all images: nothing is wrong, and nothing is refused."""
    found = [two(k, inputs=3) for k in (kind, BatchFirst)]
    masks = [
        snip.prune(model, batches(), sparsity=0.5, method="lobs", training=TINY) for model in found
    ]
    assert masks[0] == masks[1]
    torch.testing.assert_close(found[0].state_dict(), found[1].state_dict())


def test_obd_refuses_answers_that_are_not_one_row_per_image() -> None:
    torch.manual_seed(0)
    model, images = nn.Conv2d(1, 3, 2), torch.randn(4, 1, 5, 5)
    weights = dict(model.named_parameters())
    with pytest.raises(snip.InputError, match=r"needs logits .* for 4 images .* \[4, 3, 4, 4\]"):
        hessian_diagonal(model, [(images, torch.zeros(4))], weights)


@pytest.mark.parametrize("method", WATCHING)
def test_a_layer_may_be_called_with_its_input_by_name(method: str) -> None:
    plain = nn.Sequential(nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))
    named = two(ByKeyword)
    named.load_state_dict(dict(zip(named.state_dict(), plain.state_dict().values(), strict=True)))
    found = [
        snip.prune(model, batches(), sparsity=0.5, method=method, training=TINY)
        for model in (plain, named)
    ]
    assert all(map(torch.equal, found[0].values(), found[1].values()))


@pytest.mark.parametrize("classes", [2, 30])
def test_data_that_is_no_number_is_told_in_a_sentence(classes: int) -> None:
    for method, value in [("lobs", float("nan")), ("lobs", float("inf")), ("obd", float("nan"))]:
        model = two(nn.Sequential, classes=classes)
        with pytest.raises(snip.InputError, match="are NaN or infinite"):
            snip.prune(model, batches(value), sparsity=0.5, method=method, training=TINY)


def test_inputs_too_large_for_lobs_are_told_in_a_sentence() -> None:
    x = 1e9 * torch.randn(20, 1).repeat(1, 12)  # every column the same
    said = r"cannot invert .* of layer '0': its inputs .* [0-9.]+e\+"
    with pytest.raises(snip.InputError, match=said):
        snip.prune(
            two(nn.Sequential), [(x, torch.arange(20) % 2)], sparsity=0.1, method="lobs",
            training=TINY,
        )  # fmt: skip


def test_a_hook_of_the_users_changes_nothing_about_the_layer() -> None:
    """Ours comes first: what a later hook makes of the output is not the layer's doing."""
    model = two(nn.Sequential)
    model[0].register_forward_hook(lambda layer, args, output: output * 10)
    with recorded({"0": model[0]}) as calls:
        model(batches()[0][0])
    ((inputs, output),) = calls["0"]
    torch.testing.assert_close(output, F.linear(inputs, model[0].weight, model[0].bias))
