"""Uses per weight and FLOPs against hand counts."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from snip.network.calls import arguments
from snip.network.reader import Reader, look, used_outside
from snip.selection.costs import flops, flops_per_element


def uses(model, inputs):
    return look(model, arguments(model, inputs)).uses


def test_linear_counts_the_leading_dimensions():
    assert uses(nn.Linear(3, 4), torch.ones(5, 3)) == {"weight": 1, "bias": 1}
    assert uses(nn.Linear(3, 4), torch.ones(5, 7, 3)) == {"weight": 7, "bias": 7}


@pytest.mark.parametrize(
    ("layer", "shape", "weight", "bias"),
    [
        (nn.Conv1d(2, 3, 3), (2, 10), 8, 8),
        (nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), (2, 8, 8), 16, 16),
        (nn.Conv3d(1, 2, 2), (1, 3, 3, 3), 8, 8),
        (nn.ConvTranspose2d(2, 3, 2, stride=2), (2, 4, 4), 16, 64),
        (nn.ConvTranspose1d(2, 4, 3, groups=2), (2, 5), 5, 7),
    ],
)
def test_convolutions_count_positions(layer, shape, weight, bias):
    assert uses(layer, torch.ones(3, *shape)) == {"weight": weight, "bias": bias}


def test_same_padding_and_dilation_count_what_comes_out():
    layer = nn.Conv2d(1, 1, 3, dilation=2, padding="same", bias=False)
    assert uses(layer, torch.ones(2, 1, 6, 6)) == {"weight": 36}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_count_steps_in_either_layout(kind):
    first = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    found = uses(first, torch.ones(2, 5, 3))
    assert set(found) == {name for name, _ in first.named_parameters()}
    assert set(found.values()) == {5.0}
    assert set(uses(kind(3, 4), torch.ones(5, 2, 3)).values()) == {5.0}


def test_time_first_layer_inside_a_batch_first_model():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.fc = nn.GRU(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(self.rnn(x.transpose(0, 1))[0][-1])

    found = uses(Turned(), torch.ones(2, 5, 3))
    assert found["rnn.weight_hh_l0"] == 5
    assert found["fc.weight"] == 1


def test_packed_sequences_count_real_steps():
    packed = pack_padded_sequence(torch.ones(2, 5, 3), torch.tensor([5, 1]), batch_first=True)
    assert set(uses(nn.LSTM(3, 4, batch_first=True), packed).values()) == {3.0}


def test_cells_count_their_calls():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTMCell(3, 4)

        def forward(self, x):
            state = None
            for step in x.unbind(1):
                state = self.cell(step, state)
            return state[0]

    assert set(uses(Loop(), torch.ones(2, 6, 3)).values()) == {6.0}


def test_attention_counts_tokens_although_out_proj_is_never_called():
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.ones(3, 5, 4)
    found = uses(layer, (x, x, x))
    assert found == {
        "in_proj_weight": 5,
        "in_proj_bias": 5,
        "out_proj.weight": 5,
        "out_proj.bias": 5,
    }


def test_cross_attention_with_other_widths():
    layer = nn.MultiheadAttention(4, 2, kdim=6, vdim=8, batch_first=True)
    given = {"query": torch.ones(2, 3, 4), "key": torch.ones(2, 7, 6), "value": torch.ones(2, 7, 8)}
    found = uses(layer, given)
    assert (found["q_proj_weight"], found["k_proj_weight"], found["v_proj_weight"]) == (3, 7, 7)
    assert found["out_proj.weight"] == 3


def test_transformer_layer_is_counted_in_eval_mode_too():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    found = uses(layer, torch.ones(2, 5, 4))
    assert found["self_attn.in_proj_weight"] == found["linear2.weight"] == 5
    assert "norm1.weight" not in found


def test_repeated_and_tied_layers_add_up():
    layer = nn.Linear(3, 3)
    twice = nn.Sequential(layer, nn.ReLU(), layer)
    assert uses(twice, torch.ones(2, 3)) == {"0.weight": 2, "0.bias": 2}
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    assert uses(tied, torch.ones(2, 3)) == {"0.weight": 2, "0.bias": 1, "1.bias": 1}


class Functions(nn.Module):
    """A forward that multiplies with weights by itself, in every spelling."""

    def __init__(self):
        super().__init__()
        self.encode, self.conv = nn.Linear(6, 4), nn.Conv1d(2, 3, 3)
        self.whole = nn.Parameter(torch.randn(4, 4))
        self.offset = nn.Parameter(torch.randn(4))
        self.unused = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        x = self.encode(x)
        x = nn.functional.linear(x, self.whole, self.offset)
        x = torch.addmm(self.offset, x, self.whole.chunk(2)[0].repeat(2, 1))
        x = x @ self.whole + torch.matmul(self.whole, x.t()).t()
        x = nn.functional.linear(input=x, weight=self.encode.weight.t())
        x = nn.functional.conv1d(x.view(-1, 2, 3), weight=self.conv.weight)
        return nn.functional.conv_transpose1d(x, self.conv.weight)


def test_functions_on_weights_count_like_layers():
    found = uses(Functions(), torch.ones(5, 6))
    assert found == {
        "encode.weight": 2,  # as a layer, and turned round
        "encode.bias": 1,
        "whole": 3,
        "offset": 2,
        "conv.weight": 2,
    }


def test_a_part_of_a_weight_is_used_by_its_part():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.whole = nn.Parameter(torch.randn(8, 3))

        def forward(self, x):
            return x @ self.whole[:2].t()

    model = Half()
    assert uses(model, torch.ones(5, 3)) == {"whole": 0.25}
    with torch.inference_mode():
        assert uses(model, torch.ones(5, 3)) == {"whole": 0.25}


class Scaled(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, (self.weight * 0.5).to(x.dtype), self.bias)


class Standardised(nn.Linear):
    def forward(self, x):
        centred = self.weight - self.weight.mean(1, keepdim=True)
        return nn.functional.linear(x, centred / centred.std(), self.bias)


@pytest.mark.parametrize(
    "layer",
    [
        Scaled(3, 4),
        Standardised(3, 4),
        parametrizations.spectral_norm(nn.Linear(3, 4)),
        parametrizations.orthogonal(nn.Linear(3, 4)),
    ],
    ids=["scaled", "standardised", "spectral norm", "orthogonal"],
)
@pytest.mark.parametrize("training", [False, True])
def test_what_is_computed_from_a_weight_alone_counts_as_the_weight(layer, training):
    model = nn.Sequential(layer).train(training)
    found = look(model, arguments(model, torch.ones(2, 5, 3)), training=training).uses
    (name,) = (n for n, p in model.named_parameters() if p.ndim == 2)
    assert found == {name: 5, "0.bias": 5}


def test_reading_tells_the_first_call_and_where_samples_are():
    model, first = nn.LSTM(3, 4), torch.ones(5, 2, 3)
    with Reader(model) as reader:
        model(first)
        model(torch.ones(5, 4, 3))
    seen = reader.seen
    assert seen.call.args[0] is first
    assert (seen.samples, seen.batches, seen.batch_dim) == (2 + 4, 2, 1)


def test_weights_used_while_their_layer_is_not_running_are_told():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.b(self.a(x)) @ self.a.weight

    model = Tied()
    call = arguments(model, torch.ones(2, 3))
    assert used_outside(model, [model.a, model.b], call) == {model.a.weight}


def test_what_a_loss_computes_with_weights_is_no_cost_of_the_model():
    model = nn.Sequential(nn.Linear(3, 3))
    with Reader(model) as reader:
        model(torch.ones(2, 3)).sum() + (model[0].weight @ model[0].weight.t()).sum()
    assert reader.seen.uses == {"0.weight": 1, "0.bias": 1}


def test_activation_checkpointing_counts_a_forward_once():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    model = Checkpointed()
    with Reader(model) as reader:
        model(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert reader.seen.uses == {"inner.weight": 1, "inner.bias": 1}


def test_a_compiled_model_is_not_compiled_anew():
    model = nn.Sequential(nn.Linear(3, 3))
    compiled = torch.compile(model, backend="eager")
    compiled(torch.ones(2, 3))
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with Reader(compiled) as reader:
        compiled(torch.ones(2, 3))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= before + 1  # for the hooks
    assert reader.seen.uses == {"0.weight": 1, "0.bias": 1}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= before + 1


def test_several_batches_average_per_sample():
    model = nn.Sequential(nn.Conv1d(1, 1, 1))
    with Reader(model) as reader:
        assert reader.seen.uses == {}
        model(torch.ones(2, 1, 4))
        model(torch.ones(6, 1, 4))
    assert reader.seen.uses == {"0.weight": 4, "0.bias": 4}


def test_hooks_go_also_when_the_forward_fails():
    model = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(RuntimeError), Reader(model):
        model(torch.ones(2, 5))
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_the_model_is_left_as_found():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout())
    model.train()
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    uses(model, (torch.randn(5, 3, generator=torch.Generator()), torch.zeros(5)))
    assert [module.training for module in model] == [True, True, False]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


def test_flops_multiply_and_add_weights_and_add_biases():
    masks = {"w": torch.tensor([[True, False], [True, True]]), "b": torch.tensor([True, False])}
    assert flops(masks, {"w": 10.0, "b": 10.0, "other": 5.0}) == 3 * 2 * 10 + 10
    assert flops_per_element((2, 2), 3.0) == 6
    assert flops_per_element((2,), 3.0) == 3
