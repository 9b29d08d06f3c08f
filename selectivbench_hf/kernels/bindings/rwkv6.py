"""RWKV-6 under fla's names, and the token shift that RWKV-7 uses too. Axes: B T H K V, D channels."""

from ..token_shift import shift_difference
from . import refuse


def token_shift(x, cu_seqlens=None, cache=None, output_cache=False, chunk_indices=None):
    """x (B, T, D), cache (B, D): x_{t-1} - x_t and, if asked, the last step (B, D) as the next call's cache."""
    refuse("token_shift", cu_seqlens=cu_seqlens, chunk_indices=chunk_indices)
    delta = shift_difference(x, cache)
    return (delta, x[:, -1]) if output_cache else delta


REPLACED = [
    ("fla.modules.token_shift", "token_shift", token_shift,
     "(x, cu_seqlens=None, cache=None, output_cache=False, chunk_indices=None)"),
]  # fmt: skip
