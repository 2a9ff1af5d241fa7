"""LSTM-s/-b and GRU-s/-b: an image is read row by row, the last state is classified."""

from __future__ import annotations

from torch import Tensor, nn

from snip.models.spec import Images


class RowReader(nn.Module):
    """A linear layer per row, a recurrent layer over the rows, a linear layer on its last state."""

    # The input layer is not in the paper's text; only with it do its parameter counts come out.
    def __init__(
        self,
        images: Images,
        *,
        cell: type[nn.LSTM] | type[nn.GRU],
        hidden: int,
        gate_constant: float = 0.0,
    ) -> None:
        """`gate_constant` is added in an LSTM's forget gates, in a GRU's reset and update gates.

        A positive one makes a cell keep its state.
        """
        super().__init__()
        self.embed = nn.Linear(images.channels * images.size, hidden)
        self.rnn = cell(hidden, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, images.classes)
        # torch adds two bias vectors per gate where the paper counts one: the second is frozen and
        # zero but for the constant, so it is neither counted nor pruned nor trained. (In a GRU it
        # is not quite a duplicate: it lies inside the reset gate, where the paper's cell has none.)
        constant = self.rnn.get_parameter("bias_hh_l0").requires_grad_(False)
        nn.init.zeros_(constant)
        gates = slice(hidden, 2 * hidden) if cell is nn.LSTM else slice(2 * hidden)
        nn.init.constant_(constant[gates], gate_constant)

    def forward(self, images: Tensor) -> Tensor:
        rows = images.transpose(1, 2).flatten(2)  # [batch, rows, channels * columns]
        return self.fc(self.rnn(self.embed(rows))[0][:, -1])
