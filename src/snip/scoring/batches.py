"""The data and the loss that a user may give: one batch or anything that yields batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import length_hint
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from snip.common.errors import InputError, KindError
from snip.distributed.ranks import no_batches
from snip.network.calls import Call, call, copied, device_of, first_tensor
from snip.network.network import Network
from snip.network.untouched import undisturbed

Batch = Any
LossFn = Callable[[nn.Module, Batch], torch.Tensor]


def cross_entropy(model: nn.Module, batch: Batch, temperature: float = 1.0) -> torch.Tensor:
    """The default loss: cross-entropy of an (inputs, targets) batch, of logits / temperature."""
    if not is_pair_of_tensors(batch):
        raise KindError(
            f"the default loss takes an (inputs, targets) pair of tensors, not {describe(batch)}: "
            "pass loss_fn=lambda model, batch: ... for any other kind of batch."
        )
    inputs, targets = batch
    try:
        outputs = model(inputs)
    except RuntimeError as error:
        there = device_of(model)
        if {there} != {p.device for p in model.parameters()} or inputs.device == there:
            raise
        raise InputError(
            f"the batch is on {inputs.device} and the model on {there}: give batches that are "
            "there too, such as (inputs.to(device), targets.to(device))."
        ) from error
    if not isinstance(outputs, torch.Tensor):
        raise KindError(
            f"the model returns {describe(outputs)}, and the default loss takes logits: "
            "pass loss_fn=lambda model, batch: ... that picks them."
        )
    try:
        return F.cross_entropy(outputs / temperature, targets)
    except (RuntimeError, IndexError, ValueError) as error:
        raise InputError(
            f"cross-entropy of {describe(outputs)} and targets {targets.dtype} "
            f"{tuple(targets.shape)} failed: {str(error).rstrip('.')}. Pass class indices from 0 "
            "on as int64 (targets.long()), below the number of outputs, or your own loss_fn."
        ) from error


def checked_loss_fn(loss_fn: LossFn | None) -> LossFn:
    """The loss to score with; a mistake that its call would stumble over is named before."""
    if loss_fn is None:
        return cross_entropy
    if isinstance(loss_fn, nn.Module):
        raise KindError(
            f"loss_fn is a {type(loss_fn).__name__} module, which compares outputs with targets; "
            "write loss_fn=lambda model, batch: criterion(model(batch[0]), batch[1])."
        )
    if getattr(loss_fn, "__module__", None) == F.__name__:
        raise KindError(
            f"loss_fn is torch's {name_of(loss_fn)}, which compares outputs with targets; write "
            f"loss_fn=lambda model, batch: F.{name_of(loss_fn)}(model(batch[0]), batch[1])."
        )
    if not callable(loss_fn):
        raise KindError(f"loss_fn is {loss_fn!r}: give a function of (model, batch).")
    return loss_fn


def name_of(function: Callable[..., object]) -> str:
    """The name of a user's function, for the provenance."""
    return getattr(function, "__qualname__", "custom")


def as_batches(batches: Any) -> Iterable[Batch]:
    """An iterable of batches: a single batch is put into a list, the rest stays as it is."""
    if is_batch(batches):
        return [batches]
    if isinstance(batches, (str, bytes)) or not isinstance(batches, Iterable):
        raise KindError(
            f"batches is {describe(batches)}: pass one batch such as (inputs, targets), "
            "or an iterable of batches such as a DataLoader."
        )
    return batches


def is_batch(value: Any) -> bool:
    """A tensor, a mapping, or a tuple or list with a tensor in it is one batch."""
    if isinstance(value, (torch.Tensor, Mapping)):
        return True
    return isinstance(value, (tuple, list)) and any(isinstance(v, torch.Tensor) for v in value)


def batch_size(batch: Batch, dim: int = 0) -> int:
    """Number of samples: dimension `dim` of the first tensor; 1 if it is a single number."""
    tensor = first_tensor(batch)
    if tensor is None or tensor.ndim == 0:
        return 1
    if tensor.ndim <= dim:
        raise InputError(
            f"batch_dim is {dim}, but the first tensor of a batch has shape {tuple(tensor.shape)}: "
            f"give the dimension that counts samples, from 0 to {tensor.ndim - 1}."
        )
    return tensor.shape[dim]


