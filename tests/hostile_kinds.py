"""The kinds of files that are attacked: how a real one is made, read and given other fields."""

from __future__ import annotations

import copy
import gzip
import hashlib
import json
import pickle
import random
import struct
import tempfile
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from networks import make
from safetensors.torch import load_file, save_file

import snip
from snip.cli.reading import Weights, read
from snip.common.errors import InputError, SnipWarning
from snip.data import DATASETS
from snip.data.cifar import python_layout
from snip.data.idx import read_idx
from snip.export import compact
from snip.export.shrink import shrink
from snip.masks.masks import checksum as masks_checksum
from snip.runs import RunConfig, RunResult, run
from snip.runs.folder import read_config
from snip.runs.sums import changes
from snip.training import Metrics, TrainConfig
from snip.training.checkpoint import load_checkpoint, restore, save_checkpoint
from snip.training.start import read_choice
from snip.training.state import State, snapshot

NOTHING = object()  # stands for a field that is taken away
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 2, 2**31, 2**40, 2**63, 10**400, 0.5, -1e308, float("inf"), float("nan"), "",
    "float64", "\x1b]0;owned\x07", "\ud800", [], {}, [[0]], [2**20, 2**20], [0] * 4096,
    {"": {}}, {"a": 1}, NOTHING,
)  # fmt: skip
# Long and wide ones, which take time or fill a message if nobody counts them first. They take time
# to write as well, so that only random attacks try them.
WIDE = ("long " * 200_000, [2**62] * 20_000, [[]] * 100_000, {str(n): n for n in range(20_000)})


def shared(make: Callable[[list[Any]], Any]) -> Any:
    """A few containers that hold one another: a pickle of kilobytes, and values without end."""
    value = make([1])
    for _ in range(17):
        value = make([value] * 10)
    return value


# What a pickle can hold and JSON cannot.
HOSTILE_SHARED = (shared(list), shared(tuple), shared(lambda parts: dict(enumerate(parts))))
# A checkpoint may hold tensors too: of other sizes and kinds, and larger than what it holds.
HOSTILE_TENSORS = (
    torch.zeros(()), torch.zeros(3), torch.zeros(3, dtype=torch.int64), torch.zeros(1, 0),
    torch.zeros(1).expand(2**40), torch.zeros(4, 4).to_sparse(), torch.zeros(2, device="meta"),
    torch.zeros(2, dtype=torch.complex64), float("nan") * torch.ones(2),
)  # fmt: skip


class Kind(NamedTuple):
    """A kind of file: how a real one is made, read and given other fields."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    trees: Callable[[Path], dict[str, Any]]  # what can be altered in it, by name
    write: Callable[[Path, str, Any], None]  # one of these trees, with checksums that agree
    summed: bool = True  # whether every damaged byte must be noticed
    hostile: tuple[Any, ...] = HOSTILE


def digest(value: Any) -> str:
    """The same for the same values, to the last bit."""
    if isinstance(value, torch.Tensor):
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        value = f"{value.dtype}{tuple(value.shape)}{hashlib.sha256(raw).hexdigest()}"
    if isinstance(value, dict):
        value = sorted((str(key), digest(part)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        value = [part if isinstance(part, str) else digest(part) for part in value]
    return hashlib.sha256(repr(value).encode()).hexdigest()


# Safetensors: masks, compact models, weights.


def header_of(path: Path) -> dict[str, str]:
    """The strings in the header of a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]).get("__metadata__", {})


def header_trees(path: Path) -> dict[str, Any]:
    return {
        name: json.loads(text)
        for name, text in header_of(path).items()
        if name not in ("format", "checksum")
    }


def write_header(path: Path, name: str, tree: Any, sum_up: Callable[..., str]) -> None:
    tensors = load_file(path)
    header = {**header_of(path), name: json.dumps(tree)}
    del header["checksum"]
    save_file(tensors, path, metadata={**header, "checksum": sum_up(header, tensors)})


