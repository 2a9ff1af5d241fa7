"""Snip on a device that is not the CPU: emulated, since there is none here (`emulated_device`).

All cases of a file run in one process that has the device. What mixes devices fails there.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import emulated_device
import normed_parts
import pytest
import torch
import torch.nn.functional as F
from emulated_device import NAME, copies_to_host, parameters_kept
from holding_parts import OPTIMIZERS, optimizer_of, step
from networks import KINDS, make
from processes import calling_process
from torch import nn
from torch.utils._pytree import tree_map_only
from training_parts import CONFIG, StoppedError, chancy_network, repeatable, stopping_at

import snip
from snip.data import Dataset, load
from snip.integrations.torch_prune import from_pruned, to_pruned
from snip.methods import METHODS
from snip.methods.kinds import AtInitialisation, exponential, one_shot
from snip.runs import RunConfig, run
from snip.training import TrainConfig, train

pytestmark = pytest.mark.skipif(
    not emulated_device.POSSIBLE, reason=emulated_device.IMPOSSIBLE
)  # an old torch is no fault of CI's
Call = Callable[..., Any]


@pytest.fixture(scope="module")
def on_device() -> Iterator[Call]:
    """Calls a function in the process that has the device."""
    with calling_process(emulated_device.register) as call:
        yield lambda work, *args: call(_repeatable, work, *args)


def _repeatable(work: Call, *args: Any) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        return work(*args)
    except pytest.fail.Exception as error:  # which cannot be sent to another process
        raise AssertionError(str(error)) from error


def moved(value: Any) -> Any:
    """A batch on the device."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(NAME), value)


def network(classes: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
        nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, classes),
    )  # fmt: skip


def batches(count: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(8) % 4
    return [(torch.randn(8, 4, 6, 6, generator=generator), labels) for _ in range(count)]


def pruned(**settings: Any) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], snip.Masks]:
    """A network on the device, a batch there, and its masks."""
    model, batch = network().to(NAME), moved(batches()[0])
    return model, batch, snip.prune(model, batch, **{"sparsity": 0.7, **settings})


def tensors_of(model: nn.Module, optimizer: Any = None) -> list[torch.Tensor]:
    """Parameters, buffers and gradients, and what an optimiser keeps of the size of a parameter."""
    found = [*model.parameters(), *model.buffers()]
    found += [p.grad for p in model.parameters() if p.grad is not None]
    kept = [] if optimizer is None else [x for s in optimizer.state.values() for x in s.values()]
    return found + [x for x in kept if isinstance(x, torch.Tensor) and x.ndim]


def assert_there(model: nn.Module, optimizer: Any = None) -> None:
    assert {tensor.device.type for tensor in tensors_of(model, optimizer)} == {NAME}


def refuse_to_mix_devices() -> None:
    """The emulation itself: what it refuses, and what it counts."""
    here, there = torch.ones(3, 4), torch.ones(3, 4, device=NAME)
    for mixed in (
        lambda: here + there,
        lambda: there.mul_(here),
        lambda: F.linear(there, here),
        lambda: torch.cat([here, there]),
        lambda: torch.where(here > 0, there, 0),
        lambda: there[here > 0],
        lambda: there.bernoulli_(generator=torch.Generator()),
    ):
        with pytest.raises(RuntimeError, match=r"[Ee]xpected .*device|found one on the CPU"):
            mixed()
    with copies_to_host() as copies:
        assert (there * torch.tensor(2.0)).sum().item() == 24
        assert there.t().reshape(-1)[:5].tolist() == [1] * 5
        assert torch.equal((there > 0).cpu(), here > 0)
        there.copy_(here)
    assert copies == [(1, torch.float32), (5, torch.float32), (12, torch.bool)]


def test_devices_do_not_mix(on_device: Call) -> None:
    on_device(refuse_to_mix_devices)


# ---- pruning ----

