"""The README: its numbers are those of the committed results, and it stays short."""

from pathlib import Path

from readme import BLOCK, BLOCKS, COMMANDS, README, beside, faster, filled, record, where


def test_every_number_is_that_of_the_results() -> None:
    """If this fails: python tools/readme.py."""
    text = README.read_text(encoding="utf-8")
    assert filled(text, run=False) == text
    assert {block[1] for block in BLOCK.finditer(text)} == {*BLOCKS}


def test_all_was_measured_by_its_commands_on_one_machine_on_one_day() -> None:
    about = {name: record(name) for name in COMMANDS}
    assert {name: found["command"] for name, found in about.items()} == COMMANDS
    assert len({where(found) for found in about.values()}) == 1
    assert len({str(found["versions"]) for found in about.values()}) == 1


def test_machine_and_load_are_told_as_far_as_they_were_recorded() -> None:
    about = {"machine": {"cpu": "a CPU", "cores": 2}, "threads": 2, "date": "2026-11-19T22:49:17"}
    assert where(about) == "a CPU, 2 threads, 2026-11-19"
    about["machine"] |= {"instructions": ["AVX2", "AVX-512"]}
    assert where(about) == "a CPU (AVX2, AVX-512), 2 threads, 2026-11-19"
    loads = [about | {"cores_taken_by_others": load} for load in (0.0, 0.123)]
    assert beside(loads) == "; other processes took up to 0.12 cores"
    assert beside([*loads, about]) == beside([about | {"cores_taken_by_others": None}]) == ""


def test_rows_in_which_a_rival_is_faster_are_named() -> None:
    training = {"network": "lenet-300-100", "optimizer": "SGD", "batch": 100, "ours": 2.0}
    inference = {"network": "vgg-like", "batch": 64, "ours": 1.0}
    rows = [row | {"seconds": {"onnxruntime": 1.0}} for row in (training, inference)]
    assert faster(rows, "onnxruntime") == "LeNet-300-100 0.50x (training)"
    rows[1]["ours"] = 4.0
    assert faster(rows, "onnxruntime").endswith(", VGG-like 0.25x (batch 64)")
    assert "none" in faster(rows, "dense bfloat16")


def test_it_can_be_read_in_minutes() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert len(text.split()) <= 1900


def test_its_figure_is_there() -> None:
    assert (Path(README).parent / "docs/time-to-error.png").is_file()
