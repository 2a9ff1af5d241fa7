"""Pictures: the right panels, whole files, no trace in matplotlib's global state."""

import matplotlib
import pytest
import torch
from PIL import Image

import snip
from snip.masks import Provenance
from snip.reports.pictures import filters, pixels, survivors


def lenet_masks():
    generator = torch.Generator().manual_seed(0)
    shapes = {"fc1.weight": (30, 784), "fc1.bias": (30,), "fc2.weight": (10, 30)}
    return snip.Masks(
        {name: torch.rand(shape, generator=generator) < 0.1 for name, shape in shapes.items()},
        Provenance(input_shape=(1, 28, 28)),
    )


def size(path):
    with Image.open(path) as image:
        image.load()
        return image.size, len(set(image.convert("L").tobytes()))


def test_two_panels_for_images_and_one_without(tmp_path):
    survivors(lenet_masks(), tmp_path / "mlp.png")
    survivors(snip.Masks({"rnn.weight": torch.ones(8, 4).bool()}), tmp_path / "rnn.png")
    (wide, _), shades = size(tmp_path / "mlp.png")
    (narrow, _), _ = size(tmp_path / "rnn.png")
    assert wide > narrow
    assert shades > 50


def test_connections_per_pixel_by_hand():
    mask = torch.zeros(5, 12, dtype=torch.bool)
    mask[:3, 0] = mask[4, 6] = mask[1, 11] = True
    assert pixels(mask, (2, 2, 3)).tolist() == [[4, 0, 0], [0, 0, 1]]
    assert pixels(mask, (1, 3, 4)).tolist() == [[3, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert pixels(mask, (1, 5, 5)) is None
    assert pixels(mask, None) is None
    assert pixels(torch.ones(2, 784).bool(), None).shape == (28, 28)


def test_filters_by_hand():
    mask = torch.zeros(2, 3, 2, 2, dtype=torch.bool)
    mask[0, :, 0, 0] = mask[1, 1, 1, 0] = True
    assert filters(mask).tolist() == [[[3, 0], [0, 0]], [[0, 0], [1, 0]]]
    assert filters(torch.ones(2, 3, 1, 1).bool()) is None
    assert filters(torch.ones(2, 3, 5).bool()) is None


@pytest.mark.parametrize("channels", [1, 3, 20])
def test_convolutions_empty_layers_and_many_of_them(tmp_path, channels):
    masks = {"conv.weight": torch.rand(7, channels, 3, 3) < 0.5}
    masks |= {f"layer{i}.weight": torch.zeros(9, 9).bool() for i in range(20)}
    survivors(masks, tmp_path / "conv.png", title="A title of my own")
    (_, height), _ = size(tmp_path / "conv.png")
    assert height > 900


@pytest.mark.parametrize("density", [0, 1])
def test_nothing_and_everything_kept(tmp_path, density):
    masks = {"w": torch.full((4, 4), bool(density)), "b": torch.full((4,), bool(density))}
    survivors(masks, tmp_path / "plain.png", image_shape=(1, 2, 2))
    assert size(tmp_path / "plain.png")


def test_the_same_masks_give_the_same_file_without_pyplot(tmp_path):
    before = dict(matplotlib.rcParams)
    survivors(lenet_masks(), tmp_path / "a.png")
    survivors(lenet_masks(), tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert dict(matplotlib.rcParams) == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.png", "b.png"]


@pytest.mark.parametrize("suffix", [".svg", ".pdf"])
def test_other_formats(tmp_path, suffix):
    survivors(lenet_masks(), tmp_path / f"a{suffix}")
    assert (tmp_path / f"a{suffix}").stat().st_size > 1000


@pytest.mark.parametrize("shape", [(8, 784), (4, 3, 3, 3)])
def test_names_with_dollars_are_drawn_as_they_are(tmp_path, shape):
    masks = snip.Masks({"a$^$.weight": torch.ones(shape).bool()})
    survivors(masks, tmp_path / "a.svg", title="$^$ or $5")
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.count("a$^$.weight") == 2
    assert "$^$ or $5" in drawn


def test_bad_names_and_places_are_refused(tmp_path):
    with pytest.raises(snip.InputError, match="end its name in one of"):
        survivors(lenet_masks(), tmp_path / "picture.docx")
    (tmp_path / "file").write_text("")
    with pytest.raises(snip.FileError):
        survivors(lenet_masks(), tmp_path / "file" / "a.png")
    with pytest.raises(snip.InputError, match="no masks"):
        survivors({}, tmp_path / "a.png")
