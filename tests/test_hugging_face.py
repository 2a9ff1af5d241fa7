"""transformers' Trainer, Accelerate and timm: pruned, trained, saved, and loaded without us."""

import json
import warnings

import pytest
import torch
from hugging_face_parts import KINDS, collated, gpt2, trained, words
from libraries import timm, transformers
from needed import needed
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader

import snip
from snip.engine.kernels.library import available
from snip.network.parameters import Accelerated

accelerate = needed("accelerate")
from snip.integrations import accelerate as with_accelerate  # noqa: E402
from snip.integrations.transformers import FILE, Snip  # noqa: E402

needs_kernels = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setattr(transformers.utils.logging, "disable_progress_bar", lambda: None)
    transformers.utils.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Watch(transformers.TrainerCallback):
    """Notes which kind of model takes the steps."""

    def __init__(self):
        self.kinds = set()

    def on_step_begin(self, args, state, control, model=None, **_):
        self.kinds.add(isinstance(model, Accelerated))


def assert_same_without_us(model, masks, folder, data):
    """Saved by `save_pretrained`, loaded by transformers alone: equal outputs, zeros in place."""
    model.save_pretrained(folder)
    assert not any(name.startswith("snip") for name in load_file(folder / "model.safetensors"))
    plain = type(model).from_pretrained(folder).eval()
    assert snip.held_masks(plain) is None
    masks.check(plain)
    with torch.no_grad():
        batch = collated(data[:4])
        assert torch.equal(plain(**batch).logits, model.eval()(**batch).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_scored_pruned_trained_saved_and_loaded(kind, tmp_path):
    build, rows = KINDS[kind]
    model, data, callback = build(), rows(), Snip(sparsity=0.8)
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    trained(model, data, tmp_path / "work", callback)
    masks = callback.masks
    assert masks.kept == round(0.2 * masks.total)
    assert masks == snip.held_masks(model)
    moved = [n for n, m in masks.items() if not torch.equal(model.state_dict()[n], fresh[n] * m)]
    assert moved == [name for name, mask in masks.items() if mask.any()]
    assert_same_without_us(model, masks, tmp_path / "saved", data)


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_accelerated_and_ordinary_afterwards(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("snip.engine.accelerate.is_slower", lambda _: False)
    build, rows = KINDS[kind]
    model, data, watch = build(), rows(), Watch()
    dense = build()
    first, second = Snip(sparsity=0.8, accelerate=True), Snip(sparsity=0.8)
    trained(model, data, tmp_path / "a", first, watch, save_strategy="steps", save_steps=2)
    assert watch.kinds == {True}
    trained(dense, data, tmp_path / "b", second, save_strategy="steps", save_steps=2)
    assert type(model) is type(dense)
    assert first.masks == second.masks == snip.held_masks(model)
    for name, value in dense.state_dict().items():  # the same training, but for rounding
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-2, atol=1e-3)
    assert_same_without_us(model, first.masks, tmp_path / "saved", data)
    # What was saved while it was accelerated is an ordinary checkpoint.
    folders = [tmp_path / run / "checkpoint-2" for run in "ab"]
    states = [torch.load(folder / "optimizer.pt")["state"] for folder in folders]
    for number, own in states[0].items():  # a bias of which nothing is left has none
        assert {k: v.shape for k, v in own.items()} == {
            k: v.shape for k, v in states[1][number].items()
        }
    first.masks.check(type(model).from_pretrained(folders[0]))
    if kind == "vit":  # transformers 5.22 saves it under names that its Trainer does not read back
        return
    # Resumed from it, accelerated or not, it ends where it ended.
    for fast in (True, False):
        again, callback = build(), Snip(sparsity=0.1, accelerate=fast)
        trained(again, data, tmp_path / "a", callback, resume=str(folders[0]))
        assert callback.masks == first.masks
        first.masks.check(again)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(again.state_dict()[name], value, rtol=1e-2, atol=1e-3)


def test_resumed_it_is_not_pruned_again_and_trains_to_the_same_bits(tmp_path):
    data, whole = words(), gpt2()
    callback = Snip(sparsity=0.8)
    saving = {"save_strategy": "steps", "save_steps": 2}
    trained(whole, data, tmp_path, callback, **saving)
    assert snip.Masks.load(tmp_path / "checkpoint-2" / FILE) == callback.masks
    again, second = gpt2(), Snip(sparsity=0.1)
    trained(again, data, tmp_path, second, resume=str(tmp_path / "checkpoint-2"))
    assert second.masks == callback.masks
    assert all(torch.equal(again.state_dict()[n], v) for n, v in whole.state_dict().items())
    # A checkpoint elsewhere: its masks are asked for, and taken from where they are.
    moved = (tmp_path / "checkpoint-2").rename(tmp_path / "moved")
    with pytest.raises(snip.InputError, match=r"masks of this checkpoint are not in .*Give Snip\("):
        trained(gpt2(), data, tmp_path / "new", Snip(sparsity=0.8), resume=str(moved))
    state = moved / "trainer_state.json"
    noted = json.loads(state.read_text())
    assert noted["stateful_callbacks"].pop("snip_masks") == callback.masks.digest()
    state.write_text(json.dumps(noted))  # as one that was saved without the callback
    with pytest.raises(snip.InputError, match=r"weights in this checkpoint are zero.*give Snip\("):
        trained(gpt2(), data, tmp_path / "new", Snip(sparsity=0.8), resume=str(moved))
    named = Snip(masks=moved / FILE)
    trained(again := gpt2(), data, tmp_path / "new", named, resume=str(moved))
    assert snip.held_masks(again) == callback.masks
    assert torch.equal(again.lm_head.weight, whole.lm_head.weight)


def test_the_data_comes_in_the_order_that_it_has_without_the_callback(tmp_path):
    seen = []

    class Noted(transformers.GPT2LMHeadModel):
        def forward(self, input_ids=None, labels=None, **more):
            if self.training and torch.is_grad_enabled():
                seen[-1].append(input_ids[0].tolist())
            return super().forward(input_ids, labels=labels, **more)

    for callbacks in ([], [Snip(sparsity=0.5)]):
        seen.append([])
        model = gpt2()
        model.__class__ = Noted
        trained(model, words(), tmp_path, *callbacks)
    assert len(seen[0]) == 4
    assert seen[1][-4:] == seen[0]


@pytest.mark.parametrize("fast", [False, pytest.param(True, marks=needs_kernels)])
def test_accelerate(fast, tmp_path, monkeypatch):
    monkeypatch.setattr("snip.engine.accelerate.is_slower", lambda _: False)
    data = words()

    def prepared(sparsity):
        accelerator = accelerate.Accelerator(cpu=True)
        parts = gpt2(), DataLoader(data, batch_size=8)
        model, loader = accelerator.prepare(*parts)
        optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=1e-3))
        pruning = with_accelerate.Snip(accelerator, model, sparsity, accelerate=fast)
        return accelerator, model, loader, optimizer, pruning

    def train(accelerator, model, loader, optimizer, batches):
        for number, batch in enumerate(loader):
            if number in batches:
                optimizer.zero_grad()
                accelerator.backward(model(**batch).loss)
                optimizer.step()

    accelerator, model, loader, optimizer, pruning = prepared(0.8)
    masks = pruning.start(loader, optimizer)
    assert isinstance(model, Accelerated) == fast
    train(accelerator, model, loader, optimizer, (0, 1))
    accelerator.save_state(tmp_path / "state")
    train(accelerator, model, loader, optimizer, (2, 3))
    plain = pruning.finish()
    assert plain is accelerator.unwrap_model(model)
    assert not isinstance(plain, Accelerated)
    assert_same_without_us(plain, masks, tmp_path / "saved", data)
    # Resumed: not pruned again, and trained to the same weights.
    accelerator, again, loader, optimizer, second = prepared(0.1)
    accelerator.load_state(tmp_path / "state")
    assert second.start(loader, optimizer) == masks
    train(accelerator, again, loader, optimizer, (2, 3))
    second.finish()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    masks.check(again)