class Data:
    """The user's batches, counted on their way to the scoring for the provenance."""

    def __init__(self, batches: Any, batch_dim: int) -> None:
        self.batches, self.batch_dim = as_batches(batches), batch_dim
        self.count = self.samples = 0
        self.first: torch.Tensor | None = None

    @property
    def none_given(self) -> bool:
        """True if there are no batches at all, which some methods do without."""
        return isinstance(self.batches, tuple) and not self.batches

    @property
    def can_be_read_again(self) -> bool:
        """True if a second pass sees batches too; a generator is used up by the first.

        They may differ: a DataLoader that shuffles draws them anew at every pass.
        """
        return not isinstance(self.batches, Iterator)

    def keep(self) -> None:
        """Hold on to the batches of a generator, so that they can be read again."""
        if not self.can_be_read_again:
            self.batches = list(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        self.count = self.samples = 0
        for batch in self.batches:
            self.count += 1
            self.samples += batch_size(batch, self.batch_dim)
            self.first = first_tensor(batch) if self.first is None else self.first
            yield batch

    def __length_hint__(self) -> int:
        return length_hint(self.batches)

    def provenance(self) -> dict[str, Any]:
        """Counts of the batches and samples that went by, and the shape of one sample."""
        counts: dict[str, Any] = {"batches": self.count, "samples": self.samples}
        return counts if self.first is None else counts | one_sample(self.first)


def one_sample(inputs: torch.Tensor) -> dict[str, Any]:
    """Shape and dtype of one sample of a batch, for the provenance."""
    dtype = str(inputs.dtype).removeprefix("torch.")
    return {"input_shape": tuple(inputs.shape[1:]), "input_dtype": dtype}


def checked_loss(loss: Any, index: int) -> torch.Tensor:
    """`loss` if it is a finite scalar with a gradient; otherwise the reason why not."""
    if not isinstance(loss, torch.Tensor):
        raise KindError(f"loss_fn returned {describe(loss)}: return a scalar tensor.")
    if loss.numel() != 1:
        raise InputError(
            f"the loss has shape {tuple(loss.shape)}, not a scalar: reduce it, e.g. loss.mean()."
        )
    if loss.is_complex():
        raise InputError("the loss is complex: return a real number, e.g. loss.abs().")
    if not loss.requires_grad:
        raise InputError(
            "the loss needs no gradient: no trainable parameter took part in it. "
            "Look for detach(), no_grad(), inference_mode() or frozen parameters in loss_fn or in "
            "the model's forward."
        )
    if not torch.isfinite(loss).item():
        raise InputError(
            f"the loss is {loss.item()} on batch {index}: check the data for NaN or infinite "
            "values, and the initialisation (snip.initialize(model) redraws it)."
        )
    return loss


def describe(value: Any) -> str:
    """A short name of a value's kind for error messages."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        kinds = ", ".join(type(v).__name__ for v in value[:4])
        return f"a {type(value).__name__} of {len(value)} ({kinds})"
    return f"a {type(value).__name__}"


def is_pair_of_tensors(batch: Batch) -> bool:
    """True if a batch is (inputs, targets), as the default loss takes it."""
    return (
        isinstance(batch, (tuple, list))
        and len(batch) == 2
        and all(isinstance(part, torch.Tensor) for part in batch)
    )


class _Called(BaseException):
    """Ends a forward before it begins; no `except Exception` of a user's loss catches it."""


def first_call(network: Network, batches: Any, loss_fn: LossFn | None) -> Call:
    """The call that the loss makes on the first batch; the forward is not run."""
    calls: list[Call] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(Call(args, kwargs))
        raise _Called

    # First, because another hook may compute something.
    handle = network.module.register_forward_pre_hook(note, with_kwargs=True, prepend=True)
    try:
        look(network, batches, loss_fn)
    except _Called:
        return calls[0]
    finally:
        handle.remove()
    raise InputError("loss_fn does not call the model: it must use the model it is given.")


def look(network: Network, batches: Any, loss_fn: LossFn | None) -> None:
    """Call the model on the first batch in eval mode, for hooks; the model is left as found.

    A batch without targets will do, unless there is a loss that wants them.
    """
    if loss_fn is not None:
        checked_loss_fn(loss_fn)
    for batch in map(copied, as_batches(batches)):
        # Inference mode is left, because in it a view does not know its parameter.
        own = network.called
        with undisturbed(own), torch.inference_mode(False), torch.no_grad():
            own.eval()
            if loss_fn is not None:
                loss_fn(own, batch)
            else:
                call(own, batch[0] if is_pair_of_tensors(batch) else batch)
        return
    raise no_batches()
