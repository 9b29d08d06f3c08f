"""More small fused functions of fla in plain torch: rotary positions, SwiGLU, running sums. Named and called as those of small.py.

Axes: B batch, T time, H heads, D channels, R rotated pairs, P positions of a table.
"""

import torch
from torch.nn import functional as F

from .layout import compute_dtype, suffix_sums
from .small import refuse


def rotary_embedding_fwdbwd(
    x, cos, sin, seqlen_offsets=0, cu_seqlens=None, interleaved=False, inplace=False, conjugate=False, chunk_indices=None
):  # fmt: skip
    """x (B, T, H, D) with its first 2 R channels turned, in pairs, by the angles of cos, sin (P, R) at each step; backwards if
    conjugate. Pairs are channels (r, r + R), or (2 r, 2 r + 1) if interleaved. seqlen_offsets: position of the first step, an int or
    (B,)."""
    refuse("rotary_embedding", cu_seqlens=cu_seqlens, chunk_indices=chunk_indices)
    steps, pairs = x.shape[1], cos.shape[1]
    if isinstance(seqlen_offsets, torch.Tensor):
        positions = seqlen_offsets[:, None] + torch.arange(steps, device=x.device)
        # steps of padding on the left have positions below 0: not turned, as fla leaves them
        valid = ((positions >= 0) & (positions < len(cos)))[:, :, None, None]
        cos, sin = (table[positions.clamp(0, len(table) - 1)].unsqueeze(2) for table in (cos, sin))
        cos, sin = cos.masked_fill(~valid, 1), sin.masked_fill(~valid, 0)
    else:
        if seqlen_offsets + steps > len(cos):
            raise ValueError(f"rotary_embedding: {seqlen_offsets + steps} positions, and the table has {len(cos)}")
        cos, sin = (table[seqlen_offsets : seqlen_offsets + steps].unsqueeze(1) for table in (cos, sin))
    dtype = compute_dtype(x)
    cos, sin = cos.to(dtype), sin.to(dtype)
    if conjugate:
        sin = -sin
    turned = x[..., : 2 * pairs].to(dtype)
    first, second = turned.unflatten(-1, (pairs, 2)).unbind(-1) if interleaved else turned.chunk(2, -1)
    out = x if inplace else torch.empty_like(x, memory_format=torch.contiguous_format)
    target = out[..., : 2 * pairs]
    to_first, to_second = target.unflatten(-1, (pairs, 2)).unbind(-1) if interleaved else target.chunk(2, -1)
    new_first, new_second = torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(first * sin, second, cos)
    to_first.copy_(new_first)
    to_second.copy_(new_second)
    if not inplace:
        out[..., 2 * pairs :].copy_(x[..., 2 * pairs :])
    return out


def swiglu_fwd(x, y, output_contiguous=False):
    """silu(x) * y."""
    dtype = compute_dtype(x, y)
    return F.silu(x.to(dtype)).mul_(y).to(x.dtype)


def swiglu_fwdbwd(x, y, g, use_weight=False, output_contiguous=False):
    """Gradients of x and y for the gradient g of silu(x) * y, and that product again if use_weight."""
    dtype = compute_dtype(x, y)
    xf, yf, gf = x.to(dtype), y.to(dtype), g.to(dtype)
    sigmoid = torch.sigmoid(xf)
    gate = xf * sigmoid
    slope = torch.addcmul(sigmoid, gate, 1 - sigmoid)
    dx, dy = slope.mul_(yf).mul_(gf).to(x.dtype), (gate * gf).to(y.dtype)
    return (dx, dy, gate.mul_(yf).to(x.dtype)) if use_weight else (dx, dy)


def chunk_global_cumsum(s, reverse=False, cu_seqlens=None, scale=None, output_dtype=torch.float32, **kwargs):
    """Sums of s (B, T, H) or (B, T, H, D) from the first step to each, or from each to the last."""
    refuse("chunk_global_cumsum", cu_seqlens=cu_seqlens, **kwargs)
    total = s.to(compute_dtype(s))
    total = suffix_sums(total, 1) if reverse else total.cumsum(1)
    return (total if scale is None else total * scale).to(output_dtype or s.dtype)
