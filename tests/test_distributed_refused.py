"""Mistakes of processes that prune together: named in every process, before anything is changed."""

import warnings

import pytest
import torch
from distributed_mistakes import CASES
from distributed_parts import data, mlp, shared
from processes import found_in_processes

import snip


def values(model):
    return [(p.to_local() if hasattr(p, "to_local") else p).clone() for p in model.parameters()]


# Functions that want a model of one process, and what they say of one that is shared.
OTHER_USES = {
    f"{function} of {way}": (way, use, said)
    for way, said in (("ddp", "wrapped in DDP for 2 processes"), ("fsdp", "has a part"))
    for function, use in {
        "accelerate": lambda model, _: snip.accelerate(model, data()),
        "shrink": lambda model, _: snip.shrink(model, data()),
        "densify": lambda model, _: snip.densify(model),
        "report": lambda model, _: snip.report(model),
        "compact.save": lambda model, folder: snip.compact.save(model, f"{folder}/none"),
        "export_onnx": lambda model, folder: snip.export_onnx(model, data(), f"{folder}/none"),
    }.items()
    if way == "fsdp" or function in ("accelerate", "shrink")
}


def _sentence(case, rank, folder):
    way, use, _ = case
    model = shared(mlp(), way)
    snip.prune(model, data(), sparsity=0.5)
    with pytest.raises(snip.InputError) as refused:
        use(model, folder)
    return str(refused.value)


def refuse_in_a_process(rank, count, folder):
    found = {}
    for name, (share, settings, _) in CASES.items():
        given = {"sparsity": 0.5, "batches": data(), **settings(rank)}
        network = given.pop("network", lambda _: mlp())
        model = share(network(rank))
        given.pop("before", lambda *_: None)(model, rank)
        before, held = values(model), snip.held_masks(model)
        try:
            snip.prune(model, given.pop("batches"), **given)
        except (snip.InputError, RuntimeError) as error:
            after = values(model)
            same = all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
            found[name] = str(error), same, snip.held_masks(model) == held
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        snip.prune(mlp(), data(), sparsity=0.5)
    found["on its own"] = [str(warning.message) for warning in said]
    found |= {name: _sentence(use, rank, folder) for name, use in OTHER_USES.items()}
    torch.save(found, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    return found_in_processes(refuse_in_a_process, folder)


@pytest.mark.parametrize("name", CASES)
def test_every_process_is_told_and_nothing_is_changed(name, found):
    for theirs in found:
        sentence, same, unheld = theirs[name]
        assert CASES[name][2] in sentence
        assert same
        assert unheld


def test_a_process_that_prunes_a_model_of_its_own_is_warned(found):
    """The first one is not: it may prune for all of them."""
    first, second = (theirs["on its own"] for theirs in found)
    assert first == []
    assert len(second) == 1
    assert "process 1 of 2 prunes a model that it does not share" in second[0]


@pytest.mark.parametrize("name", OTHER_USES)
def test_functions_for_a_whole_model_say_so(name, found):
    for theirs in found:
        assert OTHER_USES[name][2] in theirs[name]
