"""What is known of a data set before a byte of it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from snip.common.files import damaged
from snip.data.augment import Augmentation
from snip.data.reading import FETCH_AGAIN
from snip.data.split import Split


class Content(NamedTuple):
    """What a reader found: two splits, and whether their pixels went through JPEG."""

    train: Split
    test: Split
    jpeg: bool = False


Reader = Callable[[], Content]


@dataclass(frozen=True)
class Layout:
    """One way in which a set's files lie in a folder."""

    recognize: Callable[[Path, Spec], Reader | None]  # returns None for a folder without such files
    distinct: bool = False  # its file names belong to this set alone


@dataclass(frozen=True)
class Remote:
    """A file on the data set's public home, with the only content that is accepted."""

    name: str
    sha256: str
    urls: tuple[str, ...]  # tried in this order


@dataclass(frozen=True)
class Images:
    """The shape of a data set's images [channels, size, size], and its number of classes."""

    channels: int
    size: int
    classes: int


@dataclass(frozen=True)
class Spec:
    """Shape, names, layouts and home of one data set."""

    name: str
    shape: tuple[int, int, int]  # channels, height, width
    classes: int
    per_class: int  # training images per class of the whole set
    folders: tuple[str, ...]  # what users call its folder; case, '-' and '_' do not count
    layouts: tuple[Layout, ...]  # the genuine files first, re-encoded ones last
    advice: str  # which files to put where, for the error message
    test_split: tuple[str, ...] = ("test",)  # names of the test part in parquet files
    lossless: bool = True  # the genuine pixels never went through JPEG
    remotes: tuple[Remote, ...] = ()  # empty: it cannot be downloaded
    augment: Augmentation | None = None
    packaged: Path | None = None  # its folder, if it ships inside this package
    # A copy whose training labels begin like this is this set and no other of the same file names.
    first_labels: tuple[int, ...] = ()

    @property
    def most(self) -> int:
        """The most images that a part of this set can have: those of the whole training part."""
        return self.per_class * self.classes

    def require_count(self, count: int, where: Path) -> None:
        """Refuse files that claim more images than the set has, before memory is taken for them."""
        if count > self.most:
            reason = f"it claims {count:,} images, but {self.name} has at most {self.most:,}"
            raise damaged(where, reason, FETCH_AGAIN)

    @property
    def images(self) -> Images:
        """The images and classes that a network for this set must handle."""
        channels, size, _ = self.shape
        return Images(channels, size, self.classes)