STARTS = [name for name, method in METHODS.items() if isinstance(method, AtInitialisation)]
TRAINED = [name for name in METHODS if name not in STARTS]
HALF = {"sparsity": 0.5}
ASKED: dict[str, dict[str, Any]] = {
    **{
        f"{name}, {granularity}": {"method": name, "granularity": granularity, **HALF}
        for name in STARTS
        for granularity in ("element", "channel", "4x4")
        if (name, granularity) != ("erk", "channel")  # is refused: erk has shares of its own
    },
    **{f"{n}, 2:4": {"method": n, "granularity": "2:4"} for n in STARTS if n != "erk"},
    **{
        f"three batches, {reduction}": {"scoring": snip.Scoring(reduction=reduction), **HALF}
        for reduction in ("abs_of_sum", "sum_of_abs", "ema")
    },
    **{f"scope {scope}": {"scope": scope, **HALF} for scope in ("layer", "uniform", "erk")},
    "scope by layer": {"scope": {"0": 0.4, "3": 0.6, "7": 0.5}, "sparsity": 0.5},
    "floor, count": {"floor": 3, "sparsity": 0.97},
    "floor, fraction": {"floor": 0.02, "sparsity": 0.95},
    "floor, none": {"floor": 0, "sparsity": 0.99},
    "floor, auto": {"sparsity": 0.99},
    "floor of blocks": {"floor": 0.05, "granularity": "4x4", **HALF},
    "flops": {"budget": "flops", **HALF},
    "flops, channel": {"budget": "flops", "granularity": "channel", **HALF},
    "biases kept": {"biases": "keep", **HALF},
    "authors": {"scoring": snip.Scoring.authors(), "floor": 0, **HALF},
    "sum of losses": {"scoring": snip.Scoring(loss_reduction="sum"), **HALF},
    "own loss": {"loss_fn": lambda model, batch: model(batch[0]).square().sum(), **HALF},
    "some layers": {"params": lambda name, module, p: isinstance(module, nn.Conv2d), **HALF},
}


def settings_of(case: str) -> dict[str, Any]:
    """The settings of a case; methods with many rounds do few."""
    method = METHODS[ASKED[case].get("method", "snip")]
    assert isinstance(method, AtInitialisation)
    if method.rounds is one_shot:
        return ASKED[case]
    return {**ASKED[case], "method": dataclasses.replace(method, rounds=exponential(3))}


def assert_alike(found: snip.Masks, expected: snip.Masks) -> None:
    """As many connections and, but for rounding, the same."""
    assert found.kept == expected.kept
    same = sum(int((found[name] == mask).sum()) for name, mask in expected.items())
    assert same >= 0.99 * expected.total


def masked(tensor: torch.Tensor, name: str, masks: snip.Masks) -> torch.Tensor:
    """What should be left of a tensor of the model's."""
    return tensor * masks[name].to(NAME) if name in masks else tensor


def prune_as_on_the_cpu(case: str) -> None:
    """The masks of the CPU; of the model only what they remove is changed."""
    settings, given = settings_of(case), batches(3 if case.startswith("three") else 1)
    expected = snip.prune(network(), given, **settings)
    model = network().to(NAME)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(model.state_dict())
    masks = snip.prune(model, moved(given), **settings)
    assert_alike(masks, expected)
    assert_there(model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, masked(before[name], name, masks))
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, masked(torch.ones_like(parameter), name, masks))


@pytest.mark.parametrize("case", ASKED)
def test_prune(on_device: Call, case: str) -> None:
    on_device(prune_as_on_the_cpu, case)


def prune_trained(method: str) -> None:
    """Batches are on the CPU, as a DataLoader gives them; OBD draws some of so many classes."""
    model = network(classes=24).to(NAME)
    training = TrainConfig(iterations=24, batch_size=8, lr_drops=(), lr=0.05)
    masks = snip.prune(model, batches(3), sparsity=0.6, method=method, training=training)
    assert masks.kept == round(masks.total * (1 - 0.6))
    masks.check(model)
    assert_there(model)


