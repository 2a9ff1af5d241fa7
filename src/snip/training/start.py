"""Before the first step: the masks and the engine of a training, kept in its folder."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from snip.common.errors import FileError
from snip.common.files import damaged, read_json, write_json
from snip.engine.choice import Choice, choose, choose_again
from snip.masks import Masks, held_masks
from snip.training.journal import ENGINE, MASKS
from snip.training.parts import Data


def hold(
    model: nn.Module, masks: Masks | None, folder: Path | None, *, resume: bool
) -> Masks | None:
    """Put the masks on the model, unless the folder has others; without any, its own count."""
    if masks is None:
        masks = held_masks(model)
    else:
        masks.apply(model)
    if masks is None or folder is None or not resume:
        return masks
    path = folder / MASKS
    if path.exists() and Masks.load(path) != masks:
        raise FileError(
            f"{path} holds other masks than this model: choose another folder, "
            "or start over in this one with resume=False."
        )
    return masks


def on_engine(
    model: nn.Module, data: Data, engine: str, folder: Path | None, *, resume: bool
) -> tuple[nn.Module, Choice]:
    """The network that trains; a resumed run does what "auto" decided when it began."""
    batch = next(iter(data.train))
    path = None if folder is None else folder / ENGINE
    if path is not None and resume and path.exists():
        saved = read_json(path)
        try:
            choice, asked = Choice.from_dict(saved), saved["asked"]
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(path, error) from error
        if asked == engine:
            return choose_again(model, batch, choice), choice
    return choose(model, batch, engine)


def keep(folder: Path | None, masks: Masks | None, engine: str, choice: Choice) -> None:
    """Put into the folder what a resumed run must do again: the masks, the engine."""
    if folder is None:
        return
    if masks is not None and not (folder / MASKS).exists():
        masks.save(folder / MASKS)
    if engine == "dense":  # which leaves nothing to decide
        (folder / ENGINE).unlink(missing_ok=True)
    else:
        write_json(folder / ENGINE, {"asked": engine, **choice.to_dict()})
