"""What stands where a layer computes a gate from its input, for the knob `decay`. Axes: B batch, T time, D channels."""

import torch
from torch import nn


class ConstantGate(nn.Module):
    """(B, T, D) -> (B, T, len(values)): the same numbers at every step.

    values     what the gate's projection would return for an input of zero
    trained    whether they are a parameter ("fixed": a constant that training finds) or stay as they are ("none")
    """

    def __init__(self, values: torch.Tensor, trained: bool):
        super().__init__()
        values = values.detach().clone()
        if trained:
            self.values = nn.Parameter(values)
            self.values._no_weight_decay = True
        else:
            self.register_buffer("values", values)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """values for every step of x."""
        return self.values.expand(*x.shape[:2], -1)
