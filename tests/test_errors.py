"""Unknown names come with the one that was probably meant."""

import pytest

from snip.common.errors import FileError, nearest


@pytest.mark.parametrize(
    ("name", "meant"),
    [("lenet5", "lenet-5-caffe"), ("LeNet_300", "lenet-300-100"), ("vgg like", "vgg-like")],
)
def test_the_nearest_name_is_suggested(name, meant):
    known = ["alexnet-s", "lenet-300-100", "lenet-5-caffe", "vgg-c", "vgg-like"]
    assert f"did you mean '{meant}'?" in str(nearest("model", name, known))


def test_a_name_like_no_other_gets_the_list_alone():
    assert str(nearest("model", "zzz", ["a", "b"])) == "unknown model 'zzz': Known: a, b."


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("lion", ["sgd", "adam", "adamw"]),
        ("imagenet", ["mnist", "cifar-10", "kmnist"]),
        ("transformer", ["alexnet-s", "lenet-5-caffe", "lstm-s", "vgg-like"]),
        ("best", ["global", "layer", "uniform", "erk"]),
        ("he", ["vs", "rn", "tn"]),
    ],
)
def test_another_name_is_no_slip(name, known):
    assert "did you mean" not in str(nearest("name", name, known))


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("adm", ["sgd", "adam", "adamw"], "adam"),
        ("mnits", ["mnist", "cifar-10", "kmnist"], "mnist"),
        ("vgg-e", ["alexnet-s", "vgg-c", "vgg-like"], "vgg-c"),
        ("gloabl", ["global", "layer", "uniform", "erk"], "global"),
    ],
)
def test_a_slip_is_recognised(name, known, meant):
    assert f"did you mean {meant!r}?" in str(nearest("name", name, known))


def test_file_errors_print_their_sentence():
    assert str(FileError("cannot write x")) == "cannot write x"
