"""torch's GRU and LSTM as mixers. Axes: B batch, T time, D channels."""

import math

import torch
from torch import nn


class Recurrent(nn.Module):
    """One layer of torch's `kind` ("GRU" or "LSTM"), D units, parameters and initialisation torch's.

    initial_decay   what a step leaves of the state where input and output before it are zero: the bias of GRU's update gate, or of
                    LSTM's forget gate
    """

    def __init__(self, kind: str, hidden_size: int, layer_idx: int, initial_decay: float | None = None):
        super().__init__()
        self.layer_idx = layer_idx
        self.rnn = getattr(nn, kind)(hidden_size, hidden_size, batch_first=True)
        if initial_decay is not None:
            rows = slice(
                hidden_size, 2 * hidden_size
            )  # torch's order: reset, update, new; and input, forget, cell, output
            with torch.no_grad():
                self.rnn.bias_ih_l0[rows] = math.log(initial_decay / (1 - initial_decay))
                self.rnn.bias_hh_l0[rows] = 0

    def forward(self, x: torch.Tensor, past_key_values=None, use_cache: bool = False) -> torch.Tensor:
        """(B, T, D) -> (B, T, D)."""
        state = None
        if past_key_values is not None and len(past_key_values) > self.layer_idx:
            state = past_key_values[self.layer_idx]["recurrent_state"]
        out, state = self.rnn(x, state)
        if past_key_values is not None:
            past_key_values.update(self.layer_idx, x.shape[1], recurrent_state=state)
        return out
