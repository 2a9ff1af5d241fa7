"""The rivals of the speed tables: dense torch, SparseProp, ONNX Runtime and OpenVINO.

No rival holds masks on the layers that it runs dense, which spares it that work. To install them:

    pip install -c constraints.txt -e '.[bench]'
    pip install -c constraints.txt --no-build-isolation sparseprop    # compiles C++

SparseProp's setup finds pybind11, which the first command installs, only without build isolation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import snip
from snip.common.timing import best_times

Network = tuple[nn.Module, Tensor]  # with the images in the memory format that it likes
Rival = Callable[[nn.Module, Tensor], Network]
SPARSE_ENOUGH = 0.8  # SparseProp's own rule: a denser layer stays dense


def plain_copy(model: nn.Module) -> nn.Module:
    """An ordinary copy with the masked weights as they are, which nothing holds at zero."""
    plain = copy.deepcopy(model)
    snip.release(plain)
    return plain


def channels_last(model: nn.Module, images: Tensor) -> Network:
    last = plain_copy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return last, images.contiguous(memory_format=torch.channels_last)


class Autocast(nn.Module):
    """A network under bfloat16 autocast, with outputs in float32 for the loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.network(images).float()


def dense_bfloat16(model: nn.Module) -> dict[str, Rival]:
    """Dense torch in bfloat16: by autocast, and for inference with weights in bfloat16."""

    def by_autocast(float32: Rival) -> Rival:
        def rival(model: nn.Module, images: Tensor) -> Network:
            network, images = float32(model, images)
            return Autocast(network), images

        return rival

    def whole(float32: Rival) -> Rival:
        def rival(model: nn.Module, images: Tensor) -> Network:
            network, images = float32(model, images)
            return network.to(torch.bfloat16), images.to(torch.bfloat16)

        return rival

    found: dict[str, Rival] = {}
    for name, float32 in dense_torch(model, compiling=False).items():
        suffix = "" if name == "eager" else f" in {name}"
        found[f"autocast{suffix}"] = by_autocast(float32)
        if not model.training:
            found[f"bfloat16{suffix}"] = whole(float32)
    return found


def compiled(model: nn.Module, images: Tensor) -> Network:
    print(f"  compiling {type(model).__name__} ...", flush=True)
    # Each network stands alone: what an earlier one compiled must not make its sizes dynamic.
    torch.compiler.reset()
    # Weights may be packed ahead only where no training step changes them.
    options = None if model.training else {"freezing": True}
    return torch.compile(plain_copy(model), dynamic=False, options=options), images


def dense_torch(model: nn.Module, *, compiling: bool) -> dict[str, Rival]:
    """Dense torch at its best."""
    found: dict[str, Rival] = {"eager": lambda model, images: (plain_copy(model), images)}
    if any(isinstance(layer, nn.Conv2d) for layer in model.modules()):
        found["channels last"] = channels_last
    if compiling:
        found["compiled"] = compiled
    return found


def sparseprop(model: nn.Module, images: Tensor) -> Network:
    """Each layer as SparseProp's module where that is faster, as its own swapping does."""
    from sparseprop.utils import swap_module

    if any(isinstance(layer, nn.RNNBase) for layer in model.modules()):
        raise NotImplementedError("it has no recurrent layers")
    network, swapped = plain_copy(model), 0
    layers = layer_inputs(network, images)
    for name, inputs in layers.items():
        dense = network.get_submodule(name)
        best = fastest(list(sparseprop_layers(dense)), inputs, training=model.training)
        swap_module(network, name, best)
        swapped += best is not dense
    if not swapped:  # it would be dense torch under another name
        raise NotImplementedError("no layer is faster in its sparse modules")
    print(f"  sparseprop runs {swapped} of {len(layers)} layers sparse, the others dense")
    return network, images


def layer_inputs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """What enters each linear and convolutional layer, by its name."""
    found: dict[str, Tensor] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], __: Tensor) -> None:
            found[name] = inputs[0].detach().clone().requires_grad_(inputs[0].requires_grad)

        return hook

    handles = [
        layer.register_forward_hook(note(name))
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    ]
    model(images)
    for handle in handles:
        handle.remove()
    return found


def sparseprop_layers(layer: nn.Module) -> Iterator[nn.Module]:
    """The dense layer itself, then those of SparseProp's modules that compute the same."""
    from sparseprop.modules import SparseConv2d, SparseLinear

    yield layer
    kept = int(layer.weight.count_nonzero())
    if kept > (1 - SPARSE_ENOUGH) * layer.weight.numel():
        return
    if isinstance(layer, nn.Linear):
        yield SparseLinear.from_dense(layer)
    elif isinstance(layer, nn.Conv2d) and sparseprop_can(layer):
        if kept:  # its backward pass over the batch crashes without weights
            yield OverBatch(SparseConv2d.from_dense(layer, vectorizing_over_on=False))
        if layer.stride == (1, 1):  # with stride 2 it reads and writes past the ends of rows
            yield OverWidth(SparseConv2d.from_dense(layer, vectorizing_over_on=True))


def sparseprop_can(layer: nn.Conv2d) -> bool:
    """It reads one number each for kernel, stride and padding, and knows no other settings."""
    square = all(len(set(pair)) == 1 for pair in (layer.kernel_size, layer.stride, layer.padding))
    usual = layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
    return square and usual and layer.stride[0] in (1, 2) and not isinstance(layer.padding, str)


class OverBatch(nn.Module):
    """SparseProp's convolution over the batch, which is wrong unless that is a multiple of 8."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        missing = -len(images) % 8
        if not missing:
            return self.layer(images)
        # The layer moves the batch to the end, too: padding it there costs no copy of its own.
        padded = F.pad(images.permute(1, 2, 3, 0), (0, missing)).permute(3, 0, 1, 2)
        return self.layer(padded)[: len(images)]


class OverWidth(nn.Module):
    """SparseProp's convolution over the width, which takes every tensor for a contiguous one."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.layer(images.contiguous())
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: gradient.contiguous())
        return outputs


def fastest(layers: list[nn.Module], inputs: Tensor, *, training: bool) -> nn.Module:
    """The layer with the shortest forward (and backward) pass."""
    if len(layers) == 1:
        return layers[0]
    gradient = torch.randn_like(layers[0](inputs))

    def passes(layer: nn.Module) -> None:
        with torch.set_grad_enabled(training):
            outputs = layer(inputs)
        if training:
            outputs.backward(gradient)

    works = {str(i): (lambda layer=layer: passes(layer)) for i, layer in enumerate(layers)}
    times = best_times(works, rounds=1)
    if sum(times.values()) < 0.3:  # seconds: short passes need more of them
        times = best_times(works, rounds=10)
    for layer in layers:
        layer.zero_grad()
    return layers[int(min(times, key=lambda i: times[i]))]


def onnx_runtime(path: Path, images: Tensor) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: images.numpy()}
    return lambda: session.run(None, feed)[0]


def openvino(path: Path, images: Tensor) -> Callable[[], Any]:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",  # not bfloat16 where the processor has it
        "PERFORMANCE_HINT": "LATENCY",
    }
    network = openvino.Core().compile_model(path, "CPU", settings)
    return lambda: network(images.numpy())[0]


RUNTIMES = {"onnxruntime": onnx_runtime, "openvino": openvino}
