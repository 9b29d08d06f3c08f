"""Forgetting attention under fla's name. Axes: B T H K V."""

from ..forgetting import forgetting_attention
from . import refuse


def parallel_forgetting_attn(q, k, v, g, scale=None, window_size=None, cu_seqlens=None):
    """Softmax attention with log forget gates g (B, T, HQ)."""
    refuse("parallel_forgetting_attn", window_size=window_size, cu_seqlens=cu_seqlens)
    return forgetting_attention(q, k, v, g, scale).to(q.dtype)


REPLACED = [
    ("fla.ops.forgetting_attn.parallel", "parallel_forgetting_attn", parallel_forgetting_attn,
     "(q, k, v, g, scale=None, window_size=None, cu_seqlens=None)"),
]  # fmt: skip
