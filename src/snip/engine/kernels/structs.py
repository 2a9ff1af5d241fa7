"""The structs that Python fills or reads; their fields come from the library (see border.py)."""

import ctypes


class NativeStruct(ctypes.Structure):
    """A struct of native/, by its name there. It can be made once the library is loaded."""

    __slots__ = ()  # so that a misspelt field is an error


class ConvPlanStruct(NativeStruct):
    """struct ConvPlan of conv_plan.hpp."""

    __slots__ = ()


class WindowStruct(NativeStruct):
    """struct Window of pool.hpp."""

    __slots__ = ()


class WinogradStruct(NativeStruct):
    """struct Winograd of winograd.hpp."""

    __slots__ = ()


class LayerStruct(NativeStruct):
    """struct Layer of network.hpp."""

    __slots__ = ()


class NetworkStruct(NativeStruct):
    """struct Network of network.hpp."""

    __slots__ = ()


class OutcomeStruct(NativeStruct):
    """struct LossOutcome of loss.hpp."""

    __slots__ = ()


class ParameterStruct(NativeStruct):
    """struct Parameter of update.hpp."""

    __slots__ = ()


class AdamParameterStruct(NativeStruct):
    """struct AdamParameter of update.hpp."""

    __slots__ = ()


STRUCTS: dict[str, type[NativeStruct]] = {
    "ConvPlan": ConvPlanStruct,
    "Window": WindowStruct,
    "Winograd": WinogradStruct,
    "Layer": LayerStruct,
    "Network": NetworkStruct,
    "LossOutcome": OutcomeStruct,
    "Parameter": ParameterStruct,
    "AdamParameter": AdamParameterStruct,
}
