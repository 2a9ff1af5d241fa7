"""How the loss calls the model, for methods that score without the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError
from snip.distributed.models import inner
from snip.distributed.steps import no_batches
from snip.distributed.wrappers import unwrap
from snip.network.calls import Call, call, copied
from snip.network.untouched import undisturbed
from snip.scoring.batches import LossFn, as_batches, checked_loss_fn, is_pair_of_tensors


class _Called(BaseException):
    """Ends a forward before it begins; no `except Exception` of a user's loss catches it."""


def first_call(model: nn.Module, batches: Any, loss_fn: LossFn | None) -> Call:
    """What the model is called with on the first batch; its forward is not run."""
    model = unwrap(model)
    calls: list[Call] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(Call(args, kwargs))
        raise _Called

    # First, because another hook may compute something.
    handle = model.register_forward_pre_hook(note, with_kwargs=True, prepend=True)
    try:
        look(model, batches, loss_fn)
    except _Called:
        return calls[0]
    finally:
        handle.remove()
    raise InputError("loss_fn does not call the model: it must use the model it is given.")


def look(model: nn.Module, batches: Any, loss_fn: LossFn | None) -> None:
    """Call the model on the first batch in eval mode, for hooks; the model is left as found.

    A batch without targets will do, unless there is a loss that wants them.
    """
    if loss_fn is not None:
        checked_loss_fn(loss_fn)
    for batch in map(copied, as_batches(batches)):
        # Inference mode is left, because in it a view does not know its parameter.
        own = inner(model)
        with undisturbed(own), torch.inference_mode(False), torch.no_grad():
            own.eval()
            if loss_fn is not None:
                loss_fn(own, batch)
            else:
                call(own, batch[0] if is_pair_of_tensors(batch) else batch)
        return
    raise no_batches()
