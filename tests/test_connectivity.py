"""Paths from input to output against hand-computed masks and brute force."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import snip
from snip.anatomy.calling import arguments
from snip.anatomy.units import live_units
from snip.paths.connectivity import connectivity, example_input
from snip.paths.reach import reach


def all_kept(model):
    return {name: torch.ones(p.shape, dtype=torch.bool) for name, p in model.named_parameters()}


def random_masks(model, density=0.5):
    return {name: torch.rand(p.shape) < density for name, p in model.named_parameters()}


def probe(model, masks, inputs):
    found = connectivity(model, masks, inputs)
    assert found.reason is None
    quick = reach(model, masks, arguments(model, inputs))  # the other probe, forwards alone
    assert (quick.reached > 0) == found.connected
    return found


def test_broken_chain_in_an_mlp():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    masks = {
        "0.weight": torch.tensor([[1, 0], [0, 0], [1, 1]]).bool(),
        "0.bias": torch.tensor([1, 1, 1]).bool(),
        "2.weight": torch.tensor([[1, 1, 0], [0, 0, 0]]).bool(),
        "2.bias": torch.tensor([0, 1]).bool(),
    }
    found = probe(model, masks, torch.zeros(4, 2))
    # Unit 1 has no input, unit 2 no output, class 1 nothing at all.
    assert found.effective["0.weight"].tolist() == [[True, False], [False, False], [False, False]]
    assert found.effective["2.weight"].tolist() == [[True, False, False], [False, False, False]]
    # The bias of unit 1 is still heard at the output, that of unit 2 is not.
    assert found.effective["0.bias"].tolist() == [True, True, False]
    assert found.effective["2.bias"].tolist() == [False, True]
    assert (found.dead_outputs, found.outputs, found.connected) == ((1,), 2, True)
    units = live_units(model, found.effective)
    assert units["0.weight"].outputs.tolist() == [True, False, False]
    assert units["0.weight"].inputs.tolist() == [True, False]


def test_an_empty_layer_disconnects_everything():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    masks = all_kept(model)
    masks["2.weight"] = torch.zeros(3, 3, dtype=torch.bool)
    found = probe(model, masks, torch.zeros(1, 2))
    assert not found.connected
    assert found.dead_outputs == (0, 1)
    assert not any(found.effective[f"{i}.weight"].any() for i in (0, 2, 4))
    assert not found.effective["0.bias"].any()
    assert found.effective["2.bias"].all()


def brute_force(masks):
    """Boolean forward and backward reachability of an MLP without biases."""
    reached = [torch.ones(masks[0].shape[1], dtype=torch.bool)]
    for mask in masks:
        reached.append((mask & reached[-1]).any(1))
    leads = torch.ones(masks[-1].shape[0], dtype=torch.bool)
    effective = []
    for mask, start in zip(reversed(masks), reversed(reached[:-1]), strict=True):
        effective.insert(0, mask & start & leads[:, None])
        leads = (mask & leads[:, None]).any(0)
    return effective


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=6),
    density=st.floats(0.1, 0.9),
    seed=st.integers(0, 2**31),
)
def test_random_mlps_agree_with_brute_force(sizes, density, seed):
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for i, o in itertools.pairwise(sizes):
        layers += [nn.Linear(i, o, bias=False), nn.Sigmoid()]
    model = nn.Sequential(*layers)
    masks = {
        name: torch.rand(p.shape, generator=generator) < density
        for name, p in model.named_parameters()
    }
    found = probe(model, masks, torch.zeros(1, sizes[0]))
    expected = brute_force(list(masks.values()))
    assert all(torch.equal(a, b) for a, b in zip(found.effective.values(), expected, strict=True))


def test_thousand_layers_neither_overflow_nor_underflow():
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(1000)])
    found = probe(model, all_kept(model), torch.zeros(1, 8))
    assert all(mask.all() for mask in found.effective.values())


def test_grouped_convolutions():
    model = nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 2, 1),
    )
    masks = {name: mask for name, mask in all_kept(model).items() if not name.startswith("1.")}
    masks["4.weight"][:, 0] = False  # channel 0 is not used
    masks["0.weight"][1] = False  # channel 1 has no input
    found = probe(model, masks, torch.zeros(2, 4, 8, 8))
    first = found.effective["0.weight"]
    assert first.flatten(1).any(1).tolist() == [False, False, True, True]
    assert found.effective["4.weight"].flatten(1).any(0).tolist() == [False, False, True, True]
    units = live_units(model, found.effective)["0.weight"]
    assert units.outputs.tolist() == [False, False, True, True]
    assert units.inputs.tolist() == [False, False, True, True]


def test_transposed_convolution_has_its_outputs_in_the_second_dimension():
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), nn.Conv2d(6, 1, 1))
    masks = all_kept(model)
    masks["1.weight"][:, [0, 5]] = False
    masks["0.weight"][3] = False
    found = probe(model, masks, torch.zeros(1, 4, 3, 3))
    units = live_units(model, found.effective)["0.weight"]
    assert units.outputs.tolist() == [False, True, True, True, True, False]
    assert units.inputs.tolist() == [True, True, True, False]


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.last = nn.Linear(3, 2)

    def forward(self, x):
        return self.last(x + F.relu(self.inner(x)))


def test_a_shortcut_keeps_the_rest_alive():
    model = Residual()
    masks = all_kept(model)
    masks["inner.weight"][:] = False
    found = probe(model, masks, torch.zeros(1, 3))
    assert found.connected
    assert not found.effective["inner.weight"].any()
    assert found.effective["last.weight"].all()


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.last = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(torch.cat([self.a(x), -self.b(x)], dim=1)) - 1.0


def test_concatenation_keeps_branches_apart():
    model = Joined()
    masks = all_kept(model)
    masks["last.weight"] = torch.tensor([[True, False, False, True]])
    found = probe(model, masks, torch.zeros(1, 2))
    assert found.effective["a.weight"].tolist() == [[True, True], [False, False]]
    assert found.effective["b.weight"].tolist() == [[False, False], [True, True]]


class Difference(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return (self.a(x) - self.b(x)).abs() / 3


def test_a_difference_does_not_cancel():
    model = Difference()
    found = probe(model, all_kept(model), torch.zeros(1, 2))
    assert all(mask.all() for mask in found.effective.values())


class Last(nn.Module):
    def __init__(self, rnn, out):
        super().__init__()
        self.rnn, self.fc = rnn, nn.Linear(out, 1)

    def forward(self, x):
        return self.fc(self.rnn(x)[0][:, -1])


def test_lstm_by_hand():
    """Units 0 -> 1 through the recurrence; unit 2 has no candidate, so its gates do nothing."""
    model = Last(nn.LSTM(1, 3, batch_first=True, bias=False), 3)
    ih = torch.zeros(4, 3, 1, dtype=torch.bool)  # gates i, f, g, o
    hh = torch.zeros(4, 3, 3, dtype=torch.bool)
    ih[2, 0] = True  # x -> candidate of unit 0
    hh[2, 1, 0] = True  # unit 0 -> candidate of unit 1
    ih[3, 1] = True  # x -> output gate of unit 1
    ih[0, 2] = True  # x -> input gate of unit 2, which has nothing to let in
    hh[1, 0, 2] = True  # unit 2, always zero -> forget gate of unit 0
    masks = {
        "rnn.weight_ih_l0": ih.view(12, 1),
        "rnn.weight_hh_l0": hh.view(12, 3),
        "fc.weight": torch.tensor([[False, True, True]]),
    }
    found = probe(model, masks, torch.zeros(1, 4, 1))
    expected_ih, expected_hh = ih.clone(), hh.clone()
    expected_ih[0, 2] = expected_hh[1, 0, 2] = False
    assert torch.equal(found.effective["rnn.weight_ih_l0"], expected_ih.view(12, 1))
    assert torch.equal(found.effective["rnn.weight_hh_l0"], expected_hh.view(12, 3))
    assert found.effective["fc.weight"].tolist() == [[False, True, False]]
    units = live_units(model, found.effective)
    assert units["rnn.weight_ih_l0"].outputs.tolist() == [True, True, False]
    assert units["rnn.weight_hh_l0"].outputs.tolist() == [True, True, False]


def test_gru_by_hand():
    """The reset gate matters only where there is a recurrent candidate to reset."""
    model = Last(nn.GRU(1, 2, batch_first=True, bias=False), 2)
    ih = torch.zeros(3, 2, 1, dtype=torch.bool)  # r, z, n
    hh = torch.zeros(3, 2, 2, dtype=torch.bool)
    ih[2, 0] = ih[0, 0] = ih[0, 1] = True  # candidate of 0; reset gates of both
    hh[2, 1, 0] = True  # unit 0 -> candidate of unit 1
    masks = {
        "rnn.weight_ih_l0": ih.view(6, 1),
        "rnn.weight_hh_l0": hh.view(6, 2),
        "fc.weight": torch.tensor([[False, True]]),
    }
    found = probe(model, masks, torch.zeros(1, 3, 1))
    expected = ih.clone()
    expected[0, 0] = False  # unit 0 has no recurrent candidate
    assert torch.equal(found.effective["rnn.weight_ih_l0"], expected.view(6, 1))
    assert torch.equal(found.effective["rnn.weight_hh_l0"], hh.view(6, 2))


def test_sequence_length_bounds_the_recurrent_hops():
    model = Last(nn.RNN(1, 3, batch_first=True, bias=False), 3)
    hh = torch.zeros(3, 3, dtype=torch.bool)
    hh[1, 0] = hh[2, 1] = True
    masks = {
        "rnn.weight_ih_l0": torch.tensor([[True], [False], [False]]),
        "rnn.weight_hh_l0": hh,
        "fc.weight": torch.tensor([[False, False, True]]),
    }
    assert probe(model, masks, torch.zeros(1, 3, 1)).connected
    assert not probe(model, masks, torch.zeros(1, 2, 1)).connected


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent_layers_in_every_form_are_followed(kind, packed):
    rnn = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    x = torch.zeros(2, 5, 3)
    if packed:
        x = pack_padded_sequence(x, torch.tensor([2, 5]), batch_first=True, enforce_sorted=False)
    found = probe(rnn, all_kept(rnn), x)
    assert all(mask.all() for mask in found.effective.values())


def test_projected_lstm_and_one_step_and_flat_weights():
    rnn = nn.LSTM(3, 4, proj_size=2)
    flat = rnn._flat_weights
    found = probe(rnn, all_kept(rnn), torch.zeros(1, 1, 3))
    assert all(mask.all() for mask in found.effective.values())
    assert rnn._flat_weights is flat
    assert all(a is b for a, b in zip(flat, rnn.parameters(), strict=True))


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = kind(2, 3)

        def forward(self, x):
            state = None
            for step in x.unbind(1):
                state = self.cell(step, state)
            return state[0] if isinstance(state, tuple) else state

    model = Loop()
    found = probe(model, all_kept(model), torch.zeros(2, 3, 2))
    assert all(mask.all() for mask in found.effective.values())


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 2, bias=False, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


def test_attention_by_hand():
    """A query feature counts only with its key feature; values pass without either."""
    model = SelfAttention()
    part = torch.ones(3, 2, 2, dtype=torch.bool)  # q, k, v
    part[0, 0] = False  # head 0: no query
    part[2, 1] = False  # head 1: no value
    masks = {
        "attention.in_proj_weight": part.view(6, 2),
        "attention.out_proj.weight": torch.ones(2, 2).bool(),
    }
    found = probe(model, masks, torch.zeros(1, 3, 2))
    live = found.effective["attention.in_proj_weight"].view(3, 2, 2).any(2)
    assert live.tolist() == [[False, False], [False, False], [True, False]]
    assert found.effective["attention.out_proj.weight"].tolist() == [[True, False], [True, False]]


@pytest.mark.parametrize("layer", ["encoder", "decoder", "stack"])
def test_transformers_are_followed(layer):
    x = torch.zeros(2, 3, 4)
    if layer == "decoder":
        model, inputs = nn.TransformerDecoderLayer(4, 2, 8, batch_first=True), (x, x)
    elif layer == "encoder":
        model, inputs = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), x
    else:
        one = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        model, inputs = nn.TransformerEncoder(one, 2, enable_nested_tensor=False), x
    masks = all_kept(model)
    found = probe(model, masks, inputs)
    assert all(mask.all() for name, mask in found.effective.items() if "norm" not in name)
    first = next(name for name in masks if name.endswith("linear1.weight"))
    masks[first][5] = False
    second = first.replace("linear1", "linear2")
    effective = probe(model, masks, inputs).effective[second]
    assert effective.any(0).tolist() == [i != 5 for i in range(8)]


class OwnAttention(nn.Module):
    """Attention, gating and norms as people write them by hand."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.qkv, self.gate, self.out = nn.Linear(4, 12), nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("causal", torch.full((5, 5), -torch.inf).triu(1))

    def forward(self, tokens):
        x = self.embed(tokens).to(torch.bfloat16)
        q, k, v = self.qkv((x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)).chunk(
            3, -1
        )
        scores = q @ k.transpose(-2, -1) / 4**0.5 + self.causal
        scores = scores.masked_fill(tokens[:, None] < 0, float("-inf"))
        x = x + torch.softmax(scores, -1) @ v
        x = x * torch.sigmoid(self.gate(x))
        x -= x.amax(-1, keepdim=True)
        return torch.where(x > 0, x, 0.1 * x).max(1).values @ self.out.weight.T