@pytest.mark.parametrize("method", TRAINED)
def test_prune_trained(on_device: Call, method: str) -> None:
    on_device(prune_trained, method)


def count_copies(case: str) -> None:
    """A bool for each connection, and beside these only numbers: no score leaves the device.

    The numbers are a few of each parameter and of each look for the threshold.
    """
    model, batch = network().to(NAME), moved(batches())
    with copies_to_host() as copies:
        masks = snip.prune(model, batch, **settings_of(case))
    bools = sum(count for count, dtype in copies if dtype == torch.bool and count > 1)
    numbers = [count for count, dtype in copies if dtype != torch.bool or count == 1]
    assert bools <= masks.total
    assert max(numbers) <= 64
    assert sum(numbers) <= 64 * len(tensors_of(model)) + 300


@pytest.mark.parametrize(
    "case", ["snip, element", "snip, 2:4", "flops", "scope erk", "biases kept", "authors"]
)
def test_no_score_is_copied_to_the_host(on_device: Call, case: str) -> None:
    on_device(count_copies, case)


def prune_network(kind: str) -> None:
    """Pruned, reported and trained."""
    twin, batch = make(kind)
    model = copy.deepcopy(twin)
    with parameters_kept():  # tied ones stay tied
        model.to(NAME)
    expected = snip.prune(twin, batch, sparsity=0.6)
    assert_alike(snip.prune(model, moved(batch), sparsity=0.6), expected)
    expected.apply(model)
    found = snip.report(model, inputs=moved(batch[0]))
    assert found.to_dict() == snip.report(twin, inputs=batch[0]).to_dict()
    optimizer = optimizer_of("AdamW", model)
    for _ in range(2):
        step(model, moved(batch), optimizer)
    expected.check(model)
    assert_there(model, optimizer)


@pytest.mark.parametrize("kind", KINDS)
def test_networks(on_device: Call, kind: str) -> None:
    on_device(prune_network, kind)


def prune_normed(norm: str, settings: dict[str, Any]) -> None:
    """Weight norm and spectral norm: what they divide by survives, and zeros do through a step."""
    apply, _ = normed_parts.NORMS[norm]
    expected = snip.prune(normed_parts.network(apply), normed_parts.batch(), **settings)
    model, batch = normed_parts.network(apply).to(NAME), moved(normed_parts.batch())
    masks = snip.prune(model, batch, **settings)
    assert_alike(masks, expected)
    optimizer = optimizer_of("AdamW", model)
    step(model, batch, optimizer)
    masks.check(model)
    assert model(batch[0]).isfinite().all()
    assert_there(model, optimizer)


@pytest.mark.parametrize("norm", normed_parts.NORMS)
@pytest.mark.parametrize(
    "settings",
    [HALF, {"method": "magnitude", **HALF}, {"granularity": "2:4"}, {"granularity": "4x4", **HALF}],
    ids=str,
)
def test_norms(on_device: Call, norm: str, settings: dict[str, Any]) -> None:
    on_device(prune_normed, norm, settings)


# ---- training ----

# SparseAdam takes sparse gradients only, and sparse tensors are not emulated.
WAYS = [
    (name, way)
    for name in OPTIMIZERS
    if name != "SparseAdam"
    for way in ({}, {"foreach": True}, {"foreach": False}, {"fused": True}, {"capturable": True})
    if way.keys() <= signature(getattr(torch.optim, name)).parameters.keys()
]


def hold_zeros(name: str, way: dict[str, bool]) -> None:
    model, batch, masks = pruned()
    before = model[0].weight.detach().clone()
    optimizer = optimizer_of(name, model, **way)
    for _ in range(3):
        step(model, batch, optimizer, clip=0.1)
        masks.check(model)
    assert_there(model, optimizer)
    assert name == "Muon" or not torch.equal(model[0].weight, before)


