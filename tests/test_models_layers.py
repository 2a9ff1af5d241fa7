"""The networks layer by layer: structure, strides, and blocks by hand."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from model_parts import make, some_images
from torch import nn

from snip.models import IMAGES, build
from snip.models.initializers import initialize
from snip.models.networks import ResNetBlock, WideBlock, same_padding
from snip.network.network import Network


def test_lenet_5_has_no_relu_after_its_convolutions() -> None:
    model = build("lenet-5-caffe", seed=0)
    with torch.no_grad():
        for conv in (model.conv1, model.conv2):
            conv.weight.zero_()
        model.conv1.bias.fill_(-1.0)
        model.conv2.weight.fill_(1 / 64)  # sees -1 in every one of its 20 * 25 inputs
        reached: list[torch.Tensor] = []
        model.fc1.register_forward_pre_hook(lambda _, args: reached.append(args[0]))
        model(some_images("mnist"))
    torch.testing.assert_close(reached[0], torch.full((2, 800), -500 / 64))


def test_lenet_5_relu_is_lenet_5_caffe_with_relu_after_its_convolutions() -> None:
    model, images = build("lenet-5-relu", seed=0), some_images("mnist")
    hidden = F.max_pool2d(F.conv2d(images, model.conv1.weight, model.conv1.bias).relu(), 2)
    hidden = F.max_pool2d(F.conv2d(hidden, model.conv2.weight, model.conv2.bias).relu(), 2)
    expected = model.fc2(model.fc1(hidden.flatten(1)).relu())
    torch.testing.assert_close(model(images), expected)
    plain = build("lenet-5-caffe", seed=0)
    plain.load_state_dict(model.state_dict())
    assert not torch.allclose(plain(images), expected)


def test_lenet_300_100_by_hand() -> None:
    model = build("lenet-300-100", seed=0)
    images = some_images("mnist")
    hidden = (images.reshape(2, 784) @ model.fc1.weight.T + model.fc1.bias).clamp_min(0)
    hidden = (hidden @ model.fc2.weight.T + model.fc2.bias).clamp_min(0)
    expected = hidden @ model.fc3.weight.T + model.fc3.bias
    torch.testing.assert_close(model(images), expected)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "expected"),
    [
        (32, 11, 2, (4, 5)),  # AlexNet, by hand: 15 * 2 + 11 - 32 = 9
        (16, 5, 2, (1, 2)),
        (8, 3, 2, (0, 1)),
        (2, 3, 2, (0, 1)),
        (64, 11, 4, (3, 4)),
        (64, 3, 2, (0, 1)),  # VGG on Tiny-ImageNet
        (32, 3, 1, (1, 1)),
        (32, 1, 1, (0, 0)),
        (7, 3, 2, (1, 1)),  # symmetric on an odd map
        (8, 1, 2, (0, 0)),  # a stride wider than the kernel never crops
    ],
)
def test_same_padding(size: int, kernel: int, stride: int, expected: tuple[int, int]) -> None:
    assert same_padding(size, kernel, stride) == expected


@pytest.mark.parametrize(
    ("name", "width"), [("alexnet-s", 256), ("vgg-c", 512), ("vgg-d", 512), ("vgg-like", 512)]
)
@pytest.mark.parametrize("dataset", ["cifar-10", "tiny-imagenet"])
def test_features_end_in_one_pixel(name: str, width: int, dataset: str) -> None:
    with torch.device("meta"):
        model = make(name, dataset)
        shape = IMAGES[dataset]
        images = torch.empty(2, shape.channels, shape.size, shape.size)
    assert model.features(images).shape == (2, width, 1, 1)


@pytest.mark.parametrize(("name", "strides"), [("alexnet-s", (2, 4)), ("vgg-d", (1, 2))])
def test_first_stride_is_doubled_on_tiny_imagenet(name: str, strides: tuple[int, int]) -> None:
    for dataset, stride in zip(("cifar-10", "tiny-imagenet"), strides, strict=True):
        with torch.device("meta"):
            convs = [m for m in make(name, dataset).modules() if isinstance(m, nn.Conv2d)]
        assert convs[0].stride == (stride, stride)


def test_alexnet_sees_the_image_as_tensorflow_would() -> None:
    model = build("alexnet-s", seed=0)
    with torch.no_grad():
        weight = model.features.conv1.weight.zero_()
        weight[0, 0, 10, 10] = 1.0  # the last tap: output (i, j) = input (2i + 10 - 4, 2j + 10 - 4)
    images = some_images("cifar-10")
    first = model.features[:2](images)[:, 0]
    assert first.shape == (2, 16, 16)
    assert torch.equal(first[:, :13, :13], images[:, 0, 6::2, 6::2])
    assert first[:, 13:].eq(0).all()  # beyond the image: the padding


def test_linear_and_conv_layers_are_normalised_but_the_last() -> None:
    for name, norms in (("alexnet-b", 5 + 2), ("vgg-d", 13 + 2), ("vgg-like", 13 + 1)):
        with torch.device("meta"):
            layers = [m for m in make(name, "cifar-10").modules() if not list(m.children())]
        kinds = [type(layer) for layer in layers]
        assert sum(kind in (nn.BatchNorm2d, nn.BatchNorm1d) for kind in kinds) == norms
        assert kinds.count(nn.ReLU) == norms
        assert nn.Dropout not in kinds
        assert kinds[-1] is nn.Linear
        for this, following in itertools.pairwise(kinds):
            if this in (nn.Conv2d, nn.Linear):
                assert following in (nn.BatchNorm2d, nn.BatchNorm1d)


def test_vgg_c_has_1x1_third_convolutions() -> None:
    with torch.device("meta"):
        features = make("vgg-c", "cifar-10").features
        kernels = [m.kernel_size[0] for m in features if isinstance(m, nn.Conv2d)]
    assert kernels == [3, 3, 3, 3, 3, 3, 1, 3, 3, 1, 3, 3, 1]


@pytest.mark.parametrize(("name", "blocks", "widen"), [("wrn-16-8", 2, 8), ("wrn-22-8", 3, 8)])
def test_wide_resnet_structure(name: str, blocks: int, widen: int) -> None:
    with torch.device("meta"):
        model = make(name, "cifar-10")
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert len(convs) == int(name.split("-")[1])  # the name's depth counts the projections too
    assert all(m.bias is None for m in convs)
    for i, group in enumerate((model.group1, model.group2, model.group3)):
        assert len(group) == blocks
        assert [block.shortcut is None for block in group] == [False] + [True] * (blocks - 1)
        assert group[0].conv1.out_channels == 16 * widen * 2**i
        assert group[0].conv1.stride == group[0].shortcut.stride == ((1, 1) if i == 0 else (2, 2))


def test_wide_resnet_block_by_hand() -> None:
    images = torch.randn(2, 4, 6, 6)
    same, wider = WideBlock(4, 4, 1).eval(), WideBlock(4, 8, 2).eval()
    active = F.relu(images / (1 + 1e-5) ** 0.5)
    inner = F.relu(F.conv2d(active, same.conv1.weight, padding=1) / (1 + 1e-5) ** 0.5)
    expected = images + F.conv2d(inner, same.conv2.weight, padding=1)
    torch.testing.assert_close(same(images), expected)
    nn.init.zeros_(wider.conv2.weight)  # leaves the projection of the activated input
    expected = F.conv2d(active, wider.shortcut.weight, stride=2)
    torch.testing.assert_close(wider(images), expected)


def test_resnet_20_structure() -> None:
    with torch.device("meta"):
        model, tiny = (make("resnet-20", dataset) for dataset in ("cifar-10", "tiny-imagenet"))
    assert (model.conv1.stride, tiny.conv1.stride) == ((1, 1), (2, 2))
    kernels = [m.kernel_size for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert (kernels.count((3, 3)), kernels.count((1, 1))) == (19, 2)  # and one linear layer
    for stage, width in ((model.stage1, 16), (model.stage2, 32), (model.stage3, 64)):
        assert [block.conv2.out_channels for block in stage] == [width] * 3
        assert [block.shortcut is None for block in stage] == [width == 16, True, True]


def test_resnet_block_by_hand() -> None:
    images = torch.randn(2, 4, 6, 6)
    same, wider = ResNetBlock(4, 4, 1).eval(), ResNetBlock(4, 8, 2).eval()
    norm = (1 + 1e-5) ** 0.5
    inner = F.relu(F.conv2d(images, same.conv1.weight, padding=1) / norm)
    expected = F.relu(images + F.conv2d(inner, same.conv2.weight, padding=1) / norm)
    torch.testing.assert_close(same(images), expected)
    nn.init.zeros_(wider.conv2.weight)  # leaves the projection of the input
    expected = F.relu(F.conv2d(images, wider.shortcut[0].weight, stride=2) / norm)
    torch.testing.assert_close(wider(images), expected)


@pytest.mark.parametrize("name", ["lstm-s", "gru-s"])
def test_the_second_recurrent_bias_is_zero_frozen_and_not_counted(name: str) -> None:
    model = build(name, seed=0)
    bias = model.rnn.bias_hh_l0
    assert "frozen" in Network.of(model).left_out["rnn.bias_hh_l0"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(some_images("mnist")), torch.tensor([1, 2])).backward()
        optimizer.step()
    assert bias.eq(0).all()
    assert model.rnn.bias_ih_l0.ne(0).all()


def test_recurrent_networks_read_rows_from_top_to_bottom() -> None:
    model = build("lstm-s", seed=0)
    images = some_images("mnist")
    state = None
    for row in range(28):
        embedded = model.embed(images[:, 0, row]).unsqueeze(1)
        out, state = model.rnn(embedded, state)
    torch.testing.assert_close(model(images), model.fc(out[:, 0]))


@pytest.mark.parametrize(
    ("name", "plain", "gates"),
    [
        ("lstm-s-forget", "lstm-s", [0, 1, 0, 0]),  # input, forget, cell, output
        ("gru-s-open", "gru-s", [1, 1, 0]),  # reset, update, new
    ],
)
def test_gates_of_tensorflow_add_a_constant_that_is_no_connection(
    name: str, plain: str, gates: list[int]
) -> None:
    ours, theirs = build(name, seed=0), build(plain, seed=0)
    constant = ours.rnn.bias_hh_l0
    assert not constant.requires_grad
    assert constant.view(-1, 128)[:, 0].tolist() == gates
    images = some_images("mnist")
    assert not torch.allclose(ours(images), theirs(images))
    with torch.no_grad():
        theirs.rnn.bias_ih_l0 += constant  # what a bias of the gates would do
    torch.testing.assert_close(ours(images), theirs(images))
    initialize(ours, "vs", seed=1)
    assert constant.sum() == 128 * sum(gates)  # another draw leaves it as it is
