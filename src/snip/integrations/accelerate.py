"""`Snip(accelerator, ...)`, for training loops written with Hugging Face's Accelerate.

pruning = Snip(accelerator, model, sparsity=0.9)     # model: what accelerator.prepare returned
accelerator.load_state(folder)                       # if training resumes
pruning.start(loader, optimizer)                     # prunes, unless masks were loaded
...                                                  # the loop; accelerator.save_state(folder)
pruning.finish()                                     # an ordinary model again
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from torch import nn

from snip.common.errors import InputError, KindError, imported
from snip.integrations.pruning import Pruning, first_of, own_loss
from snip.masks import Masks
from snip.scoring.batches import cross_entropy, is_pair_of_tensors

_library = imported("accelerate", "pruning with Accelerate", "transformers")


class Snip:
    """Prunes a prepared model on the first batch; `save_state` and `load_state` keep the masks.

    The loss is `loss_fn(model, batch)`; without one it is cross-entropy of an (inputs, targets)
    pair, or `model(**batch).loss`. Several processes prune together, each on its own first batch,
    and get the same masks. `accelerate=True` trains with the surviving weights only, where
    this pays; checkpoints, and the model after `finish`, are ordinary ones. The other options are
    those of `snip.prune`.
    """

    def __init__(
        self,
        accelerator: Any,
        model: nn.Module,
        sparsity: float | None = None,
        *,
        accelerate: bool = False,
        **options: Any,
    ) -> None:
        if not isinstance(accelerator, _library.Accelerator) or not isinstance(model, nn.Module):
            raise KindError(
                f"Snip was given a {type(accelerator).__name__} and a {type(model).__name__}: it "
                "takes the accelerator first, then the model that accelerator.prepare returned."
            )
        self._accelerator, self._model = accelerator, accelerator.unwrap_model(model)
        self._pruning = Pruning(sparsity, accelerate, options)
        self._optimizers: tuple[Any, ...] = ()
        accelerator.register_for_checkpointing(self)

    @property
    def masks(self) -> Masks | None:
        """The masks, once they are made or loaded."""
        return self._pruning.given or self._pruning.masks

    def start(self, loader: Iterable[Any], *optimizers: Any) -> Masks:
        """Prune on the loader's first batch, or hold the masks that were loaded; accelerate."""
        self._optimizers = optimizers
        model = self._model
        masks = self._pruning.start(
            model,
            partial(first_of, loader),
            partial(_loss, model),
            self._accelerator.num_processes,
        )
        self._pruning.speed_up(model, optimizers, self._accelerator.num_processes)
        return masks

    def finish(self) -> nn.Module:
        """The ordinary model, which holds its masks; prepared ones of it are ordinary too."""
        self._pruning.finish(self._model, self._optimizers)
        return self._model

    def state_dict(self) -> dict[str, Any]:
        """State for `accelerator.save_state`."""
        return self._pruning.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state from `accelerator.load_state` over."""
        before = self._pruning.masks
        self._pruning.load_state_dict(state)
        if before is not None and self._pruning.given not in (None, before):
            raise InputError(
                "accelerator.load_state came after start(), so that the checkpoint's weights went "
                "through other masks than theirs: call load_state first, then start(...), with a "
                "model that is not pruned yet."
            )


def _loss(model: nn.Module, batch: Any) -> Any:
    return cross_entropy(model, batch) if is_pair_of_tensors(batch) else own_loss(model, batch)
