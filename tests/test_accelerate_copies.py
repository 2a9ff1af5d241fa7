"""Copies, pickles and state dicts of an accelerated network: whole, and without dense weights."""

import copy
import gc
import io
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from accelerate_parts import CLOSE, assert_equal_states, blocks, pair
from expected_warnings import expects
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.models import build

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]


def test_the_dense_model_is_not_carried_along():
    model, fast, (x, _) = blocks()
    fast(x)
    kept = [weakref.ref(model), *(weakref.ref(m) for m in model.modules())]
    kept += [weakref.ref(p) for p in model.parameters()]
    del model
    gc.collect()
    assert [ref() for ref in kept if ref() is not None] == []
    assert snip.densify(fast) is not None


def test_a_pickle_is_small():
    model = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.Linear(100, 10))
    batch = torch.randn(4, 784), torch.randint(0, 10, (4,))
    snip.prune(model, batch, sparsity=0.99)
    fast = snip.accelerate(model, batch, ways={})
    fast(batch[0])
    with torch.no_grad():
        fast(batch[0])
    sizes = []
    for network in (model, fast, copy.deepcopy(fast)):
        buffer = io.BytesIO()
        torch.save(network, buffer)
        sizes.append(buffer.tell())
    assert max(sizes[1:]) * 20 < sizes[0]


def test_copies_of_every_layer_compute_the_same_and_can_be_densified():
    model, fast, (x, _) = blocks()
    for twin in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast)), copy.copy(fast)):
        assert type(twin) is type(fast)
        torch.testing.assert_close(twin.eval()(x), fast.eval()(x), rtol=0, atol=0)
        assert_equal_states(model.state_dict(), snip.densify(twin).state_dict(), rtol=0, atol=0)


LOADS = """
import sys, torch, snip
fast = torch.load(sys.argv[1], weights_only=False)
x, expected, masks = torch.load(sys.argv[2])
assert type(fast).__name__ == "Blocks" and type(fast).__module__ == "user_networks"
torch.testing.assert_close(fast(x), expected)
plain = snip.densify(fast)
torch.testing.assert_close(plain(x), expected, rtol=1e-4, atol=1e-5)
assert {name: mask.tolist() for name, mask in snip.held_masks(plain).items()} == masks
print("loaded")
"""


def test_a_new_process_loads_the_whole_network(tmp_path):
    model, fast, (x, _) = blocks()
    fast.eval()
    masks = {name: mask.tolist() for name, mask in snip.held_masks(model).items()}
    torch.save(fast, tmp_path / "fast.pt")
    torch.save((x, fast(x).detach(), masks), tmp_path / "expected.pt")
    command = [
        sys.executable,
        "-c",
        LOADS,
        str(tmp_path / "fast.pt"),
        str(tmp_path / "expected.pt"),
    ]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.stdout.strip() == "loaded", done.stderr


def test_keys_that_no_layer_has_a_place_for_are_refused():
    model, fast, _ = blocks()
    state = fast.state_dict() | {"embed.lora": torch.zeros(2), "embed.more.weight": torch.zeros(2)}
    for network in (model, fast):
        with pytest.raises(RuntimeError, match=r"Unexpected key.*embed\.lora.*embed\.more\.weight"):
            network.load_state_dict(state)
    found, expected = (network.load_state_dict(state, strict=False) for network in (fast, model))
    assert found == expected


@expects("losses")
def test_state_dicts_go_in_and_out():
    dense, fast, batch = pair("lstm-s")
    other = copy.deepcopy(dense)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    fast.load_state_dict(other.state_dict())
    torch.testing.assert_close(fast(batch[0]), other(batch[0]), **CLOSE)
    dense.load_state_dict(fast.state_dict())
    torch.testing.assert_close(dense(batch[0]), other(batch[0]), **CLOSE)


def test_weights_outside_the_masks_are_refused():
    _, fast, _ = pair("lenet-300-100")
    before = copy.deepcopy(fast.state_dict())
    with pytest.raises(RuntimeError, match="outside the masks"):
        fast.load_state_dict(build("lenet-300-100", seed=1).state_dict())
    broken = {k: v for k, v in before.items() if k != "fc1.weight"}
    with pytest.raises(RuntimeError, match=r"fc1\.weight"):
        fast.load_state_dict(broken)


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_copies_compute_and_train_on_their_own(way):
    _, fast, batch = pair("lenet-5-caffe")
    if way == "deepcopy":
        twin = copy.deepcopy(fast)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(fast))
    else:
        buffer = io.BytesIO()
        torch.save(fast, buffer)
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    torch.testing.assert_close(twin(batch[0]), fast(batch[0]), rtol=0, atol=0)
    with torch.no_grad():
        next(twin.parameters()).add_(1)
    assert not torch.equal(twin(batch[0]), fast(batch[0]))
    assert snip.held_masks(snip.densify(twin)) is not None
