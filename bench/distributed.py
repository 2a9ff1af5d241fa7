"""Selecting 5% of many scores: time beside numpy.partition, memory, and what processes send.

python bench/distributed.py [--scores 1000000000]             one process
python bench/distributed.py --equal [--layers 1]               where 80% of the scores are zero
python bench/distributed.py --processes 4 [--scores 10000000]  bytes that each process hands over

Memory is the peak beyond the scores themselves. What numpy does in place is timed too: that gives
the threshold alone, and destroys the scores.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from snip.common.timing import timed
from snip.selection.topk import keep_top

KEPT = 0.05
LAYERS = 10
ZERO = 1.2816  # four of five absolute values of normal numbers are below
MORE = 0.5  # kept where most scores are equal, so that many of those are kept too
FEW = 256  # bytes: what is gathered and is no more is a number of each process


def made(total: int, layers: int = LAYERS, equal: bool = False) -> dict[str, torch.Tensor]:
    """Scores of some layers, drawn in place; with `equal` most of them are zero."""
    generator = torch.Generator().manual_seed(0)
    scores = {}
    for layer in range(layers):
        score = torch.empty(total // layers).normal_(generator=generator).abs_()
        if equal:
            score.sub_(ZERO).clamp_(min=0)
        scores[f"layer{layer}"] = score
    return scores


def resident() -> int:
    """Bytes of memory that this process has now."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


@contextmanager
def peak() -> Iterator[list[int]]:
    """Gives a list of one number: the most memory inside the block beyond that before it."""
    before, found, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            found[0] = max(found[0], resident() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()


@contextmanager
def sent_bytes() -> Iterator[dict[str, int]]:
    """Counts what this process hands to others inside the block: counts, and bits of masks."""
    sent = {"counts": 0, "masks": 0}
    reduce, gather = dist.all_reduce, dist.all_gather

    def counted_reduce(tensor, *args, **settings):
        sent["counts"] += tensor.nbytes
        return reduce(tensor, *args, **settings)

    def counted_gather(found, tensor, *args, **settings):
        sent["counts" if tensor.nbytes <= FEW else "masks"] += tensor.nbytes
        return gather(found, tensor, *args, **settings)

    with (
        mock.patch.object(dist, "all_reduce", counted_reduce),
        mock.patch.object(dist, "all_gather", counted_gather),
        # where torch gathers Python objects
        mock.patch("torch.distributed.distributed_c10d.all_gather", counted_gather),
    ):
        yield sent


def one_process(total: int, layers: int = LAYERS, equal: bool = False) -> None:
    scores = made(total, layers, equal)
    kept = round(total * (MORE if equal else KEPT))
    with peak() as extra:
        masks, ours = timed(lambda: keep_top(scores, kept))
    assert sum(int(mask.count_nonzero()) for mask in masks.values()) == kept
    least = min(float(score[masks[name]].min()) for name, score in scores.items())
    del masks
    flat = torch.cat([scores.pop(name) for name in list(scores)]).numpy()
    with peak() as theirs:
        flags, numpys = timed(lambda: flat >= np.partition(flat, total - kept)[total - kept])
    assert float(flat[flags].min()) == np.float32(least)  # of equal ones numpy keeps all
    del flags
    _, in_place = timed(lambda: flat.partition(total - kept))
    print(
        f"{total:,} scores, tensors: {layers}: ours {ours:.2f} s, {extra[0] / total:.2f} bytes per "
        f"score beyond the scores; numpy.partition and a comparison {numpys:.2f} s "
        f"({numpys / ours:.2f} x ours), {theirs[0] / total:.2f} bytes; "
        f"numpy.partition in place {in_place:.2f} s"
    )


def in_a_process(rank: int, count: int, address: str, sizes: list[int]) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=count)
    mesh = init_device_mesh("cpu", (count,))
    for total in sizes:
        whole = made(total)
        scores = {n: distribute_tensor(score, mesh, [Shard(0)]) for n, score in whole.items()}
        dist.barrier()
        with sent_bytes() as sent:
            masks, seconds = timed(partial(keep_top, scores, round(total * KEPT)))
        alone = keep_top(whole, round(total * KEPT))
        same = all(torch.equal(mask, masks[name]) for name, mask in alone.items())
        if rank == 0:
            print(
                f"{total:,} scores in {count} processes: {seconds:.2f} s, the masks of one "
                f"process: {same}; each hands over {sent['counts']:,} bytes of counts and "
                f"{sent['masks']:,} of masks",
                flush=True,
            )
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scores", type=int, default=10_000_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--layers", type=int, default=LAYERS, help="tensors, in one process")
    parser.add_argument("--equal", action="store_true", help="most scores are zero, half are kept")
    asked = parser.parse_args()
    if asked.processes == 1:
        one_process(asked.scores, asked.layers, asked.equal)
        return
    sizes = [asked.scores // 100, asked.scores // 10, asked.scores]
    with tempfile.TemporaryDirectory() as folder:
        address = f"file://{folder}/meeting"
        given = (asked.processes, address, sizes)
        torch.multiprocessing.spawn(in_a_process, given, nprocs=asked.processes)


if __name__ == "__main__":
    main()
