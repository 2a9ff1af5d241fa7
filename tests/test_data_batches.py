"""Batches: every image once, any batch redrawn from (seed, epoch, index), exact augmentation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from snip.common.errors import InputError, KindError
from snip.data import Augmentation, Batches, Split
from snip.data.augment import flip_half, shift_at_random


def numbered(count: int, shape: tuple[int, int, int] = (1, 2, 2)) -> Split:
    """Image n is filled with n and has the label n."""
    labels = torch.arange(count)
    images = labels.to(torch.uint8).reshape(-1, 1, 1, 1).expand(count, *shape).contiguous()
    return Split(images, labels)


def noisy(count: int, shape: tuple[int, int, int] = (3, 32, 32)) -> Split:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)
    return Split(images, torch.arange(count))


ONE = {"mean": torch.zeros(1), "std": torch.ones(1)}
THREE = {"mean": torch.tensor([0.5, 0.4, 0.3]), "std": torch.tensor([0.2, 0.25, 0.3])}


def test_normalisation_by_hand() -> None:
    split = Split(torch.tensor([[[[0, 255]], [[51, 102]]]], dtype=torch.uint8), torch.tensor([7]))
    mean, std = torch.tensor([0.5, 0.2]), torch.tensor([0.25, 0.1])
    ((images, labels),) = Batches(split, 1, mean=mean, std=std)
    assert images.dtype == torch.float32
    torch.testing.assert_close(images, torch.tensor([[[[-2.0, 2.0]], [[0.0, 2.0]]]]))
    assert labels.tolist() == [7]
    assert labels.dtype == torch.int64


def test_normalisation_agrees_with_the_formula_on_every_value() -> None:
    split = Split(torch.arange(256).to(torch.uint8).reshape(1, 1, 16, 16), torch.tensor([0]))
    mean, std = torch.tensor([0.1307]), torch.tensor([0.3081])
    ((images, _),) = Batches(split, 1, mean=mean, std=std)
    expected = (torch.arange(256).double() / 255 - mean.double()) / std.double()
    assert (images.flatten().double() - expected).abs().max() < 5e-7


def test_an_epoch_shows_every_image_once_with_its_label() -> None:
    batches = Batches(numbered(23), 5, **ONE)
    seen = []
    for images, labels in batches.epoch(4):
        assert torch.equal((images[:, 0, 0, 0] * 255).round().long(), labels)
        seen += labels.tolist()
    assert sorted(seen) == list(range(23))
    assert len(batches) == 5


def test_epochs_and_seeds_differ_and_repeat() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return [n for _, y in Batches(numbered(50), 7, seed=seed, **ONE).epoch(epoch) for n in y]

    assert order(0, 0) == order(0, 0)
    assert len({tuple(map(int, order(s, e))) for s in range(3) for e in range(3)}) == 9


@pytest.mark.parametrize("augment", [None, Augmentation()])
@pytest.mark.parametrize("start", [0, 1, 4, 5])
def test_starting_anywhere_gives_the_same_batches(augment: Augmentation | None, start: int) -> None:
    whole = list(Batches(noisy(20), 4, augment=augment, seed=3, **THREE).epoch(2))
    tail = list(Batches(noisy(20), 4, augment=augment, seed=3, **THREE).epoch(2, start=start))
    assert len(tail) == 5 - start
    for (a, b), (c, d) in zip(whole[start:], tail, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, d)


def test_global_random_state_is_neither_used_nor_touched() -> None:
    batches = Batches(noisy(8), 4, augment=Augmentation(), **THREE)
    first = [images for images, _ in batches.epoch(0)]
    torch.manual_seed(99)
    np.random.seed(99)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    second = [images for images, _ in batches.epoch(0)]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])


def test_batches_leave_the_images_alone() -> None:
    split = noisy(12)
    copy = split.images.clone()
    for images, labels in Batches(split, 4, augment=Augmentation(), shuffle=False, **THREE):
        images.zero_()
        labels.zero_()
    assert torch.equal(split.images, copy)
    assert split.labels.tolist() == list(range(12))


def test_order_is_kept_without_shuffle_and_the_rest_can_be_dropped() -> None:
    batches = Batches(numbered(10), 4, shuffle=False, **ONE)
    assert [labels.tolist() for _, labels in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    dropped = Batches(numbered(10), 4, shuffle=False, drop_last=True, **ONE)
    assert len(dropped) == 2
    assert [len(labels) for _, labels in dropped.epoch(0)] == [4, 4]


def test_augmented_images_are_shifted_and_flipped_originals() -> None:
    split = noisy(64, (3, 8, 8))
    plain = next(Batches(split, 64, shuffle=False, **THREE).epoch(0))[0]
    moved = next(Batches(split, 64, shuffle=False, augment=Augmentation(), **THREE).epoch(0))[0]
    padded = torch.nn.functional.pad(plain, (4, 4, 4, 4))
    seen = set()
    for n in range(64):
        matches = [
            (flip, down, right)
            for flip in (False, True)
            for down in range(9)
            for right in range(9)
            if torch.equal(_window(padded[n], flip, down, right), moved[n])
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    assert {flip for flip, _, _ in seen} == {False, True}
    assert {down for _, down, _ in seen} == set(range(9))
    assert {right for _, _, right in seen} == set(range(9))


def _window(padded: torch.Tensor, flip: bool, down: int, right: int) -> torch.Tensor:
    """Flip first, then cut: what a loop over images would do."""
    if flip:
        padded = padded.flip(-1)
    return padded[:, down : down + 8, right : right + 8]


def test_flip_mirrors_about_half() -> None:
    images = np.tile(np.arange(4, dtype=np.uint8), (2000, 1, 1, 1))
    flipped = flip_half(images, np.random.default_rng(0))
    mirrored = (flipped[:, 0, 0, 0] == 3).sum()
    assert 900 < mirrored < 1100
    assert set(map(tuple, flipped[:, 0, 0].tolist())) == {(0, 1, 2, 3), (3, 2, 1, 0)}


def test_shift_fills_with_zeros_and_says_where() -> None:
    images = np.full((500, 2, 3, 5), 9, dtype=np.uint8)
    moved, inside = shift_at_random(images, 1, np.random.default_rng(0))
    assert moved.shape == images.shape
    assert inside.shape == (500, 1, 3, 5)
    assert np.array_equal(moved == 9, np.broadcast_to(inside == 1, moved.shape))
    assert inside.reshape(500, -1).sum(1).min() == 2 * 4


@pytest.mark.parametrize(
    ("augment", "changes"),
    [(Augmentation(flip=False, translate=0), False), (Augmentation(translate=0), True)],
)
def test_augmentation_parts_can_be_switched_off(augment: Augmentation, changes: bool) -> None:
    plain = next(Batches(noisy(16), 16, shuffle=False, **THREE).epoch(0))[0]
    other = next(Batches(noisy(16), 16, shuffle=False, augment=augment, **THREE).epoch(0))[0]
    assert torch.equal(plain, other) != changes
    assert torch.equal(plain.sort(-1).values, other.sort(-1).values)


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "4"])
def test_bad_batch_sizes(size: object) -> None:
    with pytest.raises(InputError, match="batch_size is"):
        Batches(numbered(4), size, **ONE)  # type: ignore[arg-type]


def test_other_bad_arguments() -> None:
    with pytest.raises(InputError, match="no batch is left"):
        Batches(numbered(4), 5, drop_last=True, **ONE)
    with pytest.raises(InputError, match="seed is -1"):
        Batches(numbered(4), 2, seed=-1, **ONE)
    with pytest.raises(KindError, match="seed is 'a'"):
        Batches(numbered(4), 2, seed="a", **ONE)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="an epoch here has 2 batches"):
        Batches(numbered(4), 2, **ONE).epoch(0, start=3)
    with pytest.raises(InputError, match="translate is -1"):
        Augmentation(translate=-1)
