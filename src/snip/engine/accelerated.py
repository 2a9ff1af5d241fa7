"""An accelerated network: the user's module tree, run by the converted graph's code."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from snip.engine.fused.program import Straight
from snip.engine.fused.stages import straight_stages
from snip.engine.layers.packing import SPARSE, PackedModule


class Network(nn.Module):
    """Keeps the names of all modules and parameters; copies and pickles like any module.

    (An `fx.GraphModule` traces itself anew when it is unpickled and forgets attributes when it
    is copied; this keeps the generated source and compiles that.)
    """

    _run: Callable[..., Any]
    snip_accelerated = True  # what functions for ordinary models look for

    def __init__(
        self,
        root: nn.Module,
        graph: fx.Graph | None,
        plain: nn.Module,
        rank: int = 0,
    ) -> None:
        super().__init__()
        # The user's own attributes too: a forward that could not be traced reads them.
        self.__dict__.update(root.__dict__)
        self.snip_source, self.snip_names = "", dict[str, Any]()
        self.snip_straight: Straight | None = None  # of a network that can run as one native call
        if graph is not None:
            stages = straight_stages(graph, root)
            self.snip_straight = None if stages is None else Straight(stages, rank)
            code = graph.python_code("self")
            self.snip_source, self.snip_names = code.src, dict(code.globals)
        self.snip_rank = rank  # of the inputs it was traced for
        self.snip_plain = (plain,)  # in a tuple, so that it is no submodule
        self._compile()

    @property
    def snip_ways(self) -> dict[str, str]:
        """How each layer runs that does not run sparse."""
        layers = ((n, m) for n, m in self.named_modules() if isinstance(m, PackedModule))
        return {name: layer.way for name, layer in layers if layer.way != SPARSE}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the converted graph."""
        if self.snip_source and not self._usual(args, kwargs):
            return type(self.snip_plain[0]).forward(self, *args, **kwargs)
        if self.snip_straight is not None and not torch.is_grad_enabled():
            made = self.snip_straight.forward(self, args[0])
            if made is not None:
                return made
        return self._run(self, *args, **kwargs)

    def _usual(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """What the graph was made for; any other call goes through the user's own forward."""
        if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor):
            return False
        return args[0].ndim == self.snip_rank and len(args[0]) > 0

    def __getattr__(self, name: str) -> Any:
        """Methods of the user's class, too: a forward that could not be traced calls them."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            plain = self.__dict__.get("snip_plain")
            found = None if plain is None else getattr(type(plain[0]), name, None)
            if found is None or name.startswith("__"):
                raise
            return found.__get__(self) if hasattr(found, "__get__") else found

    def __iter__(self) -> Any:
        return type(self.snip_plain[0]).__iter__(self)  # type: ignore[attr-defined]

    def _compile(self) -> None:
        if not self.snip_source:  # not traced: the user's own forward, over sparse layers
            self.__dict__["_run"] = type(self.snip_plain[0]).forward
            return
        names = dict(self.snip_names)
        exec(compile(self.snip_source, "<snip.accelerate>", "exec"), names)
        self.__dict__["_run"] = names["forward"]

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key != "_run"}
        state["snip_names"] = {
            name: _Module(value.__name__) if isinstance(value, types.ModuleType) else value
            for name, value in self.snip_names.items()
        }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.snip_names = {
            name: importlib.import_module(value) if isinstance(value, _Module) else value
            for name, value in self.snip_names.items()
        }
        self._compile()

    def _get_name(self) -> str:
        return f"Accelerated{type(self.snip_plain[0]).__name__}"


class _Module(str):
    """A module in a pickle: its name."""

    __slots__ = ()
