"""Fill the README's marked blocks from results/; with --measure, run their commands first.

    python tools/readme.py             # fill the blocks
    python tools/readme.py --measure   # half an hour on a quiet machine, then fill: `make readme`

A block begins with `<!-- readme: NAME -->` and ends with `<!-- end -->`. All numbers that were
measured stand in one, with their commands, the machine and the day.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, README = ROOT / "results", ROOT / "README.md"
BLOCK = re.compile(r"<!-- readme: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
CLAIM = re.compile(r"\| \[(.*?)\]\(")
USE = re.compile(r"## Use\n```python\n(.*?)```", re.DOTALL)
# Each command writes results/NAME.json. They run one by one on one machine.
COMMANDS = {
    "time-to-error": "python bench/time_to_error.py",
    "readme-loop": "python bench/loop.py --bfloat16 --optimizer SGD --seconds 1 "
    "--out results/readme-loop.json",
    "readme-inference": "python bench/inference.py --bfloat16 --no-compile --seconds 1 "
    "--out results/readme-inference.json",
    "readme-zoo": "python bench/zoo.py --sparsity 0.98 --seconds 0.1 --out results/readme-zoo.json",
}
NAMES = {
    "lenet-300-100": "LeNet-300-100",
    "lenet-5-caffe": "LeNet-5-Caffe",
    "lstm-b": "LSTM-b",
    "vgg-like": "VGG-like",
    "wrn-16-8": "WRN-16-8",
}
OURS, FLOAT32, BFLOAT16, ONNX = "ours", "dense float32", "dense bfloat16", "onnxruntime"
Record = dict[str, Any]


def record(name: str) -> Record:
    """A committed result."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def where(about: Record) -> str:
    """Machine, threads and day of a measurement."""
    machine = about["machine"]
    instructions = machine.get("instructions")  # records of older versions have none
    cpu = f"{machine['cpu']} ({', '.join(instructions)})" if instructions else machine["cpu"]
    return f"{cpu}, {about['threads']} threads, {about['date'][:10]}"


def beside(records: list[Record]) -> str:
    """The load of other processes during the busiest measurement, if all records tell it."""
    loads = [about.get("cores_taken_by_others") for about in records]
    known = [load for load in loads if load is not None]
    if not known or len(known) < len(loads):
        return ""
    return f"; other processes took up to {max(known):.2f} cores"


def measured(*names: str) -> str:
    """Commands of a block, the machine, the day and what else ran."""
    records = [record(name) for name in names]
    commands = ", ".join(f"`{about['command']}`" for about in records)
    return f"<sub>{commands}; {where(records[0])}{beside(records)}</sub>"


def ratio(times: Record, rival: str) -> float | None:
    """Time of a rival over ours; None where it was not measured."""
    theirs = times.get(rival, times["seconds"].get(rival))
    return None if theirs is None else theirs / times[OURS]


def times_as_fast(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}x" if value >= 2 else f"{value:.2f}x"


def figure() -> str:
    """Caption of the figure: what training takes, and the error that it reaches."""
    dense, *pruned = record("time-to-error")["rows"]

    def seconds(row: Record) -> float:
        return row["iteration"][-1] * row["step_ms"] / 1e3

    def error(row: Record, end: float) -> float:
        at = max(i for i, n in enumerate(row["iteration"]) if n * row["step_ms"] / 1e3 <= end)
        return 100 * statistics.mean(errors[at] for errors in row["errors"])

    def reached(row: Record) -> str:
        return f"{error(row, seconds(row)):.2f}% after {seconds(row):.0f} s"

    rows = "; ".join(
        f"{row['sparsity']:.0%} pruned, {reached(row)} "
        f"(dense by then {error(dense, seconds(row)):.2f}%)"
        for row in pruned
    )
    return (
        f"LeNet-5-Caffe ({dense['total']:,} parameters) on MNIST, 20 epochs, mean test error of "
        f"{len(dense['errors'])} seeds: dense, {reached(dense)}; {rows}. Each step is cheaper; an "
        "error is not always reached sooner. Seconds are steps times the time of one step.\n"
        f"{measured('time-to-error')}"
    )


