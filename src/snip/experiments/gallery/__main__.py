"""Write the pages that show results: `python -m snip.experiments.gallery`, after new ones came."""

from __future__ import annotations

import sys

from snip.common.console import complain
from snip.common.errors import InputError
from snip.common.files import write_text
from snip.common.lock import waiting_lock
from snip.experiments.gallery.pages import DOCS, RESULTS, pages


def main() -> int:
    """Write all pages, or none if something is wrong, and return the exit code."""
    try:
        with waiting_lock(RESULTS):  # else a newer table of a command could be written over
            for path, text in pages(RESULTS, DOCS).items():
                write_text(path, text)
    except InputError as error:
        complain(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
