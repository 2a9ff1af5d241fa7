"""Maps of what survives, how they are measured, and labels that are dealt out at random."""

import math

import pytest
import torch

from snip.data import load
from snip.experiments.fig2 import PLAIN, SETS, SPARSITIES, draw, maps_of
from snip.experiments.measures.map_measures import (
    CHANGED,
    INVERSION,
    READ_BACK_WRONG,
    WITH_WRONG,
    alike,
    beside_images,
    beside_inverted,
    beside_wrong_labels,
    between_seeds,
    steadiness,
    with_highest,
)
from snip.experiments.measures.maps import class_means, correlation, packed, unpacked
from snip.reports.pictures import shares
from snip.runs import RunConfig, prepare
from snip.runs.config import SHUFFLED
from snip.runs.run import labelled
from snip.training import TrainConfig


@pytest.fixture(scope="module")
def mnist():
    return load("mnist")


def test_maps_go_through_a_record():
    values = torch.arange(784) / 783
    assert unpacked(packed(values)).flatten() == pytest.approx(values.numpy(), abs=0.5 / 255 + 1e-6)
    mask = torch.tensor([[1, 0, 1], [1, 0, 0]], dtype=torch.bool)
    assert shares(mask, (1, 3)).tolist() == [[1.0, 0.0, 0.5]]
    assert shares(mask, (1, 2)) is None
    one = torch.tensor([1.0, 2.0, 3.0])
    assert correlation(one, one * 5 + 1) == pytest.approx(1)
    assert correlation(one, -one) == pytest.approx(-1)
    assert correlation(one, torch.ones(3)) == 0


def test_what_survives_shows_the_class_and_inverting_the_data_changes_little(mnist):
    """The claims of figures 2 and A1, on one seed; dL/dw sees the pixels alone, and not weights."""
    plain, inverted = (maps_of(data, "snip", 0) for data in (mnist, mnist.inverted()))
    assert plain.shape == (10, len(SPARSITIES), 784)
    means = class_means("mnist")
    for number in range(10):
        most = plain[number, -1]
        likeness = [correlation(most, mean) for mean in means]
        assert likeness.index(max(likeness)) == number
        assert correlation(most, inverted[number, -1]) > 0.9
    shares = plain.mean(dim=(0, 2))  # the denser, the more of the first layer survives
    assert torch.equal(shares, shares.sort(descending=True).values)


def test_the_class_is_read_back_as_well_if_every_label_is_wrong(mnist):
    """The control of figure 2: reading back sees the images of the batch, not the task."""
    own, wrong = ([maps_of(mnist, "snip", 0, wrong_by)] for wrong_by in (0, 5))
    assert not torch.equal(own[0], wrong[0])  # the labels do reach the scores
    means = class_means("mnist")
    found = beside_wrong_labels(own, wrong, (means - float(mnist.mean)).abs(), -1)
    assert found[READ_BACK_WRONG] == 1.0
    assert found[WITH_WRONG] > 0.9


def test_measures_of_maps_by_hand():
    """Two classes, two sparsities, four pixels: seeds differ, and the second class is inverted."""
    up, down = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([3.0, 2.0, 1.0, 0.0])
    hill = torch.tensor([0.0, 1.0, 1.0, 0.0])  # correlates with neither
    one = torch.stack([torch.stack([up, up]), torch.stack([hill, down])])
    other = torch.stack([torch.stack([hill, up]), torch.stack([hill, down])])
    assert alike([one], [other], 0) == pytest.approx(0.5)
    assert between_seeds([one, other], 0) == pytest.approx(0.5)
    assert between_seeds([one, other], 1) == pytest.approx(1)
    assert with_highest([one, other], 0) == pytest.approx(0.25)
    assert steadiness(one) == pytest.approx(0.5)
    turned = torch.stack([one[0], one[1].flip(-1)])
    found = beside_inverted([one, other], [turned, turned], 1)
    assert (found[INVERSION], found[CHANGED]) == (pytest.approx(0), 1)
    images = {"it": torch.stack([up, down])}
    assert beside_images([one], images, 1) == {
        "correlation with it": pytest.approx(1), "class read back by it": 1.0,
    }  # fmt: skip
    assert beside_images([one.flip(0)], images, 1) == {
        "correlation with it": pytest.approx(-1), "class read back by it": 0.0,
    }  # fmt: skip


def test_inverted_data_is_the_negative_once_it_is_normalised(mnist):
    few = mnist.subset(200, 10)
    ours = next(iter(few.evaluation_batches(10)))[0]
    theirs = next(iter(few.inverted().evaluation_batches(10)))[0]
    assert torch.allclose(ours, -theirs, atol=1e-5)
    assert few.identity() != few.inverted().identity()


def test_shuffled_labels_are_a_permutation_that_never_changes(mnist):
    shuffled = mnist.with_shuffled_labels()
    ours, theirs = mnist.train.labels, shuffled.train.labels
    assert torch.equal(ours.bincount(), theirs.bincount())
    assert float((ours == theirs).float().mean()) == pytest.approx(0.1, abs=0.01)
    assert torch.equal(theirs, mnist.with_shuffled_labels().train.labels)
    assert torch.equal(mnist.test.labels, shuffled.test.labels)
    assert shuffled.identity() != mnist.identity()


def test_scores_come_from_true_labels_and_training_from_shuffled_ones(mnist):
    true = RunConfig("lenet-300-100", 0.9, train=TrainConfig(iterations=2, lr_drops=()))
    config = RunConfig.from_dict({**true.to_dict(), "labels": SHUFFLED})
    assert prepare(config, mnist)[1] == prepare(true, mnist)[1]
    assert labelled(true, mnist) is mnist
    assert not torch.equal(labelled(config, mnist).train.labels, mnist.train.labels)
    assert "labels" not in true.identity()  # folders of old runs keep their names
    assert "shuffled-labels" in config.folder_name
    rival = RunConfig("lenet-300-100", 0.9, method="lwc", labels=SHUFFLED)
    assert rival.trained_first.labels == SHUFFLED


@pytest.fixture(scope="module")
def drawn():
    """A figure of maps that were scored with seven seeds."""
    maps = {PLAIN: [[packed(torch.zeros(784))] * len(SPARSITIES)] * 10}
    measured = {"shown": [PLAIN], "images": 100, "seeds": 7}
    record = {"title": "Maps", "rows": [], "scale": 1}
    figure = draw(record | {"measured": measured | {name: {"maps": maps} for name in SETS}})
    figure.draw_without_rendering()
    return figure


def test_the_maps_drawn_are_of_one_seed_and_the_measures_of_all(drawn):
    said = drawn.get_supxlabel().replace("\n", " ")
    assert "The maps drawn are of seed 0" in said
    assert "The measures in the table are over all 7 seeds." in said


def test_columns_of_maps_have_names_that_do_not_overlap(drawn):
    digits, clothes, *_ = drawn.axes
    assert [text.get_text() for text in digits.get_xticklabels()] == list("0123456789")
    names = clothes.get_xticklabels()
    assert [name.get_text() for name in names][::9] == ["T-shirt", "Boot"]
    # A slanted name lies in a band as high as a line; the next one's begins a column further.
    column = clothes.transData.transform([(30, 0), (0, 0)])
    apart = (column[0] - column[1])[0] * math.sin(math.radians(names[0].get_rotation()))
    assert apart > 1.2 * names[0].get_fontsize() * drawn.dpi / 72
