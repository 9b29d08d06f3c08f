"""Gated linear attention under fla's names. Axes: B T H K V."""

from ..gla import gla
from ..simple_gla import simple_gla
from . import only, refuse, state_in, state_out


def chunk_gla(
    q, k, v, g, scale=None, initial_state=None, output_final_state=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None
):  # fmt: skip
    """Gated linear attention with log decays g (B, T, H, K)."""
    refuse("chunk_gla", cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)
    out, state = gla(q, k, v, g, scale, state_in(initial_state, state_v_first))
    return out, state_out(state, output_final_state, state_v_first)


def fused_recurrent_gla(
    q, k, v, gk=None, gv=None, scale=None, initial_state=None, output_final_state=False, reverse=False, state_v_first=False,
    cu_seqlens=None, **kwargs,
):  # fmt: skip
    """The same recurrence under the name that sequences of up to 64 steps take, in training too."""
    refuse("fused_recurrent_gla", gv=gv, reverse=reverse, cu_seqlens=cu_seqlens)
    only("fused_recurrent_gla", kwargs)
    state = state_in(initial_state, state_v_first)
    out, state = simple_gla(q, k, v, None, scale, state) if gk is None else gla(q, k, v, gk, scale, state)
    return out, state_out(state, output_final_state, state_v_first)


REPLACED = [
    ("fla.ops.gla.chunk", "chunk_gla", chunk_gla,
     "(q, k, v, g, scale=None, initial_state=None, output_final_state=False, state_v_first=False, cu_seqlens=None, "
     "cu_seqlens_cpu=None)"),
    ("fla.ops.gla.fused_recurrent", "fused_recurrent_gla", fused_recurrent_gla,
     "(q, k, v, gk=None, gv=None, scale=None, initial_state=None, output_final_state=False, reverse=False, state_v_first=False, "
     "cu_seqlens=None, **kwargs)"),
]  # fmt: skip
