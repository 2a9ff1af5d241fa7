"""The benchmarks: their clock, and that all ways compute the same network."""

import json
import os
import time
from pathlib import Path

import cases
import contest
import loop
import pytest
import rivals
import torch
import train
from expected_warnings import expects
from record import Load, instructions, keep
from torch import nn

import snip


def small_network(batch: int) -> tuple[nn.Module, torch.Tensor]:
    """A pruned network with every kind of layer that the tables' networks have."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 8, 5), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 1, stride=2, bias=False), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    images = torch.randn(batch, 2, 20, 20)
    labels = torch.randint(0, 10, (batch,))
    snip.prune(model, (images, labels), sparsity=0.9, scope="layer")
    return model, images


def batch_innermost(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in another order in memory, as SparseProp's own layers leave them."""
    return tensor.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)


def assert_same(one: torch.Tensor, other: torch.Tensor) -> None:
    """Equal to 1e-5 of the largest entry, as sums of many numbers are."""
    largest = float(other.detach().abs().max()) if other.numel() else 0.0
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * largest)


LAYERS = {
    "linear": (lambda: nn.Linear(48, 20), (48,), 0.1),
    "linear without weights": (lambda: nn.Linear(48, 20), (48,), 0),
    "5x5": (lambda: nn.Conv2d(3, 6, 5), (3, 13, 13), 0.1),
    "3x3 padded": (lambda: nn.Conv2d(8, 8, 3, padding=1, bias=False), (8, 9, 9), 0.1),
    "3x3 stride 2": (lambda: nn.Conv2d(8, 8, 3, stride=2, padding=1), (8, 32, 32), 0.1),
    "1x1 stride 2": (lambda: nn.Conv2d(8, 8, 1, stride=2), (8, 10, 10), 0.1),
    "3x3 without weights": (lambda: nn.Conv2d(4, 4, 3), (4, 8, 8), 0),
}


@pytest.mark.parametrize("batch", [1, 16, 100])
@pytest.mark.parametrize("name", LAYERS)
def test_sparseprop_layers_compute_what_the_dense_layer_does(name: str, batch: int) -> None:
    pytest.importorskip("sparseprop")
    make, shape, density = LAYERS[name]
    torch.manual_seed(0)
    dense = make()
    dense.weight.data.mul_(torch.rand_like(dense.weight) < density)
    images = torch.randn(batch, *shape)
    gradient = torch.randn_like(dense(images))
    if images.ndim == 4:
        images, gradient = batch_innermost(images), batch_innermost(gradient)

    def passes(layer: nn.Module) -> list[torch.Tensor]:
        """Outputs, gradients of the inputs, the weight and the bias."""
        inputs = images.clone().requires_grad_()
        outputs = layer(inputs)
        outputs.backward(gradient)
        return [outputs.detach(), inputs.grad, *(p.grad for p in layer.parameters())]

    expected = passes(dense)
    expected[2] = expected[2][dense.weight != 0]
    _, *sparse = rivals.sparseprop_layers(dense)
    assert sparse
    for layer in sparse:
        for one, other in zip(passes(layer), expected, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, stride=3),
        nn.Conv2d(4, 4, (3, 1)),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
    ],
)
def test_sparseprop_leaves_alone_what_it_would_compute_wrongly(layer: nn.Conv2d) -> None:
    pytest.importorskip("sparseprop")
    layer.weight.data.flatten()[5:] = 0
    assert list(rivals.sparseprop_layers(layer)) == [layer]


@pytest.mark.parametrize("batch", [16, 100])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["eager", "channels last", "sparseprop"])
@expects("losses")
def test_rivals_compute_the_pruned_network(name: str, training: bool, batch: int) -> None:
    model, images = small_network(batch)
    model.train(training)
    makers = {**rivals.dense_torch(model, compiling=False), "sparseprop": rivals.sparseprop}
    if name == "sparseprop":
        pytest.importorskip("sparseprop")
    network, inputs = makers[name](model, images)
    expected = rivals.plain_copy(model)(images)
    assert_same(network(inputs), expected)


def test_sparseprop_has_no_recurrent_layers() -> None:
    pytest.importorskip("sparseprop")
    with pytest.raises(NotImplementedError, match="recurrent"):
        rivals.sparseprop(nn.Sequential(nn.LSTM(4, 4)), torch.randn(2, 3, 4))


@pytest.mark.parametrize("name", rivals.RUNTIMES)
@expects("losses")
def test_runtimes_compute_the_pruned_network(name: str, tmp_path: Path) -> None:
    for needed in (name, "onnx", "onnxscript"):
        pytest.importorskip(needed)
    model, images = small_network(5)
    model.eval()
    snip.export_onnx(model, images, tmp_path / "model.onnx", any_batch_size=False)
    outputs = rivals.RUNTIMES[name](tmp_path / "model.onnx", images)()
    expected = rivals.plain_copy(model)(images).detach()
    assert_same(torch.as_tensor(outputs), expected)


