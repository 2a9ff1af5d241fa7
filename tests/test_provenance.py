"""Where masks come from: a value that is never changed in place, and checked when it is read."""

import dataclasses
import json

import pytest
import torch
from networks import make
from safetensors.torch import save_file

import snip
from snip.export import compact
from snip.masks import Provenance
from snip.masks.masks import checksum

# A value of the wrong kind for every field, as a file could hold it.
WRONG = {
    "note": 3,
    "method": 5, "rounds": 1.5, "control": 1, "sparsity_asked": "0.9", "scope": 0.5, "floor": [1],
    "budget": {}, "granularity": 4, "reduction": 1,
    "decay": "0.9", "batch_norm": False, "loss_reduction": 0, "batch_dim": 1.5, "zero_parts": 1,
    "loss": ["x"], "batches": 2.5, "samples": True, "input_shape": [1, "2"], "input_dtype": 32,
    "uses": {"w": "1"}, "left_out": ["norm"], "protocol": 1, "seeds": {"run": 0.5}, "dataset": 7,
    "model": [], "weights": {}, "shrunk_from": [2, 3], "seed": "0", "versions": {"torch": 2},
    "zero_biases": 0.5,
}  # fmt: skip


def write(path, provenance):
    """A mask file that is whole but for its provenance."""
    masks = snip.Masks({"a": torch.ones(3).bool()})
    header = {"format": "snip-masks-2", "order": '["a"]', "provenance": provenance}
    save_file(dict(masks), path, metadata={**header, "checksum": checksum(masks, header)})


def test_every_field_comes_back_from_a_file(tmp_path):
    model, batch = make("conv")
    masks = snip.prune(model, batch, sparsity=0.5, scope={"head": 0.25})
    masks = masks.with_provenance(
        protocol="redraw", seeds={"run": 1}, dataset="mnist", model="m", weights="w.safetensors",
        shrunk_from={"kept": 3, "total": 5}, control="shuffle", note="trimmed",
    )  # fmt: skip
    known = masks.provenance.to_dict()
    assert set(known) == {field.name for field in dataclasses.fields(Provenance)}
    masks.save(tmp_path / "m")
    assert snip.Masks.load(tmp_path / "m").provenance == masks.provenance
    assert Provenance.from_dict(json.loads(json.dumps(known))) == masks.provenance


def test_it_is_changed_by_making_another():
    masks = snip.Masks({"a": torch.ones(3).bool()}, Provenance(method="snip"))
    other = masks.with_provenance(dataset="mnist")
    assert other == masks
    assert (other.provenance.method, other.provenance.dataset) == ("snip", "mnist")
    assert masks.provenance == Provenance(method="snip")
    with pytest.raises(dataclasses.FrozenInstanceError):
        masks.provenance.dataset = "mnist"
    with pytest.raises(AttributeError):
        masks.provenance = Provenance()
    with pytest.raises(snip.KindError, match="give a Provenance"):
        snip.Masks({"a": torch.ones(3).bool()}, {"method": "snip"})


def test_every_field_has_a_wrong_kind_here():
    assert set(WRONG) == {field.name for field in dataclasses.fields(Provenance)}


@pytest.mark.parametrize("field", WRONG)
def test_a_field_of_the_wrong_kind_is_a_damaged_file(tmp_path, field):
    with pytest.raises(snip.KindError, match=f"^{field} of a provenance is"):
        Provenance(**{field: WRONG[field]})
    write(tmp_path / "m", json.dumps({field: WRONG[field]}))
    with pytest.raises(snip.FileError, match=f"m is damaged or of another version .{field}"):
        snip.Masks.load(tmp_path / "m")


@pytest.mark.parametrize(
    "text", ['{"input_shape": [-1]}', '{"input_dtype": "load"}', "[]", "5", "{", "[" * 100_000]
)
def test_a_provenance_that_is_none_is_a_damaged_file(tmp_path, text):
    write(tmp_path / "m", text)
    with pytest.raises(snip.FileError, match="m is damaged"):
        snip.Masks.load(tmp_path / "m")


def test_a_field_of_another_version_is_left_out(tmp_path):
    write(tmp_path / "m", '{"method": "snip", "redraw": null, "of_the_future": [1]}')
    assert snip.Masks.load(tmp_path / "m").provenance == Provenance(method="snip")


def test_a_compact_file_keeps_it_too(tmp_path):
    model, batch = make("mlp")
    masks = snip.prune(model, batch, sparsity=0.5)
    compact.save(model, tmp_path / "model")
    loaded = compact.load(tmp_path / "model", make("mlp")[0])
    assert snip.held_masks(loaded).provenance == masks.provenance