@pytest.mark.parametrize(("name", "way"), WAYS, ids=str)
def test_zeros_stay_zero(on_device: Call, name: str, way: dict[str, bool]) -> None:
    on_device(hold_zeros, name, way)


def scoring_batch(dataset: Dataset) -> Any:
    return moved(next(iter(dataset.evaluation_batches(50))))


def train_on_mnist(model: nn.Module, dataset: Dataset, **settings: Any) -> Any:
    config = dataclasses.replace(CONFIG, iterations=24, lr_drops=(12,), eval_every=8)
    return train(model, dataset, config, progress=False, **settings)


def resume(folder: str) -> None:
    """To the same bits, the device's own random numbers included: the network has dropout."""
    dataset = load("mnist").subset(600, 100)
    whole, stopped, fresh = (chancy_network().to(NAME) for _ in range(3))
    masks = snip.prune(whole, scoring_batch(dataset), sparsity=0.8)
    for model in (stopped, fresh):
        masks.apply(model)
    drawn = torch.emulated.get_rng_state()
    expected = train_on_mnist(whole, dataset)
    assert torch.equal(torch.emulated.get_rng_state(), drawn)
    with pytest.raises(StoppedError):
        train_on_mnist(stopped, dataset, folder=folder, checkpoint_seconds=0, step=stopping_at(15))
    torch.rand(5, device=NAME)
    found = train_on_mnist(fresh, dataset, folder=folder)
    assert repeatable(found.history) == repeatable(expected.history)
    for name, value in whole.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value)
    masks.check(fresh)
    assert_there(fresh)


def run_in_folder(folder: str) -> None:
    """Pruned and trained on the device, finished, and read again."""
    short = TrainConfig(iterations=6, batch_size=50, lr_drops=(), eval_every=3)
    config = RunConfig("lenet-300-100", 0.95, train=short)
    first, again = (run(config, folder, device=NAME, progress=False) for _ in range(2))
    assert first.device == NAME
    assert first.engine["engine"] == "dense"
    assert again == first


def leave_random_states(_folder: str) -> None:
    """Dropout draws on the device while it scores; a training on the CPU seeds the CPU alone."""
    dataset, on_cpu, model = load("mnist").subset(600, 100), chancy_network(), chancy_network()
    torch.rand(5, device=NAME)
    drawn = torch.emulated.get_rng_state()
    snip.prune(model.to(NAME), scoring_batch(dataset), sparsity=0.8)
    assert torch.equal(torch.emulated.get_rng_state(), drawn)
    train_on_mnist(on_cpu, dataset)
    assert torch.equal(torch.emulated.get_rng_state(), drawn)


