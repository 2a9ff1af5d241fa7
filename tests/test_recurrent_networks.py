"""Networks with recurrent layers inside are accelerated, copied, saved and taken back."""

import copy
import pickle

import pytest
import torch
from recurrent_parts import KINDS
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import snip
from snip.engine.kernels.library import available
from snip.engine.layers.recurrent import SparseRecurrent
from snip.masks import Masks

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


class Tagger(nn.Module):
    """What people write: packed words in, a padded row of classes out."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.rnn = kind(6, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x, lengths):
        self.rnn.flatten_parameters()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.rnn(packed)
        return self.head(pad_packed_sequence(out, batch_first=True)[0])


@KINDS
@pytest.mark.filterwarnings("ignore::snip.SnipWarning")
def test_a_network_of_packed_sequences_is_accelerated_copied_saved_and_taken_back(kind):
    torch.manual_seed(0)
    model, x, lengths = Tagger(kind), torch.randn(4, 5, 6), torch.tensor([2, 5, 1, 3])
    masks = {n: torch.rand(p.shape) < 0.5 for n, p in model.named_parameters() if p.ndim > 1}
    Masks(masks).apply(model)
    fast = snip.accelerate(model, (x, lengths), ways={})
    assert isinstance(fast.rnn, SparseRecurrent)
    want = model(x, lengths)
    for network in (fast, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        torch.testing.assert_close(network(x, lengths), want)
    torch.testing.assert_close(snip.densify(fast)(x, lengths), want)
    fast.load_state_dict(model.state_dict())
    assert fast.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(fast(x, lengths), want)


@pytest.mark.filterwarnings("ignore::snip.SnipWarning")
def test_the_last_output_of_both_directions_is_not_their_last_state():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(4, 6, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, x):
            return self.rnn(x)[0][:, -1]

    torch.manual_seed(0)
    model, x = Last(), torch.randn(3, 5, 4)
    Masks({n: torch.rand(p.shape) < 0.5 for n, p in model.named_parameters()}).apply(model)
    fast = snip.accelerate(model, x, ways={})
    assert isinstance(fast.rnn, SparseRecurrent)
    torch.testing.assert_close(fast(x), model(x))