def test_a_rival_that_fails_or_errs_is_named_with_the_reason() -> None:
    right = torch.ones(3)
    entered = contest.Contest(right)

    def unsupported():
        raise NotImplementedError("no such layer")

    entered.enter("eager", lambda: (right, lambda: None))
    entered.enter("compiled", lambda: (right, lambda: 1 / 0))
    entered.enter("sparseprop", unsupported)
    entered.enter("openvino", lambda: (right * 1.1, lambda: None))
    entered.enter("onnxruntime", lambda: (right * float("nan"), lambda: None))
    assert list(entered.works) == ["eager"]
    assert entered.faults == {
        "compiled": "failed: division by zero",
        "sparseprop": "not supported: no such layer",
        "openvino": "failed: its outputs are off by 1.0e-01 of the largest",
        "onnxruntime": "failed: its outputs are off by nan of the largest",
    }
    with pytest.raises(ArithmeticError):
        entered.enter("ours", lambda: (right * 1.1, lambda: None))


def test_a_row_of_the_training_table() -> None:
    row = train.measure(cases.CASES[0], compiled=False, seconds=0)
    for part in ("lenet-300-100", "ours", "eager", "best dense torch", "FLOP bound 50.0x"):
        assert part in row


def test_rows_as_data_name_the_best_dense_torch_of_each_precision(tmp_path, monkeypatch) -> None:
    case = cases.Case("a", 0.9, 2, (1, 2, 2))
    seconds = {"ours": 1.0, "eager": 3.0, "channels last": 2.0, "openvino": 0.5}
    row = contest.record(case, 2, seconds, {"compiled": "failed"}, optimizer="SGD")
    assert (row["ours"], row["dense float32"], row["optimizer"]) == (1.0, 2.0, "SGD")
    assert "dense bfloat16" not in row
    row = contest.record(case, 2, seconds | {"autocast": 4.0, "bfloat16": 1.5}, {})
    assert row["dense bfloat16"] == 1.5
    monkeypatch.setattr("sys.argv", ["/somewhere/bench/loop.py", "--seconds", "1"])
    keep(tmp_path / "loop.json", [row])
    written = json.loads((tmp_path / "loop.json").read_text())
    assert written["rows"] == [row]
    assert written["command"] == "python bench/loop.py --seconds 1"


def test_a_record_tells_the_instructions_of_the_machine(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    assert instructions(cpuinfo) is None
    cpuinfo.write_text("model name\t: a CPU\n")
    assert instructions(cpuinfo) is None
    cpuinfo.write_text("flags\t\t: fpu avx avx2 avx512f avx512_bf16_not\nflags\t\t: amx_bf16\n")
    assert instructions(cpuinfo) == ["AVX2", "AVX-512"]


def test_a_record_tells_what_other_processes_took(tmp_path: Path) -> None:
    stat, second = tmp_path / "stat", os.sysconf("SC_CLK_TCK")

    def busy(seconds: float) -> None:
        taken = round(seconds * second)
        stat.write_text(f"cpu {taken} 0 0 5 6 0 0 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n")

    assert Load(stat).others() is None
    busy(10)
    before = time.monotonic()
    load = Load(stat)
    created = time.monotonic()
    time.sleep(0.05)
    assert load.others() == 0.0
    busy(1010)
    at_least = time.monotonic() - created
    others = load.others()
    assert others is not None
    # 1,000 seconds, less those of this process, over a time between these two.
    assert others * (time.monotonic() - before) > 990
    assert others * at_least < 1001


@expects("losses")
@pytest.mark.parametrize("training", [True, False])
def test_dense_rivals_in_bfloat16_compute_the_same_but_for_rounding(training: bool) -> None:
    model, images = small_network(16)
    expected = model.train(training)(images).detach()
    found = rivals.dense_bfloat16(model)
    assert set(found) <= set(contest.BFLOAT16)
    assert ("bfloat16" in found) != training  # training by autocast keeps float32 weights
    for rival in found.values():
        network, given = rival(model, images)
        outputs = network(given).detach().float()
        assert 0 < float((outputs - expected).abs().max()) < 0.1 * float(expected.abs().max())
        assert model[0].weight.dtype == torch.float32


@pytest.mark.parametrize("name", loop.ALL_OPTIMIZERS)
def test_the_loop_around_an_empty_node_leaves_the_network_alone(name):
    model = nn.Linear(3, 4)
    outputs, before = torch.randn(5, 4), model.weight.clone()
    step = loop.empty_loop(model, loop.ALL_OPTIMIZERS[name], outputs, torch.zeros(5).long())
    for _ in range(2):
        step()
    assert model.weight.grad is None
    assert torch.equal(model.weight, before)
    assert not outputs.requires_grad
