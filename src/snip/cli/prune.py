"""`snip prune`: masks, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from torch import nn

from snip.cli.flags import RUN_FIELDS, TRAINING_FIELDS, run_config, with_flags
from snip.cli.options import DataDir, Device, Download, Threads, option
from snip.cli.outputs import require_file_name
from snip.cli.reading import load_into, read_weights
from snip.common.console import show, show_facts
from snip.common.device import set_up_torch
from snip.common.errors import InputError
from snip.data import load
from snip.data.dataset import Dataset
from snip.masks import Masks
from snip.reports.report import report
from snip.runs import RunConfig, draw, prune_drawn, prune_network, resolve_model
from snip.runs.config import require_scores
from snip.runs.folder import write_weights
from snip.training.state import snapshot

DETAILS = "The masks of the same configuration are those that `snip run` trains with."
EXAMPLES = (
    "snip prune --model lenet-5-caffe --sparsity 0.98 --out masks.safetensors",
    "snip prune --model vgg-d --sparsity 0.95 --score-batches 10 --out m.safetensors",
    "snip prune --model mynets.small:build --sparsity 0.9 --out m.safetensors \\",
    "    --weights mine.safetensors --save-weights pruned.safetensors",
)


@with_flags(name for name in RUN_FIELDS if name not in TRAINING_FIELDS)
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
    config = run_config(flags)
    require_file_name(out, "--out")
    require_file_name(save_weights, "--save-weights")
    set_up_torch(threads=threads, device=device)
    # A slip in the network's name, or in that of its weights, is told before data is read.
    model = _network(config, weights).to(device)
    dataset = load(config.dataset, data_dir=data_dir, download=download)
    masks = _pruned(config, dataset, model, weights)
    masks.save(out)
    if save_weights is not None:
        write_weights(save_weights, snapshot(model))
    show(report(model, masks))
    written = {"masks": out, "weights": save_weights}
    show_facts({name: path for name, path in written.items() if path is not None})


def _network(config: RunConfig, weights: Path | None) -> nn.Module:
    """The network to prune, with the weights of a file or freshly drawn."""
    if config.sparsity == 0:
        raise InputError("sparsity is 0: nothing would be pruned. Give a fraction such as 0.95.")
    require_scores(config)
    if weights is None:
        return draw(config)[0]
    if config.protocol == "redraw":
        raise InputError(
            "--weights gives the weights and --protocol redraw would draw others: use one of them."
        )
    model = resolve_model(config.model, config.dataset, seed=config.seed)
    load_into(model, read_weights(weights), weights)
    return model


def _pruned(config: RunConfig, dataset: Dataset, model: nn.Module, weights: Path | None) -> Masks:
    if weights is None:
        return prune_drawn(config, dataset, model)
    masks = prune_network(config, dataset, model)
    return masks.with_provenance(
        protocol=config.protocol, model=config.model, dataset=dataset.name, weights=weights.name
    )
