"""PaTH attention under fla's name. Axes: B T H K V."""

from ..path import path_attention
from . import refuse


def parallel_path_attn(q, k, v, w, beta, g=None, scale=None, cu_seqlens=None, use_cache=False):
    """Attention with w (B, T, H, K) and beta (B, T, H) of the Householder-like factors, and log forget gates g (B, T, HQ) or none."""
    refuse("parallel_path_attn", cu_seqlens=cu_seqlens)
    out, keys = path_attention(q, k, v, w, beta, g, scale)
    return out.to(q.dtype), keys.to(k.dtype) if use_cache else None


REPLACED = [
    ("fla.ops.path_attn.parallel", "parallel_path_attn", parallel_path_attn,
     "(q, k, v, w, beta, g=None, scale=None, cu_seqlens=None, use_cache=False)"),
]  # fmt: skip
