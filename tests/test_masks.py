"""Masks: the mapping, its file, its provenance, and what is refused."""

import dataclasses
import json
import os
from html.parser import HTMLParser

import pytest
import torch
from networks import make
from safetensors.torch import save_file
from torch import nn

import snip
from snip.export import compact
from snip.masks import Provenance, nearly_empty_layers
from snip.masks.masks import checksum


def masks(seed=0):
    torch.manual_seed(seed)
    bits = {"b": torch.rand(4, 5) < 0.5, "a": torch.rand(3) < 0.5}
    return snip.Masks(bits, Provenance(method="snip"))


def test_counts():
    m = snip.Masks({"a": torch.tensor([True, False]), "b": torch.tensor([[False], [False]])})
    assert (m.kept, m.total, m.sparsity, m.density("a")) == (1, 4, 0.75, 0.5)
    assert "75.00% sparse: 1 of 4" in repr(m)


class Checker(HTMLParser):
    """Balanced tags, the widths of the bars, and the text of every cell."""

    def __init__(self):
        super().__init__()
        self.open, self.rows, self.widths = [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "rect":
            self.widths.append(dict(attrs)["width"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


def test_a_notebook_shows_a_table():
    evil = "<script>alert(1)</script>"
    shown = snip.Masks({"fc.weight": torch.eye(4).bool(), evil: torch.zeros(4).bool()})
    html = shown._repr_html_()
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    assert checker.rows == [
        ["parameter", "kept", "of", "share"],
        ["fc.weight", "4", "16", "25.00%"],
        [evil, "0", "4", "0.00%"],
        ["total", "4", "20", "20.00%"],
    ]
    assert checker.widths == ["25.00", "0.00", "20.00"]
    assert "<script>" not in html
    assert "http" not in html


def test_equality_union_intersection():
    one, two = masks(0), masks(1)
    assert one == masks(0)
    assert one != two
    assert one != "masks"
    assert torch.equal((one | two)["b"], one["b"] | two["b"])
    assert torch.equal((one & two)["a"], one["a"] & two["a"])
    with pytest.raises(snip.InputError, match="different models"):
        one & snip.Masks({"a": one["a"]})


@pytest.mark.parametrize(
    "content",
    [{}, [], {"a": torch.ones(3)}, {1: torch.ones(3).bool()}, {"a": [True]}, {"a": None}],
)
def test_bad_content_is_refused(content):
    with pytest.raises(snip.KindError):
        snip.Masks(content)


def test_a_digest_is_of_names_shapes_and_bits():
    mask = torch.tensor([[True, False, True], [False, False, True]])
    others = [{"b": mask}, {"a": mask.view(3, 2)}, {"a": ~mask}]
    digests = {snip.Masks(found).digest() for found in [{"a": mask}, {"a": mask.clone()}, *others]}
    assert len(digests) == 4


def test_round_trip_keeps_order_and_provenance(tmp_path):
    masks().save(tmp_path / "m.safetensors")
    back = snip.Masks.load(tmp_path / "m.safetensors")
    assert back == masks()
    assert list(back) == ["b", "a"]
    assert back.provenance == Provenance(method="snip")
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_broken_files_are_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    masks().save(path)
    whole = path.read_bytes()
    for cut in (0, 5, 40, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(snip.FileError, match=r"is damaged.*masks\.save\(\)") as caught:
            snip.Masks.load(path)
        assert "folder" not in str(caught.value)
    save_file({"a": torch.ones(3).bool()}, path)
    with pytest.raises(snip.FileError, match="not of masks"):
        snip.Masks.load(path)
    with pytest.raises(snip.FileError, match="there is no mask file"):
        snip.Masks.load(tmp_path / "none")
    with pytest.raises(snip.FileError):
        snip.Masks.load(tmp_path)


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "m.safetensors"
    masks(0).save(path)
    broken = snip.Masks({"\ud800": torch.ones(3).bool()})  # a name that no encoding can write
    with pytest.raises(UnicodeEncodeError):
        broken.save(path)
    assert snip.Masks.load(path) == masks(0)
    with pytest.raises(snip.FileError, match="cannot write"):
        masks().save("/proc/none/m.safetensors")


def test_masks_of_another_model_change_nothing():
    model, _ = make("mlp")
    before = model.first.weight.detach().clone()
    names = dict(model.named_parameters())
    good = torch.zeros(names["first.weight"].shape).bool()
    for name, shape, message in (
        ("first.wieght", (8, 6), "'first.weight'"),
        ("second.weight", (2, 2), "shape"),
    ):
        wrong = snip.Masks({"first.weight": good, name: torch.zeros(shape).bool()})
        with pytest.raises(snip.InputError, match=f"another model.*{message}"):
            wrong.apply(model)
        assert torch.equal(model.first.weight, before)
    assert snip.held_masks(model) is None


def test_from_zeros_finds_a_pruned_models_masks():
    model, batch = make("mlp")
    pruned = snip.prune(model, batch, sparsity=0.7)
    plain, _ = make("mlp")
    plain.load_state_dict(model.state_dict())
    assert snip.Masks.from_zeros(plain) == pruned


def test_check_tells_a_model_that_is_not_pruned():
    model, batch = make("mlp")
    pruned = snip.prune(model, batch, sparsity=0.7)
    pruned.check(model)
    fresh, _ = make("mlp")
    with pytest.raises(snip.InputError, match="not applied"):
        pruned.check(fresh)


def test_a_header_of_another_kind_is_refused(tmp_path):
    header = {"format": "snip-masks-2", "order": "5", "provenance": "{}"}
    save_file({"a": torch.ones(3).bool()}, tmp_path / "m", metadata=header)
    with pytest.raises(snip.FileError, match="is damaged"):
        snip.Masks.load(tmp_path / "m")


def test_flipped_bits_are_noticed(tmp_path):
    masks().save(tmp_path / "m")
    whole = bytearray((tmp_path / "m").read_bytes())
    for value in (7, 1 - whole[-1]):
        (tmp_path / "m").write_bytes(bytes(whole[:-1]) + bytes([value]))
        with pytest.raises(snip.FileError, match="is damaged"):
            snip.Masks.load(tmp_path / "m")


def test_wrong_kinds_are_refused(tmp_path):
    with pytest.raises(TypeError):
        masks() | 5
    for path in (None, 5, b"m", ["m"]):
        with pytest.raises(snip.KindError, match="give a string or a Path"):
            snip.Masks.load(path)
        with pytest.raises(snip.KindError, match="give a string or a Path"):
            masks().save(path)
    with pytest.raises(snip.FileError, match="is a folder"):
        snip.Masks.load(tmp_path)


@pytest.mark.parametrize(
    ("layer", "outputs"),
    [
        (nn.Linear(2, 200), 200),
        (nn.ConvTranspose2d(2, 200, 1), 200),
        (nn.ConvTranspose2d(4, 200, 1, groups=2), 200),
        (nn.Conv2d(200, 8, 1), 8),
        (nn.ConvTranspose2d(200, 8, 1), 8),
    ],
)
def test_a_layer_is_nearly_empty_by_its_outputs(layer, outputs):
    least = max(8, outputs // 8)
    for kept, nearly in ((least - 1, ["weight"]), (least, [])):
        mask = torch.zeros_like(layer.weight, dtype=torch.bool)
        mask.view(-1)[:kept] = True
        assert nearly_empty_layers(layer, {"weight": mask}) == nearly


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
