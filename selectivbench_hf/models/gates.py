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


def turn_softplus_decay(layer: nn.Module, projection: str, decay: str, initial_decay: float | None):
    """The same for a log decay -exp(A_log) softplus(projection(x) + dt_bias) per head, or per channel with one A_log a head. With
    "fixed", A_log and dt_bias say it alone."""
    if initial_decay is not None:
        with torch.no_grad():
            rate = layer.A_log.double().exp().repeat_interleave(len(layer.dt_bias) // len(layer.A_log))
            wanted = -math.log(initial_decay) / rate
            layer.dt_bias.copy_(wanted + torch.log(-torch.expm1(-wanted)))  # the inverse of softplus
    if decay == "learned":
        return
    off = torch.full_like(layer.dt_bias, -KEEPS_ALL if decay == "none" else 0.0)
    setattr(layer, projection, ConstantGate(off, trained=False))
    if decay == "none":
        as_buffers(layer, "A_log", "dt_bias")


def as_buffers(layer: nn.Module, *names: str) -> None:
    """Make buffers of parameters on which nothing depends any more: they would be counted, and never learn."""
    for name in names:
        value = getattr(layer, name).detach().clone()
        delattr(layer, name)
        layer.register_buffer(name, value)
