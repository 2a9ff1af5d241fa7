"""`Snip(sparsity=...)`, a callback for Lightning's Trainer."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError, imported, nearest, warn
from snip.integrations.pruning import Pruning, first_of
from snip.network.network import prunable_parameters

# The library has two names, and a program uses one of them.
_NAMES = ("lightning.pytorch", "pytorch_lightning")
_library = imported(
    tuple(sorted(_NAMES, key=lambda name: name not in sys.modules)),
    "the callback for Lightning",
    "lightning",
)


class Snip(_library.Callback):  # type: ignore[name-defined]
    """Prunes at the start of `fit`, on the first batch of the training data.

    The loss is what `training_step` returns, or `loss_fn(network, batch)`. `module` names the part
    of the LightningModule that is pruned: without it, the one child that has all prunable layers,
    or the whole. `accelerate=True` trains that part with its surviving weights only, where this
    pays; checkpoints, and the model after `fit`, are ordinary ones. The other options are those of
    `snip.prune`. A checkpoint has the masks: resumed from it, the model is not pruned again, and
    neither is one that holds masks already.
    """

    def __init__(
        self,
        sparsity: float | None = None,
        *,
        module: str | None = None,
        accelerate: bool = False,
        **options: Any,
    ) -> None:
        self._pruning = Pruning(sparsity, accelerate, options)
        self._module = module
        self._network: nn.Module | None = None  # what is pruned, while `fit` is at work

    @property
    def masks(self) -> Any:
        """The masks, once `fit` has begun."""
        return self._pruning.masks

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Prune, or hold the masks of the checkpoint. The optimisers exist, and stay."""
        if "loss_fn" not in self._pruning.options and not pl_module.automatic_optimization:
            raise InputError(
                f"{type(pl_module).__name__} optimises by hand, so that its training_step returns "
                "no loss: give Snip(..., loss_fn=lambda network, batch: ...)."
            )
        self._network = self._chosen(pl_module)
        # The trainer would do this later, and draws random numbers in it, which count as its own.
        trainer.fit_loop.setup_data()
        with _unlogged(pl_module):
            self._pruning.start(
                self._network,
                partial(_first_batch, trainer, pl_module),
                partial(_training_loss, pl_module),
                trainer.world_size,
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Accelerate now that a checkpoint's state is in the optimisers."""
        if self._pruning.accelerate and self._network is pl_module:
            warn(
                f"running dense: the prunable layers of {type(pl_module).__name__} are not in one "
                "child of it, and the whole cannot be exchanged: name a part with module=..."
            )
            return
        assert self._network is not None
        self._pruning.speed_up(self._network, trainer.optimizers, trainer.world_size)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave an ordinary model."""
        if self._network is not None:
            self._pruning.finish(self._network, trainer.optimizers)
            self._network = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave an ordinary model, whatever happened."""
        self.on_fit_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return self._pruning.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the state of a checkpoint over."""
        self._pruning.load_state_dict(state_dict)

    def _chosen(self, pl_module: Any) -> nn.Module:
        """The part of the module that is pruned."""
        if self._module is not None:
            known = dict(pl_module.named_modules())
            if self._module not in known:
                raise nearest("module", self._module, [name for name in known if name])
            return known[self._module]
        found = prunable_parameters(pl_module, self._pruning.options.get("params"))
        owners = {name.partition(".")[0] for name in found}
        alone = [child for name, child in pl_module.named_children() if owners == {name}]
        return alone[0] if alone else pl_module


def _first_batch(trainer: Any, pl_module: Any) -> Any:
    """The first batch of the training data, as `training_step` would get it."""
    loaders = trainer.train_dataloader
    utilities = imported(
        f"{_library.__name__}.utilities", "the callback for Lightning", "lightning"
    )
    if isinstance(loaders, (list, tuple, dict)):
        found = next(iter(utilities.CombinedLoader(loaders, "max_size_cycle")), None)
        batch = None if found is None else found[0]
    else:
        batch = first_of(loaders)
    batch = trainer.precision_plugin.convert_input(batch)
    batch = pl_module._on_before_batch_transfer(batch, dataloader_idx=0)
    return trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def _training_loss(pl_module: Any, batch: Any) -> torch.Tensor:
    """Output of `training_step` for a batch."""
    takes = inspect.signature(pl_module.training_step).parameters
    found = pl_module.training_step(*(batch, 0)[: len(takes)])
    found = found.get("loss") if isinstance(found, Mapping) else found
    if found is None:
        raise InputError(
            f"training_step of {type(pl_module).__name__} returned no loss for the first batch: "
            "return it, or give Snip(..., loss_fn=lambda network, batch: ...)."
        )
    return found


@contextmanager
def _unlogged(pl_module: Any) -> Iterator[None]:
    """Let `self.log` do nothing: the trainer takes no values before its first step."""
    pl_module.log = pl_module.log_dict = lambda *_args, **_kwargs: None
    try:
        yield
    finally:
        del pl_module.log, pl_module.log_dict
