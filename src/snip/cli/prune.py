"""`snip prune`: masks, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from snip.cli.options import (
    PRUNING,
    WHAT,
    DataDir,
    Device,
    Download,
    Threads,
    option,
    with_flags,
)
from snip.cli.outputs import require_file_name
from snip.common.console import show, show_facts
from snip.common.machine import set_up_torch

DETAILS = "The masks of the same configuration are those that `snip run` trains with."
EXAMPLES = (
    "snip prune --model lenet-5-caffe --sparsity 0.98 --out masks.safetensors",
    "snip prune --model vgg-d --sparsity 0.95 --score-batches 10 --out m.safetensors",
    "snip prune --model mynets.small:build --sparsity 0.9 --out m.safetensors \\",
    "    --weights mine.safetensors --save-weights pruned.safetensors",
)


@with_flags(WHAT, PRUNING)
def command(
    *,
    out: Annotated[Path, option(help="Where the masks go.", metavar="FILE")],
    weights: Annotated[
        Path | None,
        option(
            help="Weights to score, of safetensors or torch.save.",
            show_default="a fresh draw",
            metavar="FILE",
        ),
    ] = None,
    save_weights: Annotated[
        Path | None, option(help="Where the pruned weights go.", metavar="FILE")
    ] = None,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = "cpu",
    threads: Threads = None,
    **flags: Any,
) -> None:
    """Prune a network and save the masks."""
    # Imported here, because this loads torch, and a help text needs none of it.
    from snip.cli.configuration import run_config
    from snip.cli.pruning import masks_of, network_to_prune
    from snip.data import load
    from snip.reports.report import report
    from snip.runs.folder import write_weights
    from snip.training.state import snapshot

    config = run_config(flags)
    require_file_name(out, "--out")
    require_file_name(save_weights, "--save-weights")
    set_up_torch(threads=threads, device=device)
    # A slip in the network's name, or in that of its weights, is told before data is read.
    model = network_to_prune(config, weights).to(device)
    dataset = load(config.dataset, data_dir=data_dir, download=download)
    masks = masks_of(config, dataset, model, weights)
    masks.save(out)
    if save_weights is not None:
        write_weights(save_weights, snapshot(model))
    show(report(model, masks))
    written = {"masks": out, "weights": save_weights}
    show_facts({name: path for name, path in written.items() if path is not None})