@cache
def pruned(kind: str) -> torch.nn.Module:
    """A pruned network, and for "small" a shrunk one."""
    torch.manual_seed(0)
    model, batch = make("mlp" if kind == "small" else kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnipWarning)
        snip.prune(model, batch, sparsity=0.8)
    return shrink(model, batch) if kind == "small" else model


def compact_kind(name: str) -> Kind:
    def make_it(folder: Path) -> Path:
        compact.save(pruned(name), folder / "model")
        return folder / "model"

    def read_it(path: Path) -> Any:
        model = compact.load(path, make("mlp" if name == "small" else name)[0])
        masks = snip.held_masks(model)
        return dict(model.state_dict()), dict(masks or {}), masks and masks.provenance.to_dict()

    def write_it(path: Path, part: str, tree: Any) -> None:
        write_header(path, part, tree, compact.checksum)

    return Kind(make_it, read_it, header_trees, write_it)


def make_masks(folder: Path) -> Path:
    masks = snip.held_masks(pruned("mlp"))
    assert masks is not None
    masks.save(folder / "masks.safetensors")
    return folder / "masks.safetensors"


def read_masks(path: Path) -> Any:
    masks = snip.Masks.load(path)
    return list(masks), dict(masks), masks.provenance.to_dict()


def write_masks(path: Path, part: str, tree: Any) -> None:
    def sum_up(header: dict[str, str], tensors: dict[str, torch.Tensor]) -> str:
        return masks_checksum(snip.Masks({name: tensors[name] for name in order}), header)

    order = json.loads(header_of(path)["order"])
    write_header(path, part, tree, sum_up)


# The files of a run.


@cache
def finished_run() -> dict[str, bytes]:
    """The files of a small finished run."""
    training = TrainConfig(iterations=4, lr_drops=(), batch_size=20, eval_every=2)
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig("lenet-300-100", 0.99, train=training, engine="sparse")
        run(config, folder=folder, progress=False)
        return {path.name: path.read_bytes() for path in Path(folder).glob("[!.]*")}


def run_file(name: str, read_it: Callable[[Path], Any], *, summed: bool = True) -> Kind:
    """A JSON file of a run; a sum of it is renewed together with its fields."""

    def make_it(folder: Path) -> Path:
        for other, content in finished_run().items():
            (folder / other).write_bytes(content)
        return folder / name

    def trees(path: Path) -> dict[str, Any]:
        text = path.read_text()
        return (
            {"file": [json.loads(line) for line in text.splitlines()]}
            if lines
            else {"file": json.loads(text)}
        )

    def write_it(path: Path, part: str, tree: Any) -> None:
        text = "\n".join(map(json.dumps, tree)) + "\n" if lines and isinstance(tree, list) else ""
        path.write_text(text or json.dumps(tree) + "\n")
        sums = path.parent / "sums.json"
        content = json.loads(finished_run()["sums.json"])
        if path != sums:
            content["sha256"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
            sums.write_text(json.dumps(content))

    lines = name.endswith(".jsonl")
    return Kind(make_it, read_it, trees, write_it, summed)


def read_weights(path: Path) -> Any:
    found = read(path)
    return found.state if isinstance(found, Weights) else dict(found)


def history(path: Path) -> Any:
    return [line.to_dict() for line in RunResult.read(path.parent).history()]


# Checkpoints and data.

IDENTITY = {**TrainConfig(iterations=4, lr_drops=()).to_dict(), "masks": None}


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.1),
}


def training_parts(kind: str) -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """A network with one step behind it, its optimiser, and a function that takes a step."""
    torch.manual_seed(0)
    model, (inputs, _) = make("conv")
    optimizer = OPTIMIZERS[kind](model.parameters())

    def step() -> None:
        model(inputs).sum().backward()
        optimizer.step()

    step()
    return model, optimizer, step


