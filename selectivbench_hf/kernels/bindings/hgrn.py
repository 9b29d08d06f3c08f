"""HGRN under fla's names. Axes: B T D."""

from ..hgrn import hgrn
from . import refuse


def chunk_hgrn(x, g, initial_state=None, output_final_state=False):
    """h_t = exp(g_t) h_{t-1} + x_t with x, g (B, T, D) and states (B, D)."""
    out, state = hgrn(x, g, initial_state)
    return out, state if output_final_state else None


def fused_recurrent_hgrn(x, g, initial_state=None, output_final_state=False, cu_seqlens=None):
    """The same under the name that short sequences take in evaluation."""
    refuse("fused_recurrent_hgrn", cu_seqlens=cu_seqlens)
    return chunk_hgrn(x, g, initial_state, output_final_state)


REPLACED = [
    ("fla.ops.hgrn.chunk", "chunk_hgrn", chunk_hgrn, "(x, g, initial_state=None, output_final_state=False)"),
    ("fla.ops.hgrn.fused_recurrent", "fused_recurrent_hgrn", fused_recurrent_hgrn,
     "(x, g, initial_state=None, output_final_state=False, cu_seqlens=None)"),
]  # fmt: skip
