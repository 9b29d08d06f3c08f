"""Log-linear attention under fla's name, and the layer that asks for a CUDA device. Axes: B T G H K V L."""

from ..log_linear import log_linear
from ..log_linear_mamba2 import log_linear_mamba2_forward
from . import refuse


def chunk_log_linear_attn(
    q, k, v, g, level_scales, initial_state=None, output_final_state=False, cu_seqlens=None, scale=1.0
):
    """Log-linear attention of whole sequences; level_scales (B, T, H, L). The layer keeps states of its own to go on from."""
    refuse(
        "chunk_log_linear_attn",
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )
    return log_linear(q, k, v, g, level_scales, scale), None


REPLACED = [
    ("fla.ops.log_linear_attn.chunk", "chunk_log_linear_attn", chunk_log_linear_attn,
     "(q, k, v, g, level_scales, initial_state=None, output_final_state=False, cu_seqlens=None, scale=1.0)"),
    ("fla.layers.log_linear_mamba2", "LogLinearMamba2.forward", log_linear_mamba2_forward,
     "(self, hidden_states, attention_mask=None, past_key_values=None, use_cache=False, output_attentions=False, **kwargs)"),
]  # fmt: skip
