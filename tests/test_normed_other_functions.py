"""Reports, initialisers, copies, files, accelerate and shrink on weights under a norm."""

import copy

import pytest
import torch
from expected_warnings import expects
from normed_parts import NORMS, batch, effective, network
from torch import nn

import snip
from snip.network.norms import normed_weights


@pytest.mark.parametrize("kind", NORMS)
def test_the_report_is_that_of_the_plain_network_under_the_same_masks(kind):
    norm, stored = NORMS[kind]
    model, plain = network(norm), network()
    masks = snip.prune(model, batch(), sparsity=0.95)
    found = snip.report(model, inputs=batch()[0])
    renamed = snip.Masks({name.replace(stored, "weight"): mask for name, mask in masks.items()})
    renamed.apply(plain)
    expected = snip.report(plain, inputs=batch()[0])
    assert found.flops_before == expected.flops_before
    assert found.effective_kept == expected.effective_kept < found.kept
    units = {row.name: (row.units, row.dead_units) for row in expected.rows}
    assert units == {
        row.name.replace(stored, "weight"): (row.units, row.dead_units) for row in found.rows
    }


@pytest.mark.parametrize("kind", NORMS)
def test_initialize_draws_them_too(kind):
    norm, stored = NORMS[kind]
    model, plain = network(norm), network()
    masks = snip.prune(model, batch(), sparsity=0.5)
    snip.initialize(model, "vs-h", seed=3)
    snip.initialize(plain, "vs-h", seed=3)
    masks.check(model)
    for name, weight in effective(model).items():
        drawn = plain.get_parameter(name.replace(stored, "weight"))
        kept = normed_weights(model)[name].stored[masks[name]]
        assert weight.isfinite().all()
        if kind == "spectral":  # torch orders the parameters of the other kinds otherwise
            assert torch.equal(kept, drawn[masks[name]])


@pytest.mark.parametrize("kind", NORMS)
@expects("untraced")
def test_copies_and_files_keep_them(kind, tmp_path):
    model = network(NORMS[kind][0])
    masks = snip.prune(model, batch(), sparsity=0.8)
    outputs = model.eval()(batch()[0]).detach()
    with torch.no_grad():
        model(batch()[0])  # torch's hooks leave a graph behind, which deepcopy cannot take
    copied = copy.deepcopy(model)
    assert snip.held_masks(copied) == masks
    found = snip.Masks.from_zeros(copied)  # a bias that is gone whole has none there
    assert all(torch.equal(found[name], masks[name]) for name in found)
    assert all(name in found or not masks[name].any() for name in masks)
    masks.save(tmp_path / "masks")
    again = network(NORMS[kind][0]).eval()
    snip.Masks.load(tmp_path / "masks").apply(again)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(batch()[0]), outputs)
    torch.testing.assert_close(snip.accelerate(model, batch())(batch()[0]), outputs)


@expects("losses")
def test_a_recurrent_layer_under_a_norm_is_counted_as_one_without():
    class Last(nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.rnn = nn.LSTM(3, 4, batch_first=True)
            norm(self.rnn, "weight_hh_l0")

        def forward(self, x):
            return self.rnn(x)[0][:, -1]

    inputs = torch.randn(5, 7, 3), torch.arange(5) % 4
    for norm, _ in NORMS.values():
        model = Last(norm)
        snip.prune(model, inputs, sparsity=0.5)
        rows = {row.name: row for row in snip.report(model, inputs=inputs[0]).rows}
        assert {row.flops_before for row in rows.values() if len(row.shape) > 1} == {
            2 * 7 * 16 * 3,
            2 * 7 * 16 * 4,
        }
        assert [row.units for row in rows.values() if row.units] == [4]


@pytest.mark.filterwarnings("ignore")
def test_networks_under_the_old_weight_norm_are_accelerated_and_shrunk():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.utils.weight_norm(nn.Conv1d(2, 4, 3)), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
    )
    batch = torch.randn(5, 2, 8), torch.arange(5) % 3
    snip.prune(model, batch, sparsity=0.5)
    result = model(batch[0])  # the computed weight has a graph now, which torch does not copy
    assert model[0].weight.grad_fn is not None
    fast = snip.accelerate(model, batch, ways={})
    torch.testing.assert_close(fast(batch[0]), result)
    torch.testing.assert_close(snip.shrink(model, batch).eval()(batch[0]), model.eval()(batch[0]))
