"""The kinds of files that are attacked: how a real one is made, read and given other fields."""

from __future__ import annotations

from hostile_checkpoints import checkpoint_kind
from hostile_data import (
    cifar_trees,
    idx_trees,
    make_cifar,
    make_idx,
    read_cifar,
    write_cifar,
    write_idx,
)
from hostile_masks import compact_kind, header_trees, make_masks, read_masks, write_masks
from hostile_runs import history, read_weights, run_file
from hostile_values import HOSTILE, HOSTILE_SHARED, Kind

from snip.data import DATASETS
from snip.data.idx import read_idx
from snip.runs import RunResult
from snip.runs.folder import read_config
from snip.runs.sums import changes
from snip.training.start import read_choice

KINDS = {
    "compact": compact_kind("conv"),
    "compact, shrunk": compact_kind("small"),
    "masks": Kind(make_masks, read_masks, header_trees, write_masks),
    "result": run_file("result.json", lambda path: RunResult.read(path.parent).to_dict()),
    "metrics": run_file("metrics.jsonl", history),
    # These two have no sum of their own that a reader asks for: `snip inspect` says what changed.
    "config": run_file("config.json", lambda p: read_config(p.parent).to_dict(), summed=False),
    "engine": run_file("engine.json", lambda p: read_choice(p)[0].to_dict(), summed=False),
    "sums": run_file("sums.json", lambda p: changes(p.parent), summed=False),
    "weights": run_file("selected.safetensors", read_weights)._replace(trees=lambda path: {}),
    "checkpoint": checkpoint_kind("sgd", "file"),
    "checkpoint, adam": checkpoint_kind("adam", "optimizer"),
    "cifar": Kind(
        make_cifar,
        read_cifar,
        cifar_trees,
        write_cifar,
        summed=False,
        hostile=(*HOSTILE, *HOSTILE_SHARED),
    ),
    "idx": Kind(make_idx, lambda path: read_idx(path, DATASETS["mnist"], 3), idx_trees, write_idx),
}
