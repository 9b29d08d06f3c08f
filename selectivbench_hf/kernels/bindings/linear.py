"""What linear attention, retention and LightNet need beside the ops of simple_gla.py and gla.py. Axes: B T H K V.

fla's chunk_linear_attn, chunk_retention, chunk_lightnet and their fused_recurrent forms are a few lines of torch around those ops and
around the functions below, and stay as they are.
"""

from ..linear import additive_gate
from . import refuse
from .simple_gla import chunk_simple_gla


def fused_additive_gate(x, initial_state=None, cu_seqlens=None, output_dtype=None, gate_dtype=None):
    """LightNet's keys and decays from x (B, T, H, K), and the last log normaliser (B, 1, H, K)."""
    refuse("fused_additive_gate", cu_seqlens=cu_seqlens)
    return additive_gate(x, initial_state, output_dtype, gate_dtype)


def fused_chunk_simple_gla(
    q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None
):  # fmt: skip
    """As chunk_simple_gla."""
    refuse("fused_chunk_simple_gla", cu_seqlens=cu_seqlens)
    return chunk_simple_gla(q, k, v, g, g_gamma, scale, initial_state, output_final_state)


def parallel_simple_gla(
    q, k, v, g=None, scale=None, output_attentions=False, cu_seqlens=None, cu_seqlens_cpu=None
):  # fmt: skip
    """The same without states: outputs, and no attention matrix."""
    refuse(
        "parallel_simple_gla",
        output_attentions=output_attentions,
        cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu,
    )
    return chunk_simple_gla(q, k, v, g, scale=scale)[0], None


DISPATCHED = [
    ("fla.ops.gsa.gate", "fused_additive_gate", fused_additive_gate,
     "(x, initial_state=None, cu_seqlens=None, output_dtype=None, gate_dtype=None)"),
    ("fla.ops.simple_gla.fused_chunk", "fused_chunk_simple_gla", fused_chunk_simple_gla,
     "(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None)"),
    ("fla.ops.simple_gla.parallel", "parallel_simple_gla", parallel_simple_gla,
     "(q, k, v, g=None, scale=None, output_attentions=False, cu_seqlens=None, cu_seqlens_cpu=None)"),
]  # fmt: skip