def test_hand_written_attention_on_tokens():
    model = OwnAttention()
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    masks = all_kept(model)
    found = probe(model, masks, tokens)
    assert all(mask.all() for name, mask in found.effective.items() if name != "out.bias")
    masks["gate.weight"][:] = masks["gate.bias"][:] = False
    found = probe(model, masks, tokens)
    assert found.connected  # sigmoid(0) lets everything pass
    assert found.effective["qkv.weight"].all()


def test_tied_weights_and_one_hot_input():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.out = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.out.weight = self.inp.weight

        def forward(self, x):
            return self.out(torch.relu(self.inp(F.one_hot(x, 3).float())))

    mask = torch.tensor([[1, 0, 0], [0, 0, 0], [0, 1, 0]]).bool()
    found = probe(Tied(), {"inp.weight": mask}, torch.zeros(4, dtype=torch.int64))
    # 0 -> 0 -> 0 uses it twice; 1 -> 2 leads nowhere in the second use.
    assert found.effective["inp.weight"].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_unpruned_layers_count_as_dense_and_other_types_work():
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 2)).double()
    masks = {"0.weight": torch.tensor([[True, False], [False, False], [True, False]])}
    found = probe(model, masks, torch.zeros(1, 2, dtype=torch.float64))
    assert torch.equal(found.effective["0.weight"], masks["0.weight"])


