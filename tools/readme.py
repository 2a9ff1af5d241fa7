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


def measured(*names: str) -> str:
    """Commands of a block, the machine and the day."""
    about = record(names[0])
    commands = ", ".join(f"`{COMMANDS[name]}`" for name in names)
    where = f"{about['machine']['cpu']}, {about['threads']} threads, {about['date'][:10]}"
    return f"<sub>{commands}; {where}</sub>"


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

    def reached(row: Record) -> str:
        error = 100 * statistics.mean(errors[-1] for errors in row["errors"])
        return f"{error:.2f}% after {row['iteration'][-1] * row['step_ms'] / 1e3:.0f} s"

    rows = "; ".join(f"{row['sparsity']:.0%} pruned, {reached(row)}" for row in pruned)
    return (
        f"LeNet-5-Caffe ({dense['total']:,} parameters) on MNIST, 20 epochs, mean test error of "
        f"{len(dense['errors'])} seeds: dense, {reached(dense)}; {rows}.\n"
        f"{measured('time-to-error')}"
    )


def use() -> str:
    """Output of the code that stands above the block."""
    code = USE.search(README.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code[1] if code else ""]
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
        f"{text}\n\nTimes as fast as each rival, all in one run: above 1x Snip is faster. Dense "
        "PyTorch is the faster of contiguous and channels last; training is an ordinary loop with "
        "SGD; masks are scored on MNIST and CIFAR-10 (`SNIP_DATA`). Errors are from "
        "`snip reproduce table1` and `table2`.\n"
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
        return "not trained to the end yet"
    dense, pruned = (f"{found[s]['selected']['mean']:.2f}" for s in (0.0, sparsity))
    seeds = " (one seed)" if len(found[sparsity]["runs"]) == 1 else ""
    return f"{dense} / {pruned}%{seeds}"


def limits() -> str:
    """Where a rival is faster, and how much common networks gain."""
    training = [r for r in record("readme-loop")["rows"] if r["optimizer"] == "SGD"]
    inference = record("readme-inference")["rows"]
    zoo = [
        r["AdamW"]
        for r in record("readme-zoo")["rows"]
        if r["sparsity"] == 0.98 and r["checkout"] == "now"
    ]
    batch1 = [r for r in inference if r["batch"] == 1]
    low = [*training, *(r for r in inference if r["batch"] == 64)]
    return "\n".join(
        [
            "- **For latency at batch 1** other runtimes are often ahead: "
            f"{slower(batch1, ONNX)} against ONNX Runtime (sizes in the table below).",
            "- **On CPUs with bfloat16 units**, dense PyTorch in bfloat16 can be faster: "
            f"{slower(low, BFLOAT16)}. Under autocast `accelerate` then gives your model back.",
            f"- **Networks that are already lean** gain little: {len(zoo)} networks of timm, "
            f"torchvision and transformers, pruned to 98%, train {min(zoo):.1f} to {max(zoo):.1f} "
            f"times as fast as in dense float32, median {statistics.median(zoo):.1f}.",
            measured("readme-zoo"),
        ]
    )


def slower(rows: list[Record], rival: str) -> str:
    """The networks on which a rival beats ours, with the ratio."""
    losses = [
        f"{NAMES[row['network']]} {times_as_fast(share)}"
        + (f" ({'training' if row['optimizer'] else 'inference'})" if row["batch"] != 1 else "")
        for row in rows
        if (share := ratio(row, rival)) is not None and share < 1
    ]
    return ", ".join(losses) or "none of the networks below"


def paper() -> str:
    """What holds of the paper's claims, and the numbers of its Table 1."""
    from snip.experiments.gallery.pages import read_all
    from snip.experiments.gallery.verdicts import judged, verdict_table

    verdicts = [
        row.rsplit("|", 2)[1]
        for row in verdict_table(judged(read_all(RESULTS), RESULTS)).splitlines()[2:]
    ]
    count = {
        word: sum(word in verdict for verdict in verdicts) for word in ("holds", "fails", "open")
    }
    rows = {
        (row["label"], row["config"]["model"], row["config"]["sparsity"]): row
        for row in record("table1")["rows"]
    }

    def error(label: str, model: str, sparsity: float) -> str:
        row = rows[label, model, sparsity]
        theirs = f" (the paper: {row['paper']}%)" if label == "SNIP" else ""
        return f"{row['selected']['mean']:.2f}%{theirs}"

    other = len(verdicts) - sum(count.values())
    return (
        f"Of the paper's {len(verdicts)} claims, {count['holds']} hold here, whole or in part, "
        f"{count['fails']} fail, {count['open']} are open for want of runs and {other} cannot be "
        "decided by what the paper measures. At 98%, "
        f"LeNet-300-100 (266,610 parameters) has a test error of "
        f"{error('SNIP', 'lenet-300-100', 0.98)}, dense "
        f"{error('reference', 'lenet-300-100', 0)}; LeNet-5-Caffe (431,080) has "
        f"{error('SNIP', 'lenet-5-caffe', 0.98)}, dense {error('reference', 'lenet-5-caffe', 0)}. "
        "Methods that prune a trained network are more accurate at 98% and above, such as LC with "
        f"{error('LC', 'lenet-300-100', 0.99)} on LeNet-300-100 at 99%: pruning before training "
        "saves time, not error. [What was reproduced](docs/reproduced.md) lists every table, "
        "figure and verdict.\n"
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run the commands first")
    options = parser.parse_args()
    for command in COMMANDS.values() if options.measure else ():
        print(command, flush=True)
        words = [sys.executable if word == "python" else word for word in shlex.split(command)]
        subprocess.run(words, cwd=ROOT, check=True)
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
