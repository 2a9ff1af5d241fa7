"""The work of `snip prune`: a network from a draw or a file, and its masks."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from snip.cli.reading import load_into, read_weights
from snip.common.errors import InputError
from snip.data.dataset import Dataset
from snip.masks import Masks
from snip.runs import RunConfig, draw, prune_drawn, prune_network, resolve_model
from snip.runs.in_phases import require_scores


def network_to_prune(config: RunConfig, weights: Path | None) -> nn.Module:
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


def masks_of(config: RunConfig, dataset: Dataset, model: nn.Module, weights: Path | None) -> Masks:
    """Prune the network, and say in its masks where its weights are from."""
    if weights is None:
        return prune_drawn(config, dataset, model)
    masks = prune_network(config, dataset, model)
    return masks.with_provenance(
        protocol=config.protocol, model=config.model, dataset=dataset.name, weights=weights.name
    )
