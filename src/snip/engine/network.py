"""An accelerated network: the user's module tree, run by the converted graph's code."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from snip.engine.program import Straight
from snip.engine.straight import straight_stages


class Network(nn.Module):
    """Keeps the names of all modules and parameters; copies and pickles like any module.

    (An `fx.GraphModule` traces itself anew when it is unpickled and forgets attributes when it
    is copied; this keeps the generated source and compiles that.)
    """

    _run: Callable[..., Any]

    def __init__(
        self,
        root: nn.Module,
        graph: fx.Graph | None,
        plain: nn.Module,
        ways: dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        # The user's own attributes too: a forward that could not be traced reads them.
        self.__dict__.update(root.__dict__)
        self.source, self.names = "", dict[str, Any]()
        self.straight: Straight | None = None  # of a network that can run as one native call
        if graph is not None:
            stages = straight_stages(graph, root)
            self.straight = None if stages is None else Straight(stages)
            code = graph.python_code("self")
            self.source, self.names = code.src, dict(code.globals)
        self.ways = ways or {}  # of the layers that do not run sparse
        self.plain = (plain,)  # in a tuple, so that it is no submodule
        self._compile()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the converted graph."""
        if self.straight is not None and not torch.is_grad_enabled() and len(args) == 1:
            made = self.straight.forward(self, args[0])
            if made is not None:
                return made
        return self._run(self, *args, **kwargs)

    def _compile(self) -> None:
        if not self.source:  # not traced: the user's own forward, over sparse layers
            self.__dict__["_run"] = type(self.plain[0]).forward
            return
        names = dict(self.names)
        exec(compile(self.source, "<snip.accelerate>", "exec"), names)
        self.__dict__["_run"] = names["forward"]

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key != "_run"}
        state["names"] = {
            name: _Module(value.__name__) if isinstance(value, types.ModuleType) else value
            for name, value in self.names.items()
        }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.names = {
            name: importlib.import_module(value) if isinstance(value, _Module) else value
            for name, value in self.names.items()
        }
        self._compile()

    def _get_name(self) -> str:
        return f"Accelerated{type(self.plain[0]).__name__}"


class _Module(str):
    """A module in a pickle: its name."""

    __slots__ = ()
