"""Ordinary training loops on straight networks, and what their gradients and steps must equal."""

import torch
import torch.nn.functional as F
from step_parts import mlp, on_graph, pair_of_networks
from torch import nn

NODE = "_NetworkBackward"


def is_one_node(outputs: torch.Tensor) -> bool:
    """Whether one function leads from the parameters to the outputs."""
    above = [node.name() for node, _ in outputs.grad_fn.next_functions if node is not None]
    return outputs.grad_fn.name() == NODE and set(above) == {"torch::autograd::AccumulateGrad"}


def gradients(network: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor | None]:
    network.zero_grad()
    loss.backward()
    return {name: p.grad for name, p in network.named_parameters()}


def assert_close(found, expected, tolerance: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance, msg=name)


KINDS = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}),
    (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "foreach": True}),
    (torch.optim.Adam, {"lr": 0.01}),
    (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "betas": (0.7, 0.9), "eps": 1e-5}),
    (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
]


def backward(call, optimizer, batch) -> None:
    optimizer.zero_grad()
    F.cross_entropy(call(batch[0]), batch[1]).backward()


class Pair:
    """A network trained in an ordinary loop, and its twin, which torch alone trains."""

    def __init__(self, kind, settings, make=mlp) -> None:
        self.fast, self.other, self.batch = pair_of_networks(make)
        self.mine = kind(self.fast.parameters(), **settings)
        self.theirs = kind(self.other.parameters(), **settings)

    def backward(self) -> None:
        backward(self.fast, self.mine, self.batch)
        backward(lambda images: on_graph(self.other, images), self.theirs, self.batch)

    def step(self) -> None:
        self.backward()
        self.mine.step()
        self.theirs.step()
