"""How a chunked recurrence is compared with its loop. Axes: B T H K V.

An op is a function (arguments..., scale, initial_state) -> outputs, last state; its loop has the same arguments.
"""

import torch

STEPS = (1, 2, 63, 64, 65, 200, 513)
GATES = (-1e-4, -1.0, -5.0, -20.0, -100.0, -1e4)


def values_and_gradients(function, arguments, dtype, scale=0.7, state=True):
    """Outputs, last state and gradients of all arguments, for a fixed weighting of outputs and last state."""
    leaves = [a.to(dtype).requires_grad_() for a in arguments]
    out, last = function(*leaves[:-1], scale, leaves[-1]) if state else function(*leaves[:-1], scale)
    weighting = torch.linspace(0, 7, out.numel(), dtype=dtype).view_as(out).cos()
    total = (out * weighting).sum() + (
        last * torch.linspace(0, 5, last.numel(), dtype=dtype).view_as(last).sin()
    ).sum()
    gradients = torch.autograd.grad(total, leaves if state else leaves[:-1])
    return [out, last, *gradients]


def error(got, wanted):
    """Relative error in the 2-norm; a gradient that vanishes (a gate before the first step) is measured against 0.1."""
    return ((got.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(0.1)).item()
