"""An accelerator that exists only in PyTorch's eyes, for tests on machines without one.

Its tensors are ordinary tensors and parameters on a device that is not the CPU: views, `.data`,
autograd, hooks, state_dict, pickles, autocast and optimisers take the paths that they take on CUDA.
Their storages carry the device's name and lie in host memory. Kernels in Python run each operation
on the CPU; they refuse tensors of two devices in one operation, as hardware does, and note what is
copied from the device to the host.

To register a device changes the process: torch.accelerator is available from then on, and foreach
and fused optimisers count it among their devices. Tests therefore run in a process of their own.

Not emulated, because Python cannot register them: `torch.Generator(device="emulated")`, streams
and events. Nor are sparse tensors, which have dispatch keys of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import backend_registration

NAME = "emulated"
POSSIBLE = torch.__version__ >= (2, 13)  # with the functions of torch._C that are called here
IMPOSSIBLE = f"torch {torch.__version__} cannot emulate a device in Python; torch 2.13 can."

aten = torch.ops.aten
CPU = torch.device("cpu")
CPU_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
GENERATOR = torch.Generator()  # the device's own: it draws other numbers than the host's
Copy = tuple[int, torch.dtype]  # how many elements, and of which type
_copied_to_host: list[Copy] = []
_libraries: list[torch.library.Library] = []  # kernels are gone with their library


@contextmanager
def copies_to_host() -> Iterator[list[Copy]]:
    """Note every copy from the device to the host inside the block."""
    _copied_to_host.clear()
    yield _copied_to_host


def register() -> None:
    """Make the device known to this process, for good."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    torch.UntypedStorage.__new__ = _new_storage  # Python cannot register an allocator
    anything = torch.library.Library("_", "IMPL")
    anything.fallback(_run_on_cpu, "PrivateUse1")
    anything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    some = torch.library.Library("aten", "IMPL")
    for op, kernel in SPECIAL.items():
        some.impl(op, kernel, "PrivateUse1")
    for op in (aten.linear.default, aten.conv2d.default, aten.matmul.default):
        some.impl(op, _in_lower_precision(op), "AutocastPrivateUse1")
    # PyTorch computes a cell of a recurrent layer as one operation on every accelerator.
    some.impl(aten._thnn_fused_lstm_cell.default, _lstm_cell, "AutogradPrivateUse1")
    some.impl(aten._thnn_fused_gru_cell.default, _gru_cell, "AutogradPrivateUse1")
    _libraries.extend([anything, some])


@contextmanager
def parameters_kept() -> Iterator[None]:
    """Let a module that moves keep its parameters, as on CUDA; here PyTorch gives it new ones.

    Not by default: a parameter from which something was computed cannot be swapped.
    """
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


class _Module:
    """What PyTorch looks for under `torch.emulated`."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def device(self, index: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        GENERATOR.manual_seed(seed)

    def get_rng_state(self, device: Any = NAME) -> torch.Tensor:
        return GENERATOR.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = NAME) -> None:
        GENERATOR.set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


def _run_on_cpu(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on the CPU, on views of the same memory; what it makes is on the device."""
    if _only_describes(op):
        return op.redispatch(CPU_KERNELS, *args, **kwargs)
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"Expected a generator on {NAME} for {op}, but found one on the CPU.")
    draws = torch.Tag.nondeterministic_seeded in op.tags
    with torch._C.DisableTorchFunction(), _device_draws() if draws else nullcontext():
        call = _Call(op)
        args = call.to_cpu(call.with_tensors(args))
        return call.to_device(op(*args, **call.to_cpu(kwargs)))


def _only_describes(op: Any) -> bool:
    """Whether it computes nothing: views and `set_`, whose CPU kernels take any device."""
    alias = op._schema.returns[0].alias_info if op._schema.returns else None
    return op.overloadpacket is aten.set_ or (alias is not None and not alias.is_write)


@contextmanager
def _device_draws() -> Iterator[None]:
    """Draw from the device's generator, which the CPU's kernels know nothing of."""
    of_host = torch.get_rng_state()
    torch.set_rng_state(GENERATOR.get_state())
    try:
        yield
    finally:
        GENERATOR.set_state(torch.get_rng_state())
        torch.set_rng_state(of_host)


