"""`Snip(sparsity=...)`, a callback for the Trainer of Hugging Face's transformers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from snip.common.errors import InputError, imported
from snip.common.files import PathLike
from snip.common.text import percent
from snip.distributed.ranks import everybody
from snip.integrations.pruning import Pruning, first_of, own_loss
from snip.masks import Masks
from snip.masks.masks import MIN_ZERO_SHARE, share_of_zeros
from snip.network.network import prunable_parameters

FILE = "snip_masks.safetensors"  # in the folder of each checkpoint
# Key of the masks' digest in the Trainer's state, which is saved beside the weights.
NOTE = "snip_masks"
_library = imported("transformers", "the callback for the Trainer", "transformers")


class Snip(_library.TrainerCallback):  # type: ignore[name-defined]
    """Prunes when training begins, on the first batch of the training data.

    The loss is `model(**batch).loss`, or `loss_fn(model, batch)`: give that if the Trainer computes
    another one. `accelerate=True` trains with the surviving weights only, where this pays;
    checkpoints, and the model after training, are ordinary ones. The other options are those of
    `snip.prune`. The folder of each checkpoint gets the masks: resumed from one, the model is not
    pruned again, and neither is one that holds masks already. `masks` names the file of a
    checkpoint that lies elsewhere than in `output_dir`.
    """

    def __init__(
        self,
        sparsity: float | None = None,
        *,
        accelerate: bool = False,
        masks: PathLike | None = None,
        **options: Any,
    ) -> None:
        self._pruning = Pruning(sparsity, accelerate, options)
        self._given = None if masks is None else Masks.load(masks)

    @property
    def masks(self) -> Masks | None:
        """The masks, once training has begun."""
        return self._pruning.masks

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Prune, or hold the masks of the checkpoint; then accelerate. The optimiser stays."""
        model, optimizer, ranks = parts["model"], parts["optimizer"], everybody()
        self._pruning.given = self._given
        if state.global_step and self._given is None:
            with ranks.raise_on_all():
                path = _folder(Path(args.output_dir), state.global_step) / FILE
                self._pruning.given = _saved_masks(model, path, state.stateful_callbacks.get(NOTE))
        model.train()  # as each step does: layers are timed in this mode
        first = partial(first_of, parts["train_dataloader"])
        masks = self._pruning.start(model, first, partial(own_loss, model), ranks.size)
        state.stateful_callbacks[NOTE] = masks.digest()
        self._pruning.speed_up(model, [optimizer], ranks.size)

    def on_save(self, args: Any, state: Any, control: Any, **_parts: Any) -> None:
        """Put the masks beside the weights."""
        folder = _folder(Path(args.output_dir), state.global_step)
        if self.masks is not None and state.is_world_process_zero and folder.is_dir():
            self.masks.save(folder / FILE)

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Leave an ordinary model."""
        self._pruning.finish(parts["model"], [parts["optimizer"]])


def _folder(output: Path, step: int) -> Path:
    return output / f"checkpoint-{step}"


def _saved_masks(model: nn.Module, path: Path, noted: str | None) -> Masks | None:
    """The masks of the checkpoint that training resumes from; None if it was never pruned.

    The checkpoint may be elsewhere, and `output_dir` may have an older one of the same step.
    """
    masks = Masks.load(path) if path.is_file() else None
    if noted not in (None, None if masks is None else masks.digest()):
        raise InputError(
            f"the masks of this checkpoint are not in {path}"
            f"{'' if masks is None else ': it is of another training'}. "
            f"Give Snip(..., masks=...), the {FILE} of its folder."
        )
    # A checkpoint that was saved without this callback has no note.
    zeros = 0.0 if masks is not None else share_of_zeros(prunable_parameters(model))
    if zeros >= MIN_ZERO_SHARE:
        raise InputError(
            f"{percent(zeros)} of the weights in this checkpoint are zero, but its masks are not "
            f"in {path}: give Snip(..., masks=...), the {FILE} of its folder."
        )
    return masks
