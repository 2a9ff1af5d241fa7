"""`accelerate` inside torch.autocast: compared in float32, timed in the user's precision."""

import copy

import pytest
import torch
from torch import nn

import snip
from snip.engine.kernels.library import available

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path))


NOTED: set[bool] = set()  # outside the model, whose attributes are put back


class Noting(nn.Module):
    """Notes whether autocast is on in its forward passes."""

    def forward(self, x):
        NOTED.add(torch.is_autocast_enabled("cpu"))
        return x


def pruned(*last: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
    model = nn.Sequential(*layers, *last)
    snip.prune(model, batch(), sparsity=0.5)
    return model


def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 2, 4, 4, generator=generator), torch.tensor([0, 1, 2, 1, 0])


@pytest.mark.parametrize("training", [True, False])
def test_the_lower_precision_of_the_model_is_no_reason_to_run_dense(training):
    model = pruned().train(training)
    expected = snip.accelerate(copy.deepcopy(model), batch(), ways={})
    with torch.autocast("cpu", torch.bfloat16):
        fast = snip.accelerate(model, batch(), ways={})
    assert fast is not model
    assert torch.equal(fast(batch()[0]), expected(batch()[0]))


@pytest.mark.filterwarnings("ignore:.*runs dense:snip.SnipWarning")  # whichever is faster
@pytest.mark.parametrize("lower", [True, False])
def test_the_model_is_timed_in_the_precision_that_is_on(lower):
    model = pruned(Noting())
    NOTED.clear()
    with torch.autocast("cpu", torch.bfloat16, enabled=lower):
        snip.accelerate(model, batch())
        assert torch.is_autocast_enabled("cpu") == lower
    assert {False, lower} == NOTED


def test_a_model_that_is_faster_comes_back_with_its_precision(monkeypatch):
    seconds = {"dense": 0.001, "sparse": 0.002}
    monkeypatch.setattr("snip.engine.accelerate.step_seconds", lambda *_: seconds)
    monkeypatch.setattr("snip.engine.accelerate.channels_last_seconds", lambda *_: 0.002)
    model = pruned()
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.warns(snip.SnipWarning, match="takes 1 ms as it is in bfloat16"),
    ):
        assert snip.accelerate(model, batch()) is model


@pytest.mark.filterwarnings("ignore:.*runs dense:snip.SnipWarning")
def test_no_cast_weights_are_left_behind_in_the_callers_block(monkeypatch):
    monkeypatch.setattr("snip.engine.accelerate.is_slower", lambda _seconds: True)
    model = pruned().eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert snip.accelerate(model, batch()) is model
        with torch.no_grad():
            for parameter in model[4].parameters():
                parameter.mul_(2)
        inside = model(batch()[0])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(inside, model(batch()[0]))


def test_a_batch_in_the_lower_precision_is_taken():
    images, labels = batch()
    with torch.autocast("cpu", torch.bfloat16):
        fast = snip.accelerate(pruned(), (images.bfloat16(), labels), ways={})
        assert fast(images.bfloat16()).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_a_lower_precision_stay_dense(dtype):
    model = pruned().to(dtype)
    with pytest.warns(snip.SnipWarning, match="it has b?float16 weights"):
        assert snip.accelerate(model, batch()[0].to(dtype)) is model
