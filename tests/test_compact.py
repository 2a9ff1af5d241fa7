"""Compact files: exact round trips, sizes, and what is wrong with a file or a model."""

import copy
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import KINDS, make
from safetensors.torch import load_file, save_file
from torch import nn

import snip
from snip import compact
from snip.common.errors import SnipWarning
from snip.export.compact import decode_gaps, encode_gaps
from snip.masks import Masks, held_masks
from snip.models import build


def same_bits(a, b):
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(
        mine[key].reshape(-1).view(torch.uint8).equal(other[key].reshape(-1).view(torch.uint8))
        for key in mine
    )


def pruned(kind, sparsity=0.8):
    model, batch = make(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnipWarning)
        snip.prune(model, batch, sparsity=sparsity)
    return model, batch


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 300), st.floats(0, 1), st.integers(0, 2**31))
def test_positions_round_trip(total, density, seed):
    keep = np.random.default_rng(seed).random(total) < density
    positions = np.flatnonzero(keep)
    packed, width = encode_gaps(positions)
    np.testing.assert_array_equal(decode_gaps(packed, width, len(positions), total), positions)
    assert len(packed) <= (total + 7) // 8  # never larger than a bitmap


@given(st.lists(st.integers(0, 10**7), unique=True, max_size=30))
def test_far_positions_round_trip(positions):
    array = np.array(sorted(positions), dtype=np.int64)
    packed, width = encode_gaps(array)
    np.testing.assert_array_equal(decode_gaps(packed, width, len(array), 10**7 + 1), array)


def test_positions_by_hand():
    packed, width = encode_gaps(np.array([0, 2, 3]))  # 0 10 0: kept, skip one, kept, kept
    assert (width, packed.tolist()) == (1, [0b0100_0000])
    assert encode_gaps(np.array([254]))[1] == 8
    assert len(encode_gaps(np.arange(19, 20_000, 20))[0]) == 1000 * 5 / 8  # five bits a gap


def test_wrong_positions_are_noticed():
    packed, width = encode_gaps(np.array([3, 99]))
    for wrong in ((packed, width, 2, 99), (packed, width, 9, 100), (packed, 17, 2, 100)):
        with pytest.raises(ValueError, match="positions"):
            decode_gaps(*wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_of_every_kind(kind, tmp_path):
    model, _ = pruned(kind)
    compact.save(model, tmp_path / "model")
    fresh, _ = make(kind)
    before = copy.deepcopy(fresh)
    loaded = compact.load(tmp_path / "model", fresh)
    assert same_bits(loaded, model)
    assert held_masks(loaded) == held_masks(model)
    assert held_masks(loaded).provenance == held_masks(model).provenance
    assert same_bits(fresh, before)
    assert held_masks(fresh) is None
    with torch.inference_mode():
        again = compact.load(tmp_path / "model", fresh)
    assert not any(p.is_inference() for p in again.parameters())  # it can be trained


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 40),
    st.integers(1, 40),
    st.floats(0, 1),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.booleans(),
)
def test_any_tensor_round_trips(rows, columns, density, dtype, held):
    model = nn.Linear(columns, 1)
    model.weight = nn.Parameter(torch.randn(rows, columns).to(dtype))
    mask = torch.rand(rows, columns) < density
    with torch.no_grad():
        model.weight.mul_(mask)  # leaves -0.0 behind
        model.weight[torch.rand(rows, columns) < 0.1] = float("nan")
    if held:
        Masks({"weight": mask}).apply(model)
    with tempfile.TemporaryDirectory() as folder:
        compact.save(model, Path(folder, "model"))
        assert same_bits(compact.load(Path(folder, "model"), copy.deepcopy(model)), model)