def use() -> str:
    """Output of the code that stands above the block."""
    code = USE.search(README.read_text(encoding="utf-8"))
    if code is None:
        raise SystemExit("README.md has no block of Python under '## Use'.")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code[1]]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return f"```text\n{done.stdout.strip()}\n```"


def table() -> str:
    """Accuracy and speed of the networks of the paper."""
    training = {r["network"]: r for r in record("readme-loop")["rows"] if r["optimizer"] == "SGD"}
    inference = {(r["network"], r["batch"]): r for r in record("readme-inference")["rows"]}
    rows = [
        "| network (parameters), sparsity | test error, dense / pruned | training, against dense "
        "float32 / bfloat16 | inference at batch 64, against dense float32 / bfloat16 / ONNX "
        "Runtime | at batch 1, the same |",
        "|---|---|---|---|---|",
    ]
    for name, times in training.items():
        cells = [
            f"{NAMES[name]} ({times['parameters']:,}), {times['sparsity']:.0%}",
            errors(name, times["sparsity"]),
            " / ".join(times_as_fast(ratio(times, rival)) for rival in (FLOAT32, BFLOAT16)),
        ]
        for batch in (64, 1):
            of_batch = inference[name, batch]
            rivals = (FLOAT32, BFLOAT16, ONNX)
            cells.append(" / ".join(times_as_fast(ratio(of_batch, rival)) for rival in rivals))
        rows.append(f"| {' | '.join(cells)} |")
    text = "\n".join(rows)
    return (
        f"{text}\n\nA cell is the rival's time over ours, of one run: above 1x Snip is faster. "
        "Dense PyTorch is the faster of contiguous and channels last, in bfloat16 under autocast "
        "or, for inference, with bfloat16 weights; training is an ordinary loop with SGD. Set "
        "`SNIP_DATA` to the folder of CIFAR-10: masks are scored on it. Errors "
        "(`snip reproduce table1`, `table2`) are of the checkpoint with the "
        "best validation error on the full schedule, those of the figure of the last step of a "
        "short one.\n"
        f"{measured('readme-loop', 'readme-inference')}"
    )


def errors(name: str, sparsity: float) -> str:
    """Mean test errors of the paper's experiments, or that there are none yet."""
    found = {
        row["config"]["sparsity"]: row
        for experiment in ("table2", "table1")
        for row in record(experiment)["rows"]
        if row["config"]["model"] == name and row["config"]["method"] == "snip" and row["selected"]
    }
    if {0.0, sparsity} - found.keys():
        return "no full training yet"
    dense, pruned = (f"{found[s]['selected']['mean']:.2f}" for s in (0.0, sparsity))
    seeds = " (one seed)" if len(found[sparsity]["runs"]) == 1 else ""
    return f"{dense} / {pruned}%{seeds}"


def limits() -> str:
    """Rows in which a rival is faster, and the speedups of common networks."""
    training = [r for r in record("readme-loop")["rows"] if r["optimizer"] == "SGD"]
    inference = record("readme-inference")["rows"]
    zoo = {
        r["network"]: r["AdamW"]
        for r in record("readme-zoo")["rows"]
        if r["sparsity"] == 0.98 and r["checkout"] == "now"
    }
    least = sorted(zoo, key=lambda name: zoo[name])[:4]
    batch1 = [r for r in inference if r["batch"] == 1]
    slow = " and ".join(
        f"{rival} ({faster(batch1, way)})"
        for rival, way in (("ONNX Runtime", ONNX), ("dense float32", FLOAT32))
    )
    return "\n".join(
        [
            f"- **For latency at batch 1** others are often ahead: {slow}; sizes are below.",
            "- **On CPUs with bfloat16 units**, dense PyTorch in bfloat16 can be faster: "
            f"{faster([*training, *inference], BFLOAT16)}. Call `accelerate` inside autocast: it "
            "gives your model back where that is faster, and says so if channels last would be.",
            f"- **Some networks gain little**: of {len(zoo)} networks of the zoo, pruned to 98%, "
            "a training step with AdamW is at the median "
            f"{statistics.median(zoo.values()):.1f} times as fast as dense float32, and "
            + ", ".join(f"{name} {zoo[name]:.2f}x" for name in least)
            + " gain least.",
            measured("readme-loop", "readme-inference", "readme-zoo"),
        ]
    )


