"""Files of few bytes that stand for more than time, memory or a message can hold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from attacks_files import LONGEST
from hostile_kinds import KINDS
from hostile_masks import header_of, pruned
from hostile_values import HOSTILE_SHARED
from safetensors.torch import load_file

import snip
from snip.common.checks import check_kinds, checked_whole, differences
from snip.common.errors import InputError
from snip.common.files import LARGEST_JSON, parsed_json, read_json
from snip.common.text import shown
from snip.data.safe_pickle import PickledArray, load_arrays
from snip.export import compact
from snip.export.compact import Part, encode_gaps
from snip.network.cuts import Cut
from snip.runs import RunResult
from snip.training import metrics
from snip.training.metrics import read_metrics
from snip.training.torch_files import read_torch

LINE = {f: 1.0 for f in metrics.Metrics.__dataclass_fields__} | {"iteration": 1}


@pytest.mark.parametrize("value", HOSTILE_SHARED, ids=["list", "tuple", "dict"])
def test_containers_that_hold_one_another_many_times(value: object, tmp_path: Path) -> None:
    torch.save({"a": value}, tmp_path / "it")
    assert (tmp_path / "it").stat().st_size < 4000
    with pytest.raises(ValueError, match="more values than its pickle has bytes"):
        read_torch(tmp_path / "it", "copy it anew")


def test_containers_that_are_shared_as_often_as_usual(tmp_path: Path) -> None:
    betas = (0.9, 0.999)
    content = {"groups": [{"betas": betas, "params": [n]} for n in range(9)], "same": [betas] * 3}
    torch.save(content, tmp_path / "it")
    assert read_torch(tmp_path / "it", "copy it anew") == content


def test_a_pickle_beside_tensors_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snip.training.torch_files.LARGEST", 1000)
    torch.save({"weight": torch.zeros(5000)}, tmp_path / "it")
    assert len(read_torch(tmp_path / "it", "copy it anew")["weight"]) == 5000
    torch.save({"names": ["a name"] * 2000}, tmp_path / "it")
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        read_torch(tmp_path / "it", "copy it anew")


@pytest.mark.parametrize(
    "shape", [(1,) * 5, (2**70, 0), (True, 1), HOSTILE_SHARED[1], [2, 2]], ids=range(5)
)
def test_the_shape_of_a_pickled_array(shape: object) -> None:
    array = PickledArray()
    dtype = load_arrays(b"\x80\x02cnumpy\ndtype\n(U\x02u1K\x00K\x01tR.")
    array.__setstate__((1, shape, dtype, False, b""))
    with pytest.raises(ValueError, match="has the shape") as caught:
        array.numpy()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("shape", [[1] * 65, [2**62] * 3000, [-1]])
def test_a_part_of_a_compact_file_has_a_shape(shape: list[int]) -> None:
    assert Part([1] * 64, "float32").total == 1
    with pytest.raises(InputError, match="it is no shape"):
        Part(shape, "float32")


def test_a_part_checks_the_shape_of_its_values() -> None:
    for part, values in (
        (Part([2, 2], "float32"), torch.zeros(4)),
        (Part([2, 2], "float32"), torch.zeros(1, 4)),
        (Part([4], "float32", kept=4), torch.zeros(3)),
        (Part([4], "float32", kept=4), torch.zeros(4, 1)),
    ):
        with pytest.raises(ValueError, match="in place of"):
            part.check_entries(values, None)


def test_gaps_take_no_more_room_than_a_bitmap() -> None:
    packed, width = encode_gaps(np.array([3, 9]))
    part = Part([16], "float32", kept=2, width=width)
    part.check_entries(torch.zeros(2), torch.from_numpy(packed))
    for wrong in (torch.zeros(3, dtype=torch.uint8), torch.zeros(1, 2, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="are no gaps of 16"):
            part.check_entries(torch.zeros(2), wrong)
    with pytest.raises(ValueError, match="are no gaps of 16"):
        part.check_entries(torch.zeros(2), torch.zeros(2))


@pytest.mark.parametrize("units", [(1, 1), (2, 1), (0, 3, 3)])
def test_the_units_of_a_cut_rise(units: tuple[int, ...]) -> None:
    assert Cut((0, 3), (1, 2)).inputs == (0, 3)
    for sides in ((units, None), (None, units)):
        with pytest.raises(InputError, match="rising order"):
            Cut(*sides)


@pytest.mark.parametrize("name", ["compact", "masks"])
@pytest.mark.parametrize("part", ["provenance", "layout", "order", "plan"])
def test_a_header_is_bounded_before_it_is_parsed(name: str, part: str, tmp_path: Path) -> None:
    path = KINDS[name].make(tmp_path)
    if part not in header_of(path):
        return
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"][part] = "[" + "{}," * (LARGEST_JSON // 3) + "{}]"
    if name == "compact":
        own = {k: v for k, v in header["__metadata__"].items() if k != "checksum"}
        header["__metadata__"]["checksum"] = compact.checksum(own, load_file(path))
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    with pytest.raises(snip.FileError, match="characters of JSON, more than"):
        KINDS[name].read(path)


def test_json_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(b'{"a":[' + b"{}," * (LARGEST_JSON // 3) + b"{}]}")
    with pytest.raises(snip.FileError, match="more than"):
        read_json(path)
    with pytest.raises(ValueError, match="more than"):
        parsed_json(" " * (LARGEST_JSON + 1))


def test_lines_of_metrics_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text((json.dumps(LINE) + "\n") * 3)
    assert len(read_metrics(path)) == 3
    path.write_text(json.dumps(LINE) + "\n" + json.dumps(LINE | {"lr": [{}] * 2000}) + "\n")
    with pytest.raises(snip.FileError, match="a line has more than"):
        read_metrics(path)


def test_no_message_is_as_long_as_its_file(tmp_path: Path) -> None:
    path = KINDS["result"].make(tmp_path)
    content = json.loads(path.read_text())
    for change in (
        {"threads": [0] * 300_000},
        {"date": ["a" * 300_000]},
        {"x" * 300_000: 1},
        {"config": content["config"] | {"y" * 300_000: 1}},
    ):
        path.write_text(json.dumps(content | change))
        with pytest.raises(snip.FileError) as caught:
            RunResult.read(tmp_path)
        assert len(str(caught.value)) < LONGEST


LONG = {
    "text": "a" * 10**6,
    "list": [0] * 10**6,
    "names": {"a" * 10**6: 1},
    "bytes": b"a" * 10**6,
    "number": -(1 << 10**5),
    **{f"shared {type(value).__name__}": value for value in HOSTILE_SHARED},
}


@pytest.mark.parametrize("kind", LONG)
def test_a_value_is_quoted_in_short(kind: str) -> None:
    value = LONG[kind]
    assert len(shown(value)) < 400
    assert len(differences({"a": value}, {"a": 1})) < 800
    with pytest.raises(InputError) as caught:
        checked_whole("seed", value, least=0)
    assert len(str(caught.value)) < 800
    with pytest.raises(InputError) as caught:
        check_kinds(metrics.Metrics(**(LINE | {"lr": value})), "an evaluation")
    assert len(str(caught.value)) < 800


def test_a_value_of_the_usual_length_is_quoted_whole() -> None:
    for value in (1, -2.5, "lenet", [1, 2, 3], {"a": [1]}, None, True, (25_000, 50_000), b"u1"):
        assert shown(value) == repr(value)
    assert len(str(InputError("a" * 10**6))) < LONGEST


def test_a_model_that_is_named_at_length() -> None:
    masks = snip.held_masks(pruned("mlp"))
    assert masks is not None
    named = snip.Masks({"a" * 300_000: next(iter(masks.values()))})
    with pytest.raises(InputError, match="another model") as caught:
        named.apply(pruned("mlp"))
    assert len(str(caught.value)) < LONGEST