@pytest.mark.parametrize("name", ["lenet-5-caffe", "lstm-s", "vgg-like"])
def test_a_shrunk_model_is_rebuilt_from_the_original(name, tmp_path):
    size, channels = (32, 3) if name == "vgg-like" else (28, 1)
    batch = torch.randn(2, channels, size, size), torch.tensor([3, 5])
    model = build(name, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnipWarning)
        snip.prune(model, batch, sparsity=0.99)
    for parameter in model.parameters():
        if parameter.ndim == 1 and parameter.requires_grad:
            parameter.data += 0.1  # constants to fold
    snip.release(model)
    Masks({n: p != 0 for n, p in model.named_parameters() if p.ndim > 1}).apply(model)
    small = snip.shrink(model, batch)
    compact.save(small, tmp_path / "small")
    rebuilt = compact.load(tmp_path / "small", build(name, seed=1))
    assert same_bits(rebuilt, small)
    assert held_masks(rebuilt) == held_masks(small)
    assert same_bits(compact.load(tmp_path / "small", copy.deepcopy(small)), small)
    compact.save(rebuilt, tmp_path / "again")  # a rebuilt model remembers how
    assert same_bits(compact.load(tmp_path / "again", build(name, seed=2)), small)
    with torch.no_grad():
        after, before = rebuilt.eval()(batch[0]), model.eval()(batch[0])
    assert (after - before).abs().max() <= 1e-4 * before.abs().max()


def test_a_new_bias_is_rebuilt(tmp_path):
    def net():
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))

    model = net()
    model[0].weight.data[1] = 0
    model[0].bias.data[1] = 5
    small = snip.shrink(model, torch.randn(2, 3))
    compact.save(small, tmp_path / "small")
    loaded = compact.load(tmp_path / "small", net())
    assert loaded[2].bias is not None
    assert same_bits(loaded, small)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fewer_bits(dtype, tmp_path):
    model, _ = pruned("conv")
    model.norm.running_mean += 1 / 3
    compact.save(model, tmp_path / "model", dtype=dtype)
    loaded = compact.load(tmp_path / "model", make("conv")[0])
    assert loaded.up.weight.dtype == torch.float32
    assert torch.equal(loaded.up.weight, model.up.weight.to(dtype).float())
    assert torch.equal(loaded.norm.running_mean, model.norm.running_mean)
    model.up.bias.data[0] = 1e30
    if dtype is torch.float16:
        with pytest.raises(snip.InputError, match="too large"):
            compact.save(model, tmp_path / "model", dtype=dtype)
    with pytest.raises(snip.KindError, match="float64"):
        compact.save(model, tmp_path / "model", dtype=torch.float64)


def test_sizes_of_lenet():
    model = build("lenet-300-100", seed=0)
    batch = torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))
    snip.prune(model, batch, sparsity=0.98)
    sizes = compact.sizes(model)
    assert sizes.dense > 266_610 * 4
    # 5332 values of four bytes, gaps of less than one byte, and a small header.
    assert 5332 * 4 < sizes.compact < 5332 * 5 + 3500
    assert sizes.ratio == sizes.dense / sizes.compact > 35
    assert compact.sizes(model, dtype=torch.float16).compact < sizes.compact - 10_000


def test_zeros_without_masks_are_left_out_too():
    model = nn.Linear(100, 100)
    dense = compact.sizes(model)
    assert dense.compact < dense.dense + 500
    model.weight.data[torch.rand(100, 100) < 0.9] = 0
    assert compact.sizes(model).ratio > 6


def test_broken_files(tmp_path):
    model, _ = pruned("mlp")
    path = tmp_path / "model"
    compact.save(model, path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-20] ^= 1
    for data in (whole[:-9], b"", b"\x07" * 999, bytes(flipped)):
        path.write_bytes(data)
        with pytest.raises(snip.FileError, match="anew"):
            compact.load(path, model)
    with pytest.raises(snip.FileError, match="no compact file"):
        compact.load(tmp_path / "nothing", model)
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(snip.FileError, match="no compact model"):
        compact.load(path, model)


def test_files_of_another_model(tmp_path):
    model, batch = pruned("mlp")
    compact.save(model, tmp_path / "mlp")
    for other in (make("conv")[0], nn.Linear(6, 8), copy.deepcopy(model).double()):
        with pytest.raises(snip.InputError, match="another model"):
            compact.load(tmp_path / "mlp", other)
    small = snip.shrink(model, batch)
    compact.save(small, tmp_path / "small")
    with pytest.raises(snip.InputError, match="another model"):
        compact.load(tmp_path / "small", make("conv")[0])
    with pytest.raises(snip.InputError, match="original"):
        compact.load(tmp_path / "mlp", small)


def test_the_file_is_plain_safetensors(tmp_path):
    model, _ = pruned("mlp")
    compact.save(model, tmp_path / "model")
    tensors = load_file(tmp_path / "model")
    kept = held_masks(model)["first.weight"]
    assert torch.equal(tensors["first.weight"], model.first.weight[kept])
    assert tensors["first.weight|gaps"].dtype == torch.uint8
