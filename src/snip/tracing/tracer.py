"""The torch.fx tracer of one call, which leaves nothing on the model that it traces."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

Leaf = Callable[[nn.Module], bool]


class _CarefulProxy(fx.Proxy):
    """Writes `a += b` down as what it is; torch.fx makes `a = a + b` of it."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.iadd, other)

    def __isub__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.isub, other)

    def __imul__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.imul, other)

    def __itruediv__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.itruediv, other)

    def _in_place(self, sign: Callable[[Any, Any], Any], other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", sign, (self, other), {})


class CarefulTracer(fx.Tracer):
    """Traces one call: the tensors given become placeholders, all else is part of the graph.

    Arguments that are not tensors, or that were not given, are what they are in this call, so
    that a forward may ask `if mask is None`. Switches of the gradient mode, which no graph
    contains, are noticed. Tensors that the forward makes itself are `constants` of the graph.
    With `buffers`, what the forward computes from buffers is part of the graph as well, so that
    it follows them when they change; otherwise it is computed once, as a constant.
    Layers of torch, and those of which `leaf` is true, are one node each.
    """

    def __init__(self, bound: inspect.BoundArguments, *, buffers: bool, leaf: Leaf) -> None:
        super().__init__()
        self._leaf = leaf
        self.proxy_buffer_attributes = buffers
        self.bound, self.given = bound, tuple(bound.arguments)
        self.constants: dict[str, torch.Tensor] = {}
        self.values: list[Any] = []
        self.switches, self._modes = False, _modes()
        bound.apply_defaults()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a call of the module is one node, not those of its own forward."""
        return self._leaf(m) or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """The forward with a placeholder for each tensor of the call."""
        call = self.bound
        for name in self.given:
            value, kind = call.arguments[name], call.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                made: Any = tuple(self._placeholder(f"{name}_{i}", v) for i, v in enumerate(value))
            elif kind is inspect.Parameter.VAR_KEYWORD:
                made = {key: self._placeholder(key, v) for key, v in value.items()}
            else:
                made = self._placeholder(name, value)
            call.arguments[name] = made
        # Not a partial: torch.fx of torch 2.9 reads its __annotations__.
        return lambda: root_fn(self.root, *call.args, **call.kwargs), []

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Make proxies that notice what is written in place."""
        return _CarefulProxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Notice whether a mode has changed since the start."""
        self.switches |= _modes() != self._modes
        return super().create_node(*args, **kwargs)

    def create_arg(self, a: Any) -> Any:
        """Keep a tensor that is no attribute of the model here; torch.fx would make it one."""
        if isinstance(a, torch.Tensor) and not isinstance(a, torch.nn.Parameter):
            is_buffer = any(a is buffer for buffer in self.root.buffers())
            if not is_buffer and a not in self.tensor_attrs:
                name = f"snip_constant_{len(self.constants)}"
                self.constants[name] = a
                self.tensor_attrs[a] = name
        return super().create_arg(a)

    def _placeholder(self, name: str, value: Any) -> Any:
        if not isinstance(value, (torch.Tensor, tuple, list, dict)):
            return value
        self.values.append(value)
        return self.create_proxy("placeholder", name, (), {})


def _modes() -> tuple[bool, bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled()
