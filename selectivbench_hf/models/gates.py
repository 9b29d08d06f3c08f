"""What stands where a layer computes a gate from its input, for the knob `decay`. Axes: B batch, T time, D channels."""

import math

import torch
from torch import nn

KEEPS_ALL = 1e4  # its sigmoid is 1 to the last bit, in every floating type


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


def logit_of(decay: float, normalizer: float = 1.0) -> float:
    """The x for which sigmoid(x) ** (1 / normalizer) is `decay`, above 0 and below 1."""
    log = normalizer * math.log(decay)
    return log - math.log(-math.expm1(log))


def turn_decay(
    layer: nn.Module, projection: str, bias: torch.Tensor, decay: str, initial_decay: float | None, normalizer=1.0
):
    """The knobs `decay` and `initial_decay` of a built layer whose log decay is logsigmoid(projection(x)) / normalizer.

    projection   the name of the module in `layer`; with "fixed" and "none" a ConstantGate stands in its place
    bias         what that module returns for an input of zero
    """
    if initial_decay is not None:
        with torch.no_grad():
            bias.fill_(logit_of(initial_decay, normalizer))
    if decay == "fixed":
        setattr(layer, projection, ConstantGate(bias, trained=True))
    elif decay == "none":
        setattr(layer, projection, ConstantGate(torch.full_like(bias, KEEPS_ALL), trained=False))
