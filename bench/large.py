"""Scoring GPT-2 medium (355M weights, from its configuration): time and memory, in several ways.

python bench/large.py whole          as it is
python bench/large.py checkpointed   with activation checkpointing
python bench/large.py sharded        under fully_shard in two processes, checkpointed
python bench/large.py pass           one forward and backward pass, for comparison

One batch of 4 x 128 tokens in each process. Memory is the peak of a process beyond its own part of
the weights, in bytes per weight of the whole model. docs/large-models.md has an estimate from these
numbers.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from distributed import peak
from libraries import transformers
from torch import nn
from torch.multiprocessing import start_processes

import snip
from snip.common.timing import timed

TOKENS = 4, 128
PROCESSES = 2
SPARSITY = 0.9


def network(layers: int, *, checkpointed: bool) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=1024, n_layer=layers, n_head=16, use_cache=False)
    model = transformers.GPT2LMHeadModel(config)
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    return model


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(input_ids=tokens, labels=tokens).loss


def tokens_of(rank: int) -> torch.Tensor:
    return torch.randint(50257, TOKENS, generator=torch.Generator().manual_seed(rank))


def measured(way: str, model: nn.Module, rank: int, total: int) -> None:
    """Print what one pruning, or one pass, takes."""

    def work() -> Any:
        if way == "pass":
            loss_of(model, tokens_of(rank)).backward()
            return None
        return snip.prune(model, tokens_of(rank), sparsity=SPARSITY, loss_fn=loss_of)

    with peak() as extra:
        masks, seconds = timed(work)
    kept = "" if masks is None else f", {masks.kept:,} of {masks.total:,} kept, {masks.digest()}"
    print(
        f"{way}, process {rank}: {seconds:.1f} s, {extra[0] / total:.2f} bytes per weight beyond "
        f"the weights ({extra[0] / 2**30:.2f} GiB){kept}",
        flush=True,
    )


def in_a_process(rank: int, address: str, layers: int) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=PROCESSES)
    model = network(layers, checkpointed=True)
    total = sum(p.numel() for p in model.parameters())
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    measured("sharded", model, rank, total)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=["whole", "checkpointed", "sharded", "pass"])
    parser.add_argument("--layers", type=int, default=24)
    asked = parser.parse_args()
    way = asked.way
    if way == "sharded":
        with tempfile.TemporaryDirectory() as folder:
            given = (f"file://{folder}/meeting", asked.layers)
            # Unlike spawned processes, these skip Python's shutdown, which a gloo thread can abort.
            start_processes(in_a_process, given, nprocs=PROCESSES, start_method="forkserver")
        return
    model = network(asked.layers, checkpointed=way == "checkpointed")
    measured(way, model, 0, sum(p.numel() for p in model.parameters()))


if __name__ == "__main__":
    main()