def scale_gradients(_folder: str) -> None:
    """Mixed precision."""
    model, (inputs, labels), masks = pruned()
    optimizer, scaler = optimizer_of("AdamW", model), torch.amp.GradScaler(NAME)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast(NAME, dtype=torch.bfloat16):
            outputs = model(inputs)
            loss = F.cross_entropy(outputs, labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        masks.check(model)
    assert outputs.dtype == torch.bfloat16
    assert_there(model, optimizer)


def ask_for_engines(_folder: str) -> None:
    """A training runs dense, and says so where sparse was asked for."""
    dataset = load("mnist").subset(600, 100)
    for engine, words in (("auto", []), ("sparse", ["dense", NAME])):
        model = chancy_network().to(NAME)
        snip.prune(model, scoring_batch(dataset), sparsity=0.8)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            train_on_mnist(model, dataset, engine=engine)
        assert bool(said) == bool(words)
        assert all(word in str(one.message) for one in said for word in words)
        assert_there(model)


# ---- everything else ----


def make_sparse_and_dense(_folder: str) -> None:
    """`accelerate` gives the model back with a sentence, `densify` a copy."""
    model, batch, masks = pruned()
    for ways in (None, {}):
        with pytest.warns(snip.SnipWarning, match=f"dense.*{NAME}"):
            assert snip.accelerate(model, batch, ways=ways) is model
    copied = snip.densify(model)
    masks.check(copied)
    assert_there(copied)
    take_step = snip.training_step(model, optimizer_of("SGD", model))
    take_step(*batch)
    masks.check(model)


def move_an_accelerated_one(_folder: str) -> None:
    """Accelerated on the CPU it computes on the device too, if slowly."""
    model, batch = network().eval(), batches()[0]
    masks = snip.prune(model, batch, sparsity=0.7)
    fast = snip.accelerate(model, batch, ways={})
    expected = fast(batch[0])
    found = fast.to(NAME)(moved(batch[0]))
    torch.testing.assert_close(found.cpu(), expected)
    found.sum().backward()
    assert_there(fast)
    masks.check(snip.densify(fast))


def move_a_pruned_one(_folder: str) -> None:
    """Pruned on the CPU, trained on the device, and back."""
    model, batch = network(), batches()[0]
    masks = snip.prune(model, batch, sparsity=0.7)
    for there in (moved(batch), batch):
        with parameters_kept():
            model.to(there[0].device)
        optimizer = optimizer_of("AdamW", model)
        for _ in range(2):
            step(model, there, optimizer)
        masks.check(model)
        assert snip.held_masks(model) == masks


def copy_and_load(_folder: str) -> None:
    """Copies, pickles and state dicts of a held model hold its zeros, on the device."""
    model, batch, masks = pruned()
    file = io.BytesIO()
    torch.save(model, file)
    loaded = network().to(NAME)
    masks.apply(loaded)
    loaded.load_state_dict(
        {n: v if n not in masks else torch.ones_like(v) for n, v in model.state_dict().items()}
    )
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False), loaded):
        assert snip.held_masks(other) == masks
        step(other, batch, optimizer_of("AdamW", other))
        masks.check(other)
        assert_there(other)


def keep_masks_in_files(folder: str) -> None:
    model, batch, masks = pruned()
    path = Path(folder, "masks.safetensors")
    masks.save(path)
    assert snip.Masks.load(path) == masks
    assert snip.Masks(moved(dict(masks))) == masks
    other = network().to(NAME)
    snip.Masks.load(path).apply(other)
    masks.check(other)
    guessed = snip.Masks.from_zeros(other)
    assert all(torch.equal(mask, masks[n]) for n, mask in guessed.items() if masks[n].any())
    snip.release(other)
    assert snip.held_masks(other) is None
    assert_there(other)
    further = snip.prune(model, batch, sparsity=0.8)
    assert (further & masks) == further


def shrink(_folder: str) -> None:
    model, batch, _ = pruned(granularity="channel")
    small = snip.shrink(model.eval(), batch[0])
    assert sum(map(torch.numel, small.parameters())) < sum(map(torch.numel, model.parameters()))
    torch.testing.assert_close(small(batch[0]), model(batch[0]))
    assert_there(small)


def export(folder: str) -> None:
    """A compact file is read back; the file of ONNX is that of the CPU."""
    model, batch, masks = pruned()
    path = Path(folder, "model.snip")
    snip.compact.save(model, path)
    other = snip.compact.load(path, network().to(NAME))
    masks.check(other)
    assert_there(other)
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    if find_spec("onnx") is not None:
        snip.export_onnx(model.eval(), batch[0], Path(folder, "model.onnx"))
        assert_there(model)


def exchange_with_torch(_folder: str) -> None:
    """To and from torch.nn.utils.prune, a new draw of the weights, and the stages one by one."""
    model, batch, masks = pruned()
    to_pruned(model)
    model(batch[0])
    assert from_pruned(model) == masks
    snip.initialize(model, "vs", seed=0)
    masks.check(model)
    assert_there(model)
    scores = snip.connection_sensitivity(network().to(NAME), batch)
    assert {score.device.type for score in scores.values()} == {NAME}
    on_host = {name: score.cpu() for name, score in scores.items()}
    within = snip.select(scores, sparsity=0.3)
    for settings in ({}, {"within": within}, {"within": moved(dict(within))}):
        found = snip.select(scores, sparsity=0.6, **settings)
        assert found == snip.select(on_host, sparsity=0.6, within=settings.get("within") and within)


