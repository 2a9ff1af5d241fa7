"""Masks in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snip.common.text import html_page, html_table, percent

if TYPE_CHECKING:
    from snip.masks.masks import Masks


def as_html(masks: Masks) -> str:
    """Masks with the style that they need."""
    return html_page(content(masks))


def content(masks: Masks) -> str:
    """How many connections of each parameter are kept, with bars."""
    kept = [*(int(mask.count_nonzero()) for mask in masks.values()), masks.kept]
    totals = [*(mask.numel() for mask in masks.values()), masks.total]
    shares = [part / whole if whole else 0.0 for part, whole in zip(kept, totals, strict=True)]
    cells = {
        "parameter": [*masks, "total"],
        "kept": [f"{count:,}" for count in kept],
        "of": [f"{count:,}" for count in totals],
        "share": [percent(share) for share in shares],
    }
    kinds = ["" if count else "empty" for count in kept[:-1]]
    return html_table(cells, bars="share", fractions=shares, kinds=[*kinds, "total"])