def test_timm(tmp_path):
    model = timm.create_model("test_vit", num_classes=5, img_size=32)
    batch = torch.randn(8, 3, 32, 32), torch.arange(8) % 5
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    masks = with_accelerate.Snip(accelerator, model, 0.9).start([batch], optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
    torch.save(model.state_dict(), tmp_path / "timm.pt")
    plain = timm.create_model("test_vit", num_classes=5, img_size=32)
    plain.load_state_dict(torch.load(tmp_path / "timm.pt", weights_only=True))
    masks.check(plain)
    with torch.no_grad():
        assert torch.equal(plain.eval()(batch[0]), model.eval()(batch[0]))


def test_what_is_refused(tmp_path):
    silent = [{"input_ids": row["input_ids"]} for row in words()]
    model = gpt2()
    with pytest.raises(snip.InputError, match="returned no loss"):
        trained(model, silent, tmp_path, Snip(sparsity=0.5))
    assert snip.held_masks(model) is None
    with pytest.raises(snip.InputError, match="did you mean 'biases'"):
        Snip(sparsity=0.5, bias="keep")
    accelerator = accelerate.Accelerator(cpu=True)
    pruning = with_accelerate.Snip(accelerator, accelerator.prepare(gpt2()), 0.5)
    with pytest.raises(snip.InputError, match="empty"):
        pruning.start([])