def faster(rows: list[Record], rival: str) -> str:
    """Networks on which a rival beats ours, with its time over ours."""
    losses = [
        f"{NAMES[row['network']]} {times_as_fast(share)}{situation(row)}"
        for row in rows
        if (share := ratio(row, rival)) is not None and share < 1
    ]
    return ", ".join(losses) or "on none of the networks below"


def situation(row: Record) -> str:
    """Training, or the batch of an inference that is not at batch 1."""
    if "optimizer" in row:
        return " (training)"
    return "" if row["batch"] == 1 else f" (batch {row['batch']})"


def paper() -> str:
    """Verdicts on the paper's claims, and the numbers of its Table 1."""
    from snip.experiments.gallery.pages import read_all
    from snip.experiments.gallery.verdicts import judged, verdict_table

    table = verdict_table(judged(read_all(RESULTS), RESULTS)).splitlines()[2:]
    verdicts = {CLAIM.findall(row)[0]: row.rsplit("|", 2)[1].strip() for row in table}

    def having(*begins: str) -> list[str]:
        return [claim for claim, verdict in verdicts.items() if verdict.startswith(begins)]

    fails = "; ".join(f'"{claim}"' for claim in having("fails"))
    whole = len(having("holds here"))
    partly, opened = len(having("holds in")), len(having("open"))
    other = len(verdicts) - whole - partly - opened - len(having("fails"))
    rows = {
        (row["label"], row["config"]["model"], row["config"]["sparsity"]): row
        for row in record("table1")["rows"]
    }

    def error(label: str, model: str, sparsity: float) -> str:
        row = rows[label, model, sparsity]
        theirs = f" (the paper: {row['paper']}%)" if label == "SNIP" else ""
        return f"{row['selected']['mean']:.2f}%{theirs}"

    return (
        f"Of the paper's {len(verdicts)} claims, {whole} hold here, {partly} hold in part or in a "
        f"single seed, {opened} are open (too few runs, or undecided), {other} cannot be decided "
        f"by such measurements, and {len(having('fails'))} fail: {fails}. At 98%, "
        f"LeNet-300-100 (266,610 parameters) has a test error of "
        f"{error('SNIP', 'lenet-300-100', 0.98)}, dense "
        f"{error('reference', 'lenet-300-100', 0)}; LeNet-5-Caffe (431,080) has "
        f"{error('SNIP', 'lenet-5-caffe', 0.98)}, dense {error('reference', 'lenet-5-caffe', 0)}. "
        "Methods that prune a trained network are more accurate at 98% and above, such as LC with "
        f"{error('LC', 'lenet-300-100', 0.99)} on LeNet-300-100 at 99%: pruning before training "
        "saves time per step; it does not lower the error. "
        "[What was reproduced](docs/reproduced.md) lists every table, figure and verdict.\n"
        "<sub>`snip reproduce table1`, `python -m snip.experiments.gallery`</sub>"
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "figure": figure,
    "use": use,
    "limits": limits,
    "table": table,
    "paper": paper,
}


def filled(text: str, *, run: bool = True) -> str:
    """The README with its blocks made anew; without `run` the output of its code stays."""

    def fill(block: re.Match[str]) -> str:
        if block[1] == "use" and not run:
            return block[0]
        return f"<!-- readme: {block[1]} -->\n{BLOCKS[block[1]]()}\n<!-- end -->"

    return BLOCK.sub(fill, text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Rewrite the marked blocks of README.md from results/; runs its code as well."
    )
    measuring = "run the commands first, which overwrites results/: half an hour, nothing else on"
    parser.add_argument("--measure", action="store_true", help=measuring)
    options = parser.parse_args()
    for command in COMMANDS.values() if options.measure else ():
        print(command, flush=True)
        words = [sys.executable if word == "python" else word for word in shlex.split(command)]
        subprocess.run(words, cwd=ROOT, check=True)
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
