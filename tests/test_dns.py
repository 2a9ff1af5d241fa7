"""Dynamic network surgery (DNS) against cases made by hand."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from training_parts import StoppedError, network, same_weights

from snip.common.errors import FileError
from snip.data import load
from snip.masks import Masks
from snip.methods import dns
from snip.methods.course import Course
from snip.methods.dns import Surgery, operated, statistics, thresholds
from snip.training import TrainConfig, load_checkpoint
from snip.training.hooks import replaced
from snip.training.parts import data_for
from snip.training.phases import Phases
from snip.training.session import Options


def test_dns_cuts_what_is_small_and_splices_what_is_large() -> None:
    weight = torch.tensor([0.5, -0.89, 0.95, -1.05, 1.2, 0.95, -1.05, 1.2])
    kept = torch.tensor([True, True, True, True, True, False, False, False])
    expected = [False, False, True, True, True, False, False, True]
    assert operated(kept, weight, 1.0).tolist() == expected


def test_dns_thresholds_by_hand() -> None:
    weights = {"a.weight": torch.tensor([[1.0, -3.0]]), "a.bias": torch.tensor([0.0])}
    assert statistics(weights) == {"a": (2.0, 1.0)}  # of |w|, without the zero
    limits = thresholds(weights, dict.fromkeys(weights, 0.0), 1)
    assert limits["a.weight"] == limits["a.bias"]
    assert int((weights["a.weight"].abs() > limits["a.weight"]).sum()) == 1


def test_dns_takes_a_layer_that_is_zero_all_over() -> None:
    weights = {"a.weight": torch.zeros(2, 2), "b.weight": torch.tensor([[1.0, -3.0]])}
    limits = thresholds(weights, dict.fromkeys(weights, 0.0), 1)
    assert limits["a.weight"] == 0.0
    surgery = Surgery({n: nn.Parameter(w) for n, w in weights.items()}, limits, steps=10)
    surgery.before_step(0)
    assert surgery.kept[:4].tolist() == [False] * 4
    assert surgery.kept[5]
    assert all(score.isfinite().all() for score in surgery.scores().values())


def test_dns_brings_back_a_connection_whose_gradient_asks_for_it() -> None:
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[0.1, 2.0]])
    surgery = Surgery({"weight": model.weight}, {"weight": 1.0}, steps=10)
    surgery.before_step(0)  # with certainty, the first time
    assert surgery.kept.tolist() == [False, True]
    with replaced(model, surgery.weights_to_train()):
        assert model.weight.tolist() == [[0.0, 2.0]]
        model(torch.tensor([[-1.0, 0.0]])).sum().backward()
    assert model.weight.tolist() == [[pytest.approx(0.1), 2.0]]
    model.weight.data -= 1.5 * model.weight.grad  # though the connection is cut, it grows
    surgery.before_step(0)
    assert surgery.kept.tolist() == [True, True]
    scores = surgery.scores()["weight"].flatten()
    assert scores[0] < scores[1]


def test_dns_keeps_what_it_has_before_what_it_has_cut() -> None:
    """Between the thresholds for cutting and for splicing, the larger weight may be the cut one."""
    weight = nn.Parameter(torch.tensor([0.95, 1.05]))
    surgery = Surgery({"weight": weight}, {"weight": 1.0}, steps=10)
    surgery.kept[1] = False
    scores = surgery.scores()["weight"]
    assert scores[0] > scores[1]


def pruned_in(folder: Path | None) -> tuple[Masks, nn.Module]:
    """A network, and the masks of a surgery that writes a checkpoint after every step."""
    model = network()
    config = TrainConfig(lr=0.1, iterations=12, lr_drops=(), batch_size=50, eval_every=100)
    options = Options(folder, progress=False, checkpoint_seconds=0)
    phases = Phases(model, data_for(load("mnist").subset(500, 100), config), config, options)
    return dns.prune(Course(phases, 0.8, dict(model.named_parameters()))), model


def stop_in_surgery(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operate = Surgery.before_step

    def stopping(surgery: Surgery, iteration: int) -> None:
        if iteration == 5:
            raise StoppedError
        operate(surgery, iteration)

    with monkeypatch.context() as patched:
        patched.setattr(Surgery, "before_step", stopping)
        with pytest.raises(StoppedError):
            pruned_in(folder)


def test_dns_goes_on_where_sums_have_other_last_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with another number of threads: the limits are those that the surgery began with."""
    whole, whole_model = pruned_in(None)
    stop_in_surgery(tmp_path, monkeypatch)

    def elsewhere(*args: object) -> dict[str, float]:
        return {name: math.nextafter(limit, 9.0) for name, limit in thresholds(*args).items()}

    monkeypatch.setattr(dns, "thresholds", elsewhere)
    again, model = pruned_in(tmp_path)
    assert again == whole
    assert same_weights(model, whole_model)
    saved = load_checkpoint(tmp_path / "surgery" / "checkpoint.pt")["hooks"]
    values = {name: p.detach() for name, p in network().named_parameters()}
    first = thresholds(values, dict.fromkeys(values, 0.0), dns.FIRST_KEPT * whole.kept)
    assert saved["limits"].tolist() == list(first.values())


def test_dns_with_other_rates_is_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_in_surgery(tmp_path, monkeypatch)
    monkeypatch.setattr(dns, "FIRST_KEPT", 0.5)
    with pytest.raises(FileError, match=r"another configuration \(dns.kept"):
        pruned_in(tmp_path)


def test_a_surgery_of_an_earlier_version_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limits were part of the run's identity, and the checkpoint has none."""
    stop_in_surgery(tmp_path, monkeypatch)
    path = tmp_path / "surgery" / "checkpoint.pt"
    content = torch.load(path, weights_only=True)
    del content["hooks"]["limits"], content["identity"]["dns.kept"]
    content["identity"]["dns.limits"] = "{}"
    torch.save(content, path)
    with pytest.raises(FileError, match=r"dns.limits .* start over in this one with resume=False"):
        pruned_in(tmp_path)
