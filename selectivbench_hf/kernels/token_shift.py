"""RWKV's token shift: how much the step before differs from this one. Axes: B batch, T time, D channels."""

import torch


def shift_difference(x: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
    """x (B, T, D) -> x_{t-1} - x_t; before (B, D): the step before the first, or None for zeros."""
    first = x.new_zeros(x.shape[0], 1, x.shape[2]) if before is None else before.to(x.dtype).view(len(x), 1, -1)
    return torch.cat((first, x[:, :-1]), 1) - x