def make_checkpoint(folder: Path, kind: str = "sgd") -> Path:
    model, optimizer, _ = training_parts(kind)
    line = Metrics(4, 1.0, 0.1, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 0.0, 1.0, 9.0)
    state = State(4, 1.0, 1.0, history=[line], selected=snapshot(model))
    save_checkpoint(
        folder / "checkpoint.pt",
        model=model,
        optimizer=optimizer,
        state=state.to_dict(),
        identity=IDENTITY,
    )
    return folder / "checkpoint.pt"


def read_checkpoint(path: Path, kind: str = "sgd") -> Any:
    """What is restored. One more step must be possible then, and nothing is changed if not."""
    model, optimizer, step = training_parts(kind)
    before = digest([snapshot(model), optimizer.state_dict()])
    try:
        state = restore(
            path,
            model=model,
            optimizer=optimizer,
            identity=IDENTITY,
            validates=True,
            stepped=True,
        )
    except InputError:
        assert digest([snapshot(model), optimizer.state_dict()]) == before
        raise
    found = snapshot(model), copy.deepcopy(optimizer.state_dict()), state.to_dict()
    step()
    return found


def write_checkpoint(path: Path, part: str, tree: Any) -> None:
    torch.save(tree if part == "file" else {**load_checkpoint(path), part: tree}, path)


def checkpoint_kind(name: str, part: str) -> Kind:
    """Checkpoints of an optimiser, altered in one part or in the whole file."""
    return Kind(
        lambda folder: make_checkpoint(folder, name),
        lambda path: read_checkpoint(path, name),
        lambda path: {part: {"file": load_checkpoint(path), **load_checkpoint(path)}[part]},
        write_checkpoint,
        hostile=(*HOSTILE, *HOSTILE_TENSORS, *HOSTILE_SHARED),
    )


class Pickled:
    """A pickle of it asks to call something, as numpy's arrays do."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts


def make_cifar(folder: Path) -> Path:
    place = folder / "cifar-10-batches-py"
    place.mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        write_cifar(place / name, "file", CIFAR)
    return place / "test_batch"


PIXELS = random.Random(0).randbytes(3 * 3072)
CIFAR = {
    "shape": [3, 3072],
    "dtype": "u1",
    "fortran": False,
    "content": PIXELS,
    "labels": [1, 2, 3],
}


def cifar_trees(path: Path) -> dict[str, Any]:
    return {"file": dict(CIFAR)}


def write_cifar(path: Path, part: str, tree: Any) -> None:
    """A pickle as numpy writes it, whatever its fields are."""
    content = tree
    if isinstance(tree, dict):
        shape, dtype, fortran, data, labels = (tree.get(name) for name in CIFAR)
        shape = tuple(shape) if isinstance(shape, list) else shape
        kind = Pickled(np.dtype, (dtype, False, True), (3, "|", None, None, None, -1, -1, 0))
        state = (1, shape, kind, fortran, data)
        array = Pickled(np.zeros(0).__reduce__()[0], (np.ndarray, (0,), b"b"), state)
        content = {"data": array, "labels": labels}
    path.write_bytes(pickle.dumps(content, protocol=4))


def read_cifar(path: Path) -> Any:
    reader = python_layout(path.parent.parent, DATASETS["cifar-10"])
    assert reader is not None
    found = reader().test
    return found.images, found.labels


def make_idx(folder: Path) -> Path:
    pixels = random.Random(0).randbytes(3 * 28 * 28)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">4I", 0x803, 3, 28, 28) + pixels, mtime=0))
    return path


def idx_trees(path: Path) -> dict[str, Any]:
    return {"header": list(struct.unpack(">4I", gzip.decompress(path.read_bytes())[:16]))}


def write_idx(path: Path, part: str, tree: Any) -> None:
    fields = [value for value in tree if isinstance(value, int)] if isinstance(tree, list) else []
    header = b"".join(struct.pack(">I", abs(value) % 2**32) for value in fields)
    path.write_bytes(gzip.compress(header + gzip.decompress(path.read_bytes())[16:], mtime=0))


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
