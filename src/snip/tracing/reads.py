"""Which parameters a forward reads itself, past the layers that they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from snip.network.calls import call, copied, tensors_in
from snip.network.untouched import undisturbed

# Questions whose answer is the same for a sparse layer's weights.
HARMLESS = tuple(
    getattr(torch.Tensor, name).__get__
    for name in ("dtype", "device", "is_cuda", "requires_grad", "grad")
)


def read_past_layers(
    model: nn.Module, layers: Iterable[nn.Module], inputs: Any
) -> set[torch.Tensor]:
    """Parameters of `layers` that the model reads outside of their forward, in either mode.

    Such as a weight that is also multiplied with elsewhere: it must keep its ordinary shape. What a
    layer inside another of the layers has may be read by either.
    """
    watch = _Watch(layers)
    for training in (True, False):
        # A forward may refuse such a batch in train mode; what it has read until then counts.
        with undisturbed(model), watch, torch.no_grad(), suppress(Exception):
            call(model.train(training), copied(inputs))
    return watch.found


class _Watch(TorchFunctionMode):
    """Notes each parameter that meets an operation while its layer is not running."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.found: set[torch.Tensor] = set()
        # The outermost layer counts, which comes first.
        self._owners: dict[torch.Tensor, nn.Module] = {
            p: layer for layer in reversed(list(layers)) for p in layer.parameters()
        }
        self._running: Counter[nn.Module] = Counter()
        self._hooks = ExitStack()

    def __enter__(self) -> Any:
        for layer in set(self._owners.values()):
            before = layer.register_forward_pre_hook(lambda layer, _: self._count(layer, 1))
            after = layer.register_forward_hook(
                lambda layer, *_: self._count(layer, -1), always_call=True
            )
            self._hooks.callback(before.remove)
            self._hooks.callback(after.remove)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        super().__exit__(*error)

    def _count(self, layer: nn.Module, change: int) -> None:
        self._running[layer] += change

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operation as it is, after a look at what it is given."""
        if function not in HARMLESS:
            for tensor in tensors_in((args, kwargs or {})):
                owner = self._owners.get(tensor)
                if owner is not None and not self._running[owner]:
                    self.found.add(tensor)
        return function(*args, **(kwargs or {}))
