"""An accelerated network: the user's own class, whose forward runs the converted graph's code."""

from __future__ import annotations

import copy
import functools
import importlib
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from snip.common.errors import InputError
from snip.engine.fused.stages import straight_stages
from snip.engine.fused.straight import Straight
from snip.engine.layers.packing import PackedModule
from snip.engine.recording import RECORDED, is_followed, refuse_recording
from snip.network.parameters import Accelerated


class Conversion:
    """All that an accelerated network keeps of its conversion.

    It keeps the converted graph as generated source and compiles that: an `fx.GraphModule` would
    trace itself anew when it is unpickled, and forget attributes when it is copied.
    """

    def __init__(
        self,
        root: nn.Module,
        graph: fx.Graph | None = None,
        inputs: Sequence[torch.Tensor] = (),
        constants: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.constants = types.SimpleNamespace(**(constants or {}))  # the source reads them here
        # Of each tensor that the network was traced for: the name of forward's argument, its rank,
        # and whether it has as many samples as the first.
        self.inputs: list[tuple[str, int, bool]] = []
        self.source, self.names = "", dict[str, Any]()  # what the source refers to
        self.straight: Straight | None = None  # if the network can run as one native call
        self.packed = [m for m in root.modules() if isinstance(m, PackedModule)]
        if graph is not None:
            code = graph.python_code("self")
            self.source, self.names = code.src, dict(code.globals)
            names = [str(node.target) for node in graph.nodes if node.op == "placeholder"]
            for name, x in zip(names, inputs, strict=True):
                self.inputs.append((name, x.ndim, len(x) == len(inputs[0])))
            stages = straight_stages(graph, root) if len(inputs) == 1 else None
            self.straight = None if stages is None else Straight(stages, inputs[0].ndim)
        self._compile()

    def forward(self, network: Any, kind: Any, args: Any, kwargs: Any) -> Any:
        """What a network of the user's class `kind` computes."""
        for layer in self.packed:
            if layer.lent:  # asked here, as a call for each layer would cost more
                layer.take_back()
        # First what is quick to ask: in a small network, this is part of what a step costs.
        if self.straight is not None and len(args) + len(kwargs) == 1 and not is_followed():
            x = args[0] if args else kwargs.get(self.inputs[0][0])
            made = self.straight.forward(network, x)
            if made is not None:
                return made
        refuse_recording((*args, *kwargs.values()))
        inputs = self._inputs(args, kwargs)
        if self.run is None or inputs is None:
            return kind.forward(network, *args, **kwargs)
        return self.run(network, *inputs)

    def _inputs(self, args: Any, kwargs: Any) -> list[torch.Tensor] | None:
        """The tensors that the graph was made for, in its order; None of any other call.

        Every other argument became part of the graph, at its default: a call that gives one goes
        through the user's own forward. So do tensors that are broadcast along the batch.
        """
        if len(args) + len(kwargs) != len(self.inputs):
            return None
        given = [*args, *(kwargs.get(name) for name, _, _ in self.inputs[len(args) :])]
        for x, (_, rank, together) in zip(given, self.inputs, strict=True):
            if not isinstance(x, torch.Tensor) or x.ndim != rank or not x.shape[0]:
                return None
            if together and x.shape[0] != given[0].shape[0]:
                return None
        return given

    def _compile(self) -> None:
        names = dict(self.names)
        exec(compile(self.source, "<snip.accelerate>", "exec"), names)
        self.run = names.get("forward")  # of an empty source: None

    def __getstate__(self) -> dict[str, Any]:
        names = {
            name: _Module(value.__name__) if isinstance(value, types.ModuleType) else value
            for name, value in self.names.items()
        }
        return {**vars(self), "names": names, "run": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.names = {
            name: importlib.import_module(value) if isinstance(value, _Module) else value
            for name, value in self.names.items()
        }
        self._compile()


class _Module(str):
    """A Python module in a pickle: its name."""

    __slots__ = ()


class AcceleratedNetwork(Accelerated):
    """What the class of an accelerated network has beside the user's class."""

    snip_conversion: Conversion

    def __init_subclass__(cls, **_settings: Any) -> None:
        """The user's own `__init_subclass__` is not called: it is for classes that users write."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """An ordinary module: `type(network)(...)` is how nn.Sequential makes a slice."""
        return user_class(cls)(*args, **kwargs)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        # This class cannot be imported, so copies and pickles name the user's class instead.
        get = getattr(type(self), "__getstate__", vars)
        return _empty_network, (user_class(type(self)),), get(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # Not a `__deepcopy__` of the user's: its constructor would know nothing of sparse layers.
        make, (kind,), state = self.__reduce_ex__(4)
        twin = memo[id(self)] = make(kind)
        twin.__setstate__(copy.deepcopy(state, memo))
        return twin

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module) or name in vars(self).get("_modules", {}):
            self._refuse_change(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in vars(self)["_modules"]:
            self._refuse_change(name)
        super().__delattr__(name)

    def add_module(self, name: str, _module: Any) -> None:
        """Refused: `nn.Sequential.append` comes here too."""
        self._refuse_change(name)

    def _refuse_change(self, name: str) -> None:
        raise InputError(
            f"{name!r} of an accelerated network cannot be changed: its converted forward would "
            "not notice. Change snip.densify(network), and accelerate that."
        )

    def __prepare_scriptable__(self) -> Any:
        raise InputError(RECORDED)  # what torch.jit.script asks first

    def _get_name(self) -> str:
        return f"Accelerated{type(self).__name__}"  # for print(network)


def accelerated(root: nn.Module, conversion: Conversion) -> nn.Module:
    """Make an accelerated network of `root`, whose layers are sparse already."""
    root.__class__ = _accelerated_class(type(root))
    vars(root)["snip_conversion"] = conversion  # past a `__setattr__` of the user's
    return root


def not_accelerated(network: nn.Module) -> nn.Module:
    """Make `network` an object of the user's class again."""
    network.__class__ = user_class(type(network))
    del vars(network)["snip_conversion"]
    return network


def user_class(made: type) -> Any:
    """The user's class that the class of an accelerated network was made from."""
    return made.__bases__[1]


def _accelerated_class(kind: Any) -> Any:
    """A class of the same name below the user's: made once, as long as anything uses it."""
    for made in type.__subclasses__(kind):
        if made.__bases__[0] is AcceleratedNetwork:
            return made

    @functools.wraps(kind.forward)
    def forward(self: AcceleratedNetwork, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            # Imported here because it takes torch more than a second to load its compiler.
            from snip.engine.uncompiled import run_uncompiled

            return run_uncompiled(self.snip_conversion.forward, self, kind, args, kwargs)
        return self.snip_conversion.forward(self, kind, args, kwargs)

    # Its names are the user's class's: libraries write them into files, and look up their source.
    copied = ("__module__", "__qualname__", "__doc__")
    names = {"forward": forward, **{name: getattr(kind, name) for name in copied}}
    bases = (AcceleratedNetwork, kind)
    return types.new_class(kind.__name__, bases, exec_body=lambda body: body.update(names))


def _empty_network(kind: Any) -> Any:
    """An accelerated network that a copy or a pickle has yet to fill."""
    return object.__new__(_accelerated_class(kind))
