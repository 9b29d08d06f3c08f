"""RWKV-6 under fla's names, and the token shift that RWKV-7 uses too. Axes: B T H K V, D channels."""

from ..rwkv6 import rwkv6
from ..token_shift import shift_difference
from . import only, refuse


def token_shift(x, cu_seqlens=None, cache=None, output_cache=False, chunk_indices=None):
    """x (B, T, D), cache (B, D): x_{t-1} - x_t and, if asked, the last step (B, D) as the next call's cache."""
    refuse("token_shift", cu_seqlens=cu_seqlens, chunk_indices=chunk_indices)
    delta = shift_difference(x, cache)
    return (delta, x[:, -1]) if output_cache else delta


def chunk_rwkv6(
    r, k, v, w, u, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None, cu_seqlens_cpu=None, **kwargs
):  # fmt: skip
    """The recurrence with log decays w (B, T, H, K) and a bonus u (H, K)."""
    refuse("chunk_rwkv6", cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)
    only("chunk_rwkv6", kwargs)
    out, state = rwkv6(r, k, v, w, u, scale, initial_state)
    return out, state if output_final_state else None


def fused_recurrent_rwkv6(
    r, k, v, w, u, scale=None, initial_state=None, output_final_state=False, reverse=False, cu_seqlens=None
):
    """The same under the name that sequences of up to 64 steps take, in training too."""
    refuse("fused_recurrent_rwkv6", reverse=reverse, cu_seqlens=cu_seqlens)
    return chunk_rwkv6(r, k, v, w, u, scale, initial_state, output_final_state)


REPLACED = [
    ("fla.modules.token_shift", "token_shift", token_shift,
     "(x, cu_seqlens=None, cache=None, output_cache=False, chunk_indices=None)"),
    ("fla.ops.rwkv6.chunk", "chunk_rwkv6", chunk_rwkv6,
     "(r, k, v, w, u, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None, cu_seqlens_cpu=None, **kwargs)"),
    ("fla.ops.rwkv6.fused_recurrent", "fused_recurrent_rwkv6", fused_recurrent_rwkv6,
     "(r, k, v, w, u, scale=None, initial_state=None, output_final_state=False, reverse=False, cu_seqlens=None)"),
]  # fmt: skip
