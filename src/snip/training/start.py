"""Before the first step: masks on the model, the engine chosen, the last checkpoint restored."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import nn

from snip.common.errors import FileError
from snip.common.files import exists, read_json, reading, remove, write_json
from snip.common.lock import Lock
from snip.distributed.wrapped import unwrap
from snip.engine.choice import Choice, choose, choose_again
from snip.engine.fused.step import training_step
from snip.masks import Masks, held_masks
from snip.network.calls import device_of
from snip.training.config import TrainConfig
from snip.training.hooks import hooked_step
from snip.training.journal import CHECKPOINT, ENGINE, MASKS, Journal
from snip.training.loss import explained
from snip.training.parts import Data, make_optimizer
from snip.training.session import Options, Session


def hold(
    model: nn.Module, masks: Masks | None, folder: Path | None, *, resume: bool
) -> Masks | None:
    """Put the masks on the model, or find those that it holds; the folder must have no others."""
    held = held_masks(model) if masks is None else masks
    path = None if folder is None or not resume else folder / MASKS
    if held is not None and path is not None and exists(path) and Masks.load(path) != held:
        raise FileError(
            f"{path} holds other masks than this model: choose another folder, "
            "or start over in this one with resume=False."
        )
    if masks is not None:
        masks.apply(model)
    return held


def forget_start(folder: Path | None) -> None:
    """Delete the masks and the engine of a training that has no checkpoint, and makes them again.

    Whoever makes masks of trained weights needs those weights too, which a checkpoint alone has.
    Made again, with other threads or by another version, the masks may be others. The caller holds
    the folder's lock.
    """
    if folder is not None and not exists(folder / CHECKPOINT):
        for name in (MASKS, ENGINE):
            remove(folder / name)


def begin(
    model: nn.Module,
    data: Data,
    config: TrainConfig,
    masks: Masks | None,
    options: Options,
    lock: Lock,
) -> Session:
    """A session at the folder's last checkpoint, or before the first step if there is none."""
    trained, choice = _on_engine(model, data, options)
    hooks = options.hooks
    optimizer = make_optimizer(trained, config, [] if hooks is None else hooks.groups())
    identity = {
        **config.to_dict(),
        **data.identity,
        "engine": options.engine,
        "masks": None if masks is None else masks.digest(),
        **({} if hooks is None else hooks.settings()),
    }
    journal = Journal(lock, identity, every=options.checkpoint_seconds)
    state = journal.open(
        unwrap(trained),
        optimizer,
        resume=options.resume,
        validates=data.valid is not None,
        stepped=options.step is None,  # a step of the user's may do without the optimiser
        hooks=hooks,
    )
    if options.folder is not None:
        kept = _keep(options.folder, masks, options.engine, choice)
        journal.watch((*options.beside, *kept))
    if hooks is not None:
        take_step = explained(trained, hooked_step(unwrap(trained), optimizer, hooks, state))
    elif options.step is None:
        take_step = explained(trained, training_step(trained, optimizer))
    else:
        take_step = partial(options.step, trained, optimizer)
    trained.train()
    return Session(trained, data, config, masks, optimizer, take_step, journal, state, hooks)


def _on_engine(model: nn.Module, data: Data, options: Options) -> tuple[nn.Module, Choice]:
    """The network that trains; a resumed run does what "auto" decided when it began."""
    if options.hooks is not None:  # a method that changes weights or masks as it trains
        return model, Choice("dense")
    inputs, labels = data.first()
    device = device_of(model)
    batch = inputs.to(device), labels.to(device)
    path = None if options.folder is None else options.folder / ENGINE
    if path is not None and options.resume and exists(path):
        choice, asked = read_choice(path)
        if asked == options.engine:
            return choose_again(model, batch, choice), choice
    return choose(model, batch, options.engine)


def read_choice(path: Path) -> tuple[Choice, str]:
    """The engine that a run was decided to use, and the one that was asked for."""
    saved = read_json(path)
    with reading(path):
        return Choice.from_dict(saved), saved["asked"]


def _keep(folder: Path, masks: Masks | None, engine: str, choice: Choice) -> list[str]:
    """Put what a resumed run must do again into the folder: masks, engine. Returns file names."""
    if masks is not None and not exists(folder / MASKS):
        masks.save(folder / MASKS)
    if engine == "dense":  # which leaves nothing to decide
        (folder / ENGINE).unlink(missing_ok=True)
    else:
        write_json(folder / ENGINE, {"asked": engine, **choice.to_dict()})
    return [MASKS] * (masks is not None) + [ENGINE] * (engine != "dense")