def select_among_many_ties(_folder: str) -> None:
    """The first among equals stay, as on the CPU, however the scores are cut into pieces."""
    scores = {"a": torch.randint(4, (1100, 1000)).double(), "b": torch.randint(4, (9, 7)).float()}
    for sparsity in (0.3, 0.9):
        assert snip.select(moved(scores), sparsity=sparsity) == snip.select(
            scores, sparsity=sparsity
        )


def hold_a_large_layer(_folder: str) -> None:
    """With much and with little left of it."""
    for sparsity in (0.5, 0.995):
        model, batch = nn.Linear(600, 600).to(NAME), moved((torch.randn(4, 600), torch.arange(4)))
        masks = snip.prune(model, batch, sparsity=sparsity)
        optimizer = optimizer_of("AdamW", model)
        for _ in range(2):
            step(model, batch, optimizer)
            masks.check(model)
        pruned_weights = model.weight.detach()[~masks["weight"].to(NAME)]
        assert not pruned_weights.signbit().any()
        assert_there(model, optimizer)


class Split(nn.Module):
    """A network on two devices."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 4, device=NAME)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)).to(NAME))


def prune_on_two_devices(_folder: str) -> None:
    batch = torch.randn(8, 8), moved(torch.arange(8) % 4)
    ways: list[dict[str, Any]] = [
        {"method": name, **HALF} for name in ("snip", "grasp", "magnitude")
    ]
    ways += [
        {"granularity": "2:4"},
        {"granularity": "channel", **HALF},
        {"budget": "flops", **HALF},
    ]
    for settings in ways:
        model = Split()
        masks = snip.prune(model, batch, **settings)
        optimizer = optimizer_of("AdamW", model)
        step(model, batch, optimizer)
        masks.check(model)
        assert [p.device.type for p in model.parameters()] == ["cpu"] * 2 + [NAME] * 2


def name_the_devices(_folder: str) -> None:
    """A batch that was forgotten on the CPU."""
    with pytest.raises(snip.InputError, match=f"batch is on cpu and the model on {NAME}"):
        snip.prune(network().to(NAME), batches()[0], sparsity=0.5)


def prune_other_types(_folder: str) -> None:
    """Half precision and double."""
    inputs, labels = batches()[0]
    for dtype in (torch.bfloat16, torch.float64):
        expected = snip.prune(network().to(dtype), (inputs.to(dtype), labels), sparsity=0.7)
        batch = moved((inputs.to(dtype), labels))
        assert_alike(snip.prune(network().to(dtype).to(NAME), batch, sparsity=0.7), expected)


def wake_parts_that_start_at_zero(_folder: str) -> None:
    """Scored as the CPU draws them, and given back as they were."""
    models = network(), network().to(NAME)
    for model in models:
        nn.init.zeros_(model[-1].weight)
    expected, found = (
        snip.prune(model, batch, sparsity=0.5)
        for model, batch in zip(models, (batches()[0], moved(batches()[0])), strict=True)
    )
    assert_alike(found, expected)
    assert not models[1][-1].weight.any()


OTHER_USES: list[Callable[[str], None]] = [
    resume, run_in_folder, leave_random_states, scale_gradients, ask_for_engines,
    make_sparse_and_dense, move_an_accelerated_one, move_a_pruned_one, copy_and_load,
    keep_masks_in_files, shrink, export, exchange_with_torch, select_among_many_ties,
    hold_a_large_layer, prune_on_two_devices, name_the_devices, prune_other_types,
    wake_parts_that_start_at_zero,
]  # fmt: skip


@pytest.mark.parametrize("work", OTHER_USES, ids=lambda work: work.__name__)
def test_other_uses(on_device: Call, work: Call, tmp_path: Path) -> None:
    on_device(work, str(tmp_path))
