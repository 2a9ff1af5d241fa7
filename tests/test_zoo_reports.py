"""Reports of networks that people bring: every one whole, with the totals of a plain recount."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from zoo_networks import ZOO, transformers

import snip
from snip.network.calls import call, first_tensor
from snip.network.layout import layout_of
from snip.network.network import Network
from snip.network.paths import follow

NETWORKS = {network.name: network for network in ZOO}
COUNTED = (  # small ones, of which FlopCounterMode counts every layer
    "gpt-2", "bert", "llama", "gan", "tied", "packed-lstm", "audio-1d", "video-3d", "u-net",
    "mobilenet-v3", "vit",
)  # fmt: skip
# What FlopCounterMode counts beside products with weights: attention's own.
ATTENTION = ("attention", "bmm")


def few(inputs):
    """Two samples are enough."""
    if isinstance(inputs, dict):
        return {key: few(value) for key, value in inputs.items()}
    return inputs[:2] if isinstance(inputs, torch.Tensor) else tuple(map(few, inputs))


def reported(name):
    """A network of the zoo that keeps about half of each parameter, its input, its report."""
    torch.manual_seed(0)
    network = NETWORKS[name]
    model, inputs = network.build().eval(), few(network.inputs(network.batch()))
    chosen = snip.prunable_parameters(model)
    for parameter in chosen.values():  # no zeros but those of the masks
        nn.init.normal_(parameter, std=0.02)
    snip.Masks({n: torch.rand(p.shape) < 0.5 for n, p in chosen.items()}).apply(model)
    return model, inputs, snip.report(model, inputs=inputs)


def counted_flops(model, inputs):
    """The FLOPs per sample of products with weights, as torch counts them."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        call(model, inputs)
    found = counter.get_flop_counts()["Global"]
    products = sum(n for op, n in found.items() if not any(word in str(op) for word in ATTENTION))
    return products / len(first_tensor(inputs))


@pytest.mark.parametrize("name", COUNTED)
def test_counts_and_flops_are_those_of_a_recount(name):
    model, inputs, report = reported(name)
    named = dict(model.named_parameters())
    assert [row.name for row in report.rows] == [n for n in named if n not in report.left_out]
    for row in report.rows:
        assert (row.total, row.kept) == (named[row.name].numel(), named[row.name].count_nonzero())
    assert report.parameters == sum(p.numel() for p in model.parameters())
    assert report.parameters - report.parameters_left == report.total - report.kept
    assert report.effective_kept is not None, report.notes
    biases = sum(row.flops_before for row in report.rows if len(row.shape) == 1)
    assert report.flops_before - biases == counted_flops(model, inputs)


@pytest.mark.parametrize("name", sorted({*NETWORKS} - {*COUNTED} - {"vgg-11-bn"}))  # 129M weights
def test_the_others_have_whole_reports_too(name):
    model, _, report = reported(name)
    assert report.parameters == sum(p.numel() for p in model.parameters())
    assert report.flops_before > report.flops_after > 0
    assert report.effective_kept is not None, report.notes
    assert len(repr(report)) < 200
    assert report.model in repr(report)


def test_conv1d_of_hugging_face_is_a_linear_layer_turned_round():
    layer = transformers.pytorch_utils.Conv1D(3, 5)  # five inputs, three units
    mask = torch.zeros(5, 3).bool()
    mask[1, :2] = True
    masks = snip.Masks({"weight": mask})
    masks.apply(layer)
    assert set(snip.prunable_parameters(layer)) == {"weight", "bias"}
    assert layout_of(layer, "weight", 2).fans(layer.weight.shape) == (5, 3)
    units = Network.of(layer).live_units(masks)["weight"]
    assert units.outputs.tolist() == [True, True, False]
    assert units.inputs.tolist() == [False, True, False, False, False]
    report = snip.report(layer, inputs=torch.zeros(2, 7, 5))
    (row,) = report.rows
    assert (row.units, row.dead_units, row.unconnected) == (3, 1, 0)
    assert (row.flops_before, row.flops_after) == (2 * 7 * 15, 2 * 7 * 2)

    class Own(transformers.pytorch_utils.Conv1D):
        """What a subclass does with its weight nobody knows."""

    assert not set(snip.prunable_parameters(nn.ModuleList([Own(3, 5)])))


def test_gpt2_prunes_by_itself_and_names_its_tied_embedding():
    torch.manual_seed(0)
    network = NETWORKS["gpt-2"]
    model, batch = network.build(), network.batch()
    masks = snip.prune(model, batch, sparsity=0.9, loss_fn=network.loss_fn)
    assert masks.total == 4 * (12 * 256 * 256 + 9 * 256)  # per block: four Conv1D with biases
    report = snip.report(model, inputs=batch)
    assert report.left_out["transformer.wte.weight"] == "embedding, tied to 'lm_head.weight'"
    assert report.left_out_sizes["transformer.wte.weight"] == 256 * 256
    text = " ".join(str(report).split())
    assert "embedding, tied to 'lm_head.weight' (65,536 in 1 tensor, 2.02% of the model)" in text
    assert 0 < report.effective_kept <= report.kept


def test_a_dead_unit_of_conv1d_is_on_no_path():
    conv1d = transformers.pytorch_utils.Conv1D
    model = nn.Sequential(conv1d(4, 3), nn.ReLU(), conv1d(2, 4))
    second = torch.ones(4, 2).bool()
    second[1] = False  # nothing reads unit 1 of the first layer
    masks = {"0.weight": torch.ones(3, 4).bool(), "2.weight": second}
    found = follow(model, masks, torch.zeros(1, 3))
    assert found.effective["0.weight"].any(0).tolist() == [True, False, True, True]


def test_the_critic_of_a_gan_counts():
    network = NETWORKS["gan"]
    model = network.build()
    snip.prune(model, network.batch(), sparsity=0.98, loss_fn=network.loss_fn)
    report = snip.report(model)
    assert report.sparsity == pytest.approx(0.98, abs=1e-4)
    assert report.model_sparsity == pytest.approx(0.98, abs=1e-3)


@pytest.mark.parametrize("separate", [False, True])
def test_attention_projections(separate):
    sizes = {"kdim": 6, "vdim": 10} if separate else {}
    attention = nn.MultiheadAttention(8, 2, batch_first=True, **sizes)
    names = [n for n in snip.prunable_parameters(attention) if n.endswith("weight")]
    masks = {n: torch.ones(attention.get_parameter(n).shape).bool() for n in names}
    masks["out_proj.weight"][:, 3] = False  # nobody reads the fourth value
    values = "v_proj_weight" if separate else "in_proj_weight"
    inputs = tuple(torch.zeros(1, 5, size) for size in (8, *(sizes.values() or (8, 8))))
    found = follow(attention, masks, inputs)
    dead = 3 if separate else 16 + 3  # behind the queries and keys
    assert not found.effective[values][dead].any()
    assert found.effective[values].sum() == masks[values].sum() - masks[values].shape[1]
    snip.Masks(masks).apply(attention)
    rows = {row.name: row for row in snip.report(attention, inputs=inputs).rows}
    assert rows[values].units == len(masks[values])
    assert rows[values].dead_units == 1
    assert all(row.flops_before == 2 * 5 * row.total for row in rows.values())
