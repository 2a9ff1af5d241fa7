"""Set torch up for a command: its threads, and a device that is really here."""

from __future__ import annotations

from snip.common.errors import InputError


def set_up_torch(*, threads: int | None, device: str) -> None:
    """Set the number of threads, and refuse a device that is not here."""
    import torch

    if threads is not None:
        if threads < 1:
            raise InputError(f"threads is {threads}: give 1 or more.")
        torch.set_num_threads(threads)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        # torch explains at length, and differently for every kind of device.
        raise InputError(
            f"device {device!r} cannot be used here ({str(error).splitlines()[0].rstrip('.')}): "
            "give 'cpu', or 'cuda' where there is a GPU."
        ) from error
