"""Simple gated linear attention under fla's names. Axes: B T H K V."""

from ..simple_gla import simple_gla
from . import only, refuse, state_in, state_out


def chunk_simple_gla(
    q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False, state_v_first=False, cu_seqlens=None,
    cu_seqlens_cpu=None, **kwargs,
):  # fmt: skip
    """Linear attention with a log decay g (B, T, H) per head, or g_gamma (H,), or none."""
    refuse("chunk_simple_gla", cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)
    chunk = only("chunk_simple_gla", kwargs, "chunk_size")
    if g_gamma is not None:
        if g is not None:
            raise ValueError("chunk_simple_gla takes g or g_gamma, not both")
        g = g_gamma.expand(*q.shape[:2], -1)
    out, state = simple_gla(q, k, v, g, scale, state_in(initial_state, state_v_first), chunk)
    return out, state_out(state, output_final_state, state_v_first)


def fused_recurrent_simple_gla(
    q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False, reverse=False, state_v_first=False,
    cu_seqlens=None, **kwargs,
):  # fmt: skip
    """As chunk_simple_gla."""
    refuse("fused_recurrent_simple_gla", reverse=reverse)
    only("fused_recurrent_simple_gla", kwargs)
    return chunk_simple_gla(q, k, v, g, g_gamma, scale, initial_state, output_final_state, state_v_first, cu_seqlens)


DISPATCHED = [
    ("fla.ops.simple_gla.fused_recurrent", "fused_recurrent_simple_gla", fused_recurrent_simple_gla,
     "(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False, reverse=False, "
     "state_v_first=False, cu_seqlens=None, **kwargs)"),
]  # fmt: skip
REPLACED = [
    ("fla.ops.simple_gla.chunk", "chunk_simple_gla", chunk_simple_gla,
     "(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False, state_v_first=False, "
     "cu_seqlens=None, cu_seqlens_cpu=None, **kwargs)"),
]  # fmt: skip
