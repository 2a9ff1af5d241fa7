"""Schedules and the values of a training's configuration."""

import dataclasses
import json

import pytest

from snip.common.errors import InputError, KindError
from snip.training import TrainConfig, learning_rate, paper_schedule, shortened
from snip.training.schedule import weight_decay


def test_mnist_schedule_is_the_papers() -> None:
    config = paper_schedule("mnist")
    assert (config.optimizer, config.lr, config.momentum) == ("sgd", 0.1, 0.9)
    assert (config.weight_decay, config.batch_size, config.validation) == (5e-4, 100, 0.1)
    assert (config.iterations, config.lr_drops) == (75_000, (25_000, 50_000))


def test_cifar_schedule_is_the_papers() -> None:
    config = paper_schedule("cifar-10")
    assert (config.batch_size, config.iterations) == (128, 150_000)
    assert config.lr_drops == (30_000, 60_000, 90_000, 120_000)
    assert config.lr_factor == 0.1


@pytest.mark.parametrize(
    ("iteration", "lr"),
    [(0, 0.1), (24_999, 0.1), (25_000, 0.01), (49_999, 0.01), (50_000, 0.001), (74_999, 0.001)],
)
def test_rate_drops_after_so_many_steps(iteration: int, lr: float) -> None:
    assert learning_rate(TrainConfig(), iteration) == pytest.approx(lr, rel=1e-12)


@pytest.mark.parametrize(("iteration", "decay"), [(24_999, 5e-4), (25_000, 5e-3), (50_000, 5e-2)])
def test_decay_changes_where_the_rate_drops(iteration: int, decay: float) -> None:
    config = TrainConfig(weight_decay_factor=10.0)
    assert weight_decay(config, iteration) == pytest.approx(decay, rel=1e-12)
    assert weight_decay(TrainConfig(), iteration) == 5e-4


@pytest.mark.parametrize("field", ["lr_factor", "weight_decay_factor"])
def test_drops_that_make_too_large_a_number_are_refused(field: str) -> None:
    with pytest.raises(InputError, match=r"multiplied by 1e\+200 at 2 drops"):
        TrainConfig(**{field: 1e200})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"multiplied by 1e\+11 at 2 drops"):
        TrainConfig(**{field: 1e11, "weight_decay": 1.0})  # type: ignore[arg-type]
    assert TrainConfig(**{field: 1e10, "lr_drops": ()})  # type: ignore[arg-type]


def test_shortened_keeps_the_proportions() -> None:
    assert shortened(TrainConfig(), 3000).lr_drops == (1000, 2000)
    cifar = shortened(paper_schedule("cifar-10"), 500)
    assert cifar.lr_drops == (100, 200, 300, 400)
    assert shortened(TrainConfig(), 1).lr_drops == (1,)  # drops that fall together are one
    assert shortened(TrainConfig(), 75_000) == TrainConfig()


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(InputError, match=r"did you mean 'mnist'"):
        paper_schedule("mnits")
    with pytest.raises(InputError, match=r"did you mean 'adam'"):
        TrainConfig(optimizer="adm")
    with pytest.raises(InputError, match=r"did you mean 'momentum'"):
        TrainConfig.from_dict({"momentun": 0.9})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", 0), ("lr", float("nan")), ("lr", float("inf")), ("momentum", 1.0),
        ("weight_decay", -1e-4), ("batch_size", 0), ("iterations", 0), ("lr_factor", 0),
        ("weight_decay_factor", -1), ("validation", 1.0), ("validation", -0.1), ("eval_every", -1),
        ("seed", -1), ("lr_drops", (50, 20)), ("lr_drops", (20, 20)), ("lr_drops", (0,)),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(InputError, match=field):
        dataclasses.replace(TrainConfig(), **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", "0.1"), ("lr", True), ("batch_size", 100.0), ("iterations", "75k"),
        ("lr_drops", "25000"), ("lr_drops", 25_000), ("augment", 1), ("seed", None),
    ],
)  # fmt: skip
def test_values_of_the_wrong_kind_are_refused(field: str, value: object) -> None:
    with pytest.raises(KindError, match=field):
        dataclasses.replace(TrainConfig(), **{field: value})


def test_configuration_survives_json() -> None:
    config = TrainConfig(optimizer="adam", lr=1, lr_drops=(3, 5), augment=False)
    again = TrainConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert hash(again) == hash(config)
    assert json.dumps(again.to_dict()) == json.dumps(
        TrainConfig.from_dict(again.to_dict()).to_dict()
    )
    assert TrainConfig.from_dict({}) == TrainConfig()
