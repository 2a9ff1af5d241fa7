"""The steps of SGD and Adam on all parameters of an optimiser."""

from typing import Any

from snip.engine.kernels.library import kernel
from snip.engine.kernels.structs import AdamParameterStruct, ParameterStruct

__all__ = ["AdamParameterStruct", "ParameterStruct", "native_update"]


def native_update(name: str, parameters: Any, gradients: int) -> None:
    """One step of the kernel `name`, with gradients at their offsets from an address."""
    kernel(name)(parameters, len(parameters), gradients)