def test_the_model_is_left_untouched():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    model[2].eval()
    masks = random_masks(model)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    pointers = [p.data_ptr() for p in model.parameters()]
    probe(model, masks, torch.randn(3, 3, generator=torch.Generator()))
    assert [m.training for m in model] == [True, True, False, True]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert pointers == [p.data_ptr() for p in model.parameters()]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.equal(random, torch.get_rng_state())


def test_what_cannot_be_followed_gives_a_reason():
    class Strange(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            return torch.from_numpy(self.fc(x).detach().numpy())

    model = Strange()
    assert connectivity(model, all_kept(model), torch.zeros(1, 2)).reason
    wrong = connectivity(nn.Linear(2, 2), all_kept(nn.Linear(2, 2)), torch.zeros(1, 5))
    assert "RuntimeError" in wrong.reason
    assert wrong.effective == {}
    assert not torch.is_inference_mode_enabled()


def test_works_inside_no_grad_and_autocast():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = probe(model, all_kept(model), torch.zeros(1, 2))
    assert all(mask.all() for mask in found.effective.values())


def test_example_input_has_shape_and_type():
    example = example_input(nn.Linear(3, 2), [4, 3], "int64")
    assert example.shape == (1, 4, 3)
    assert example.dtype == torch.int64


class Blocks(nn.Module):
    """Convolutions with groups and stride, a projected shortcut, pooling and a gate."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=False)
        self.b = nn.Conv2d(6, 6, 3, padding=1, groups=3, bias=False)
        self.short = nn.Conv2d(2, 6, 1, stride=2, bias=False)
        self.gate = nn.Linear(6, 6, bias=False)
        self.up = nn.ConvTranspose2d(6, 4, 2, groups=2, bias=False)
        self.fc = nn.Linear(4, 3, bias=False)

    def forward(self, x):
        x = torch.tanh(self.b(torch.tanh(self.a(x)))) - self.short(x)
        x = x * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
        return self.fc(self.up(F.avg_pool2d(x, 2)).mean((2, 3)))


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (Blocks, (2, 8, 8)),
        (lambda: Last(nn.LSTM(3, 5, num_layers=2, batch_first=True, bias=False), 5), (3, 3)),
        (lambda: Last(nn.GRU(3, 5, batch_first=True, bias=False, bidirectional=True), 10), (3, 3)),
        (SelfAttention, (3, 2)),
    ],
)
@pytest.mark.parametrize("seed", range(10))
def test_effective_is_where_a_real_gradient_is_not_zero(build, shape, seed):
    """Without biases, and with activations that are zero only at zero, both say the same."""
    torch.manual_seed(seed)
    model = build().double()
    masks = random_masks(model, density=0.2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * masks[name])
    found = probe(model, masks, torch.zeros(1, *shape))
    output = model(torch.randn(4, *shape, dtype=torch.float64))
    (output * torch.randn_like(output)).sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(found.effective[name], (parameter.grad != 0) & masks[name]), name


@pytest.mark.parametrize(("batch_dim", "shape"), [(0, (5, 8, 3)), (1, (5, 1, 3))])
def test_one_sample_is_enough_along_the_dimension_that_counts_them(batch_dim, shape):
    seen = []

    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            seen.append(tuple(x.shape))
            return self.head(self.rnn(x)[0][-1])

    torch.manual_seed(0)
    model, inputs = TimeFirst(), torch.randn(5, 8, 3)
    scoring = snip.Scoring(batch_dim=batch_dim)
    snip.prune(model, (inputs, torch.arange(8) % 2), sparsity=0.3, scoring=scoring)
    seen.clear()
    report = snip.report(model, inputs=inputs)
    assert seen[-1] == shape
    assert report.effective_kept == report.kept
