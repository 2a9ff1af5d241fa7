"""Set torch up for a command: the number of threads, and a check of the device."""

from __future__ import annotations

from snip.common.errors import InputError
from snip.common.text import first_line


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
        # torch's messages are long and differ by device: only the first line is shown.
        raise InputError(
            f"device {device!r} cannot be used here ({first_line(error).rstrip('.')}): "
            "give 'cpu', or 'cuda' where there is a GPU."
        ) from error
