"""ONNX files of pruned, shrunk and accelerated networks compute what the networks compute."""

import importlib.util
import warnings

import pytest
import torch
from hugging_face_parts import collated, gpt2, images, vit, words
from needed import needed
from networks import make
from torch import nn

import snip
from snip.common.errors import SnipWarning
from snip.engine.kernels.library import available
from snip.export import onnx as export
from snip.masks import held_masks
from snip.models import build

onnx = needed("onnx")
needed("onnxscript")
runtime = needed("onnxruntime")


def started(path):
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(str(path), options)


def run(path, *inputs):
    session = started(path)
    names = [given.name for given in session.get_inputs()]
    feed = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
    return torch.from_numpy(session.run(None, feed)[0])


@pytest.mark.parametrize(("name", "sparsity"), [("lenet-5-caffe", 0.99), ("alexnet-s", 0.95)])
def test_shrunk_networks(name, sparsity, tmp_path):
    shape = (3, 32, 32) if name == "alexnet-s" else (1, 28, 28)
    model = build(name, seed=0).train()
    batch = torch.randn(2, *shape), torch.tensor([1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnipWarning)
        snip.prune(model, batch, sparsity=sparsity)
    small = snip.shrink(model, batch)
    snip.export_onnx(small, batch, tmp_path / "small.onnx")
    assert small.training
    assert held_masks(small) is not None
    for samples in (1, 5):
        images = torch.randn(samples, *shape)
        with torch.no_grad():
            expected = model.eval()(images)
        error = (run(tmp_path / "small.onnx", images) - expected).abs().max()
        assert error <= 1e-4 * expected.abs().max()
        model.train()
    if name == "alexnet-s":  # the file is as small as the model
        assert snip.shrink_report(small).removed > 500
        stored = sum(p.numel() for p in small.parameters())
        assert (tmp_path / "small.onnx").stat().st_size < stored * 4 + 200_000
    assert list(tmp_path.iterdir()) == [tmp_path / "small.onnx"]


def test_a_shrunk_recurrent_network(tmp_path):
    model, batch = make("gru")
    model.head.weight.data[:, 1] = 0
    model.rnn.weight_hh_l0.data[:, 1] = 0
    small = snip.shrink(model, batch)
    assert small.rnn.hidden_size == 4
    snip.export_onnx(small, batch, tmp_path / "small.onnx")
    sequences = torch.randn(7, 3, 4)
    torch.testing.assert_close(
        run(tmp_path / "small.onnx", sequences), model(sequences).detach(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")
def test_pruned_and_accelerated_networks(tmp_path):
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(64, 5),
    )  # fmt: skip
    batch = torch.randn(4, 3, 10, 10), torch.arange(4)
    masks = snip.prune(model, batch, sparsity=0.8)
    fast = snip.accelerate(model, batch[0], ways={})
    model(batch[0]), fast(batch[0])  # batch norm has statistics now
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
    nn.functional.cross_entropy(fast(batch[0]), batch[1]).backward()
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SnipWarning)
        snip.export_onnx(model, batch, tmp_path / "pruned.onnx")
    with pytest.warns(SnipWarning, match=r"written as an ordinary one.*snip\.shrink"):
        snip.export_onnx(fast, batch, tmp_path / "fast.onnx")
    assert type(fast) is not nn.Sequential  # it stays accelerated
    assert fast.training
    for network, name in ((model, "pruned"), (fast, "fast")):
        for samples in (1, 6):
            images = torch.randn(samples, 3, 10, 10)
            with torch.no_grad():
                expected = network.eval()(images)
            found = run(tmp_path / f"{name}.onnx", images)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        weights = onnx.load(tmp_path / f"{name}.onnx").graph.initializer
        stored = {w.name: onnx.numpy_helper.to_array(w) for w in weights}
        assert not stored["5.weight"][~masks["5.weight"].numpy()].any()  # the zeros are in the file


# A cache of keys and values is no output that ONNX has.
KINDS = {"gpt2": (gpt2, words, {"use_cache": False}), "vit": (vit, images, {})}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fast", [False, True])
def test_transformers(kind, fast, tmp_path):
    build, rows, flags = KINDS[kind]
    model, batch = build(), collated(rows(4))
    inputs = {name: value for name, value in batch.items() if name != "labels"} | flags
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        snip.prune(model, batch, sparsity=0.8, loss_fn=lambda model, batch: model(**batch).loss)
        exported = snip.accelerate(model.eval(), inputs, ways={}) if fast else model
        snip.export_onnx(exported, inputs, tmp_path / "model.onnx")
    session = started(tmp_path / "model.onnx")
    other = collated(rows(12)[6:])  # another batch size than that it was written with
    feed = {given.name: other[given.name].numpy() for given in session.get_inputs()}
    with torch.no_grad():
        expected = exported.eval()(**{name: other[name] for name in feed}, **flags).logits
    found = torch.from_numpy(session.run(None, feed)[0])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, y=None):
        return self.fc(x if y is None else x * y)


def test_inputs_of_any_kind(tmp_path):
    model, path = Two(), tmp_path / "model.onnx"
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    for given, any_batch_size in (((x[:1], y[:1]), True), ({"x": x, "y": y}, False)):
        snip.export_onnx(model, given, path, any_batch_size=any_batch_size)
        torch.testing.assert_close(run(path, x, y), model(x, y).detach())


def test_what_cannot_be_exported(tmp_path, monkeypatch):
    class Odd(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(snip.InputError, match="Odd cannot be exported"):
        snip.export_onnx(Odd(), torch.randn(3, 2), tmp_path / "model.onnx")
    with pytest.raises(snip.InputError, match=r"Two does not run on these inputs: .*mat1 and mat2"):
        snip.export_onnx(Two(), torch.randn(3, 7), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(export, "NEEDED", ("onnx", "no_such_package"))
    assert importlib.util.find_spec("no_such_package") is None
    with pytest.raises(snip.InputError, match=r"no_such_package.*snip-prune\[onnx\]"):
        snip.export_onnx(Two(), torch.randn(3, 3), tmp_path / "model.onnx")
