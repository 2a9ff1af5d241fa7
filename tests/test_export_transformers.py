"""ONNX files of pruned networks of transformers compute what the networks compute."""

import warnings

import pytest
import torch
from hugging_face_parts import collated, gpt2, images, vit, words
from needed import needed

import snip

for library in ("onnx", "onnxscript"):
    needed(library)
runtime = needed("onnxruntime")

# A cache of keys and values is no output that ONNX has.
KINDS = {"gpt2": (gpt2, words, {"use_cache": False}), "vit": (vit, images, {})}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fast", [False, True])
def test_onnx_runtime_computes_the_same(kind, fast, tmp_path):
    build, rows, flags = KINDS[kind]
    model, batch = build(), collated(rows(4))
    inputs = {name: value for name, value in batch.items() if name != "labels"} | flags
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        snip.prune(model, batch, sparsity=0.8, loss_fn=lambda model, batch: model(**batch).loss)
        exported = snip.accelerate(model.eval(), inputs, ways={}) if fast else model
        snip.export_onnx(exported, inputs, tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    other = collated(rows(12)[6:])  # another batch size than that it was written with
    feed = {given.name: other[given.name].numpy() for given in session.get_inputs()}
    with torch.no_grad():
        expected = exported.eval()(**{name: other[name] for name in feed}, **flags).logits
    found = torch.from_numpy(session.run(None, feed)[0])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