class _Call:
    """One operation, and its tensors on the device by the id of their views on the CPU."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def with_tensors(self, args: Any) -> Any:
        """The arguments, with tensors again for the numbers that the dispatcher made of them."""
        if torch._C._should_allow_numbers_as_tensors(self.op._schema.name.removeprefix("aten::")):
            return args
        wanted = [str(argument.type) == "Tensor" for argument in self.op._schema.arguments]
        return tuple(
            torch.tensor(value, device=CPU) if tensor and isinstance(value, (int, float)) else value
            for value, tensor in zip(args, wanted, strict=False)
        )

    def to_cpu(self, value: Any) -> Any:
        """The same arguments on the CPU."""
        if isinstance(value, torch.Tensor):
            return self._tensor_to_cpu(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.to_cpu, value))
        if isinstance(value, dict):
            return {name: self.to_cpu(part) for name, part in value.items()}
        return CPU if isinstance(value, torch.device) else value

    def _tensor_to_cpu(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == NAME:
            view = host_view(tensor)
            self.tensors[id(view)] = tensor, view
            return view
        # As on CUDA, a single number on the host may take part in arithmetic.
        if tensor.ndim == 0 and torch.Tag.pointwise in self.op.tags:
            return tensor
        raise RuntimeError(
            f"Expected all tensors to be on the same device: {self.op} was given one of shape "
            f"{tuple(tensor.shape)} on {tensor.device} beside others on {NAME}."
        )

    def to_device(self, value: Any) -> Any:
        """The results: tensors that were written in place, or new ones on the device."""
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.to_device, value))
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self.tensors:
            return _in_memory_of(value, torch._C._acc.create_empty_tensor([0], value.dtype))
        tensor, view = self.tensors[id(value)]
        return tensor if tensor.shape == view.shape else _in_memory_of(view, tensor)


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the CPU in the memory of one on the device, with its shape and strides."""
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return torch.empty(0, dtype=tensor.dtype, device=CPU).set_(
        tensor.untyped_storage().host, *place
    )


def _in_memory_of(host: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, on the device, with the memory, the shape and the strides of one on the CPU."""
    place = host.storage_offset(), host.shape, host.stride()
    memory = _storage(host.untyped_storage())
    return aten.set_.source_Storage_storage_offset.redispatch(CPU_KERNELS, tensor, memory, *place)


def _storage(host: torch.UntypedStorage) -> torch.UntypedStorage:
    """A storage of the device over host memory, which it keeps for as long as it lives."""
    place = host.data_ptr(), torch.device(NAME, 0), host.nbytes()
    found = torch._C._construct_storage_from_data_pointer(*place)
    found.host = host
    return found


def _new_storage(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """`torch.UntypedStorage(bytes, device=...)`, which deepcopy and torch.load call."""
    if device is not None and torch.device(device).type == NAME:
        return _storage(torch.UntypedStorage(*args))
    given = {} if device is None else {"device": device}
    return torch._C.StorageBase.__new__(cls, *args, **given, **kwargs)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> Any:
    """Copy between devices or on this one: the only operation that takes tensors of two."""
    if target.device.type != NAME:
        _copied_to_host.append((source.numel(), source.dtype))
    with torch._C.DisableTorchFunction():
        source, into = (host_view(t) if t.device.type == NAME else t for t in (source, target))
        into.copy_(source)
    return target


def _local_scalar_dense(tensor: torch.Tensor) -> Any:
    """`tensor.item()`: a copy of one element."""
    _copied_to_host.append((1, tensor.dtype))
    return aten._local_scalar_dense(host_view(tensor))


def _resize_(tensor: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
    """Memory cannot grow where it is: what grows gets new memory."""
    grown = torch.empty(size, dtype=tensor.dtype, device=CPU)
    if grown.nbytes > tensor.untyped_storage().nbytes():
        return _in_memory_of(grown, tensor)
    return aten.resize_.default.redispatch(CPU_KERNELS, tensor, size, memory_format=memory_format)


def _on_cpu(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: _run_on_cpu(op, *args, **kwargs)


# Operations that do not reach the fallback, or that it cannot do.
SPECIAL: dict[Any, Callable[..., Any]] = {
    # PyTorch's own kernels of these look for a library by the name of the device.
    aten.convolution.default: _on_cpu(aten.convolution.default),
    aten.convolution_backward.default: _on_cpu(aten.convolution_backward.default),
    aten._copy_from.default: _copy_from,
    aten._local_scalar_dense.default: _local_scalar_dense,
    aten.resize_.default: _resize_,
}


def _in_lower_precision(op: Any) -> Callable[..., Any]:
    """What autocast makes of an operation."""
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def kernel(*args: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            lower = torch.get_autocast_dtype(NAME)
            return op(*(x.to(lower) if isinstance(x, torch.Tensor) else x for x in args))

    return kernel


def _lstm_cell(inputs: Any, hidden: Any, state: Any, *biases: Any) -> tuple[torch.Tensor, ...]:
    i, f, g, o = sum((b for b in biases if b is not None), inputs + hidden).chunk(4, 1)
    cell = f.sigmoid() * state + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell, inputs  # the last is for a backward pass of its own


def _gru_cell(inputs: Any, hidden: Any, state: Any, *biases: Any) -> tuple[torch.Tensor, ...]:
    parts = zip((inputs, hidden), biases or (None, None), strict=True)
    (r, z, n), (hr, hz, hn) = ((x if b is None else x + b).chunk(3, 1) for x, b in parts)
    new = (n + (r + hr).sigmoid() * hn).tanh()
    return new + (z + hz).sigmoid() * (state - new), inputs
