"""The delta rule without gates, and with several writes a step, under fla's names. Axes: B T H K V.

fla's chunk forms refuse float32 inputs on CUDA; these take any floating type.
"""

import torch

from ..gated_delta import gated_delta, gated_delta_product
from ..small import l2norm
from . import only, refuse


def chunk_delta_rule(
    q, k, v, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, cu_seqlens=None,
    cu_seqlens_cpu=None, **kwargs,
):  # fmt: skip
    """The delta rule; beta (B, T, H)."""
    refuse("chunk_delta_rule", cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)
    chunk = only("chunk_delta_rule", kwargs, "chunk_size")
    q, k = _normalised(q, k, use_qk_l2norm_in_kernel)
    out, state = gated_delta(q, k, v, None, beta, scale, initial_state, chunk)
    return out, state if output_final_state else None


def fused_recurrent_delta_rule(
    q, k, v, beta=None, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, cu_seqlens=None
):  # fmt: skip
    """The same recurrence under the name that sequences of up to 64 steps take, in training too."""
    where = "fused_recurrent_delta_rule"
    refuse(where, cu_seqlens=cu_seqlens)
    if beta is None:
        beta = q.new_ones(q.shape[:3])
    if beta.dim() == v.dim():
        raise NotImplementedError(
            f"{where} on CPU tensors does not support a beta for every value channel (only CUDA does)"
        )
    return chunk_delta_rule(q, k, v, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel)


def chunk_gated_delta_product(
    q, k, v, g, beta, num_householder, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
    cu_seqlens=None, cu_seqlens_cpu=None, cp_context=None,
):  # fmt: skip
    """num_householder writes a step: k, v and beta have that many rows a step, in order; g (B, T, H) or None decays before the first."""
    refuse("chunk_gated_delta_product", cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, cp_context=cp_context)
    q, k = _normalised(q, k, use_qk_l2norm_in_kernel)
    out, state = gated_delta_product(q, k, v, g, beta, num_householder, scale, initial_state)
    return out, state if output_final_state else None


def _normalised(q, k, wanted):
    if not wanted:
        return q, k
    with torch.autocast(q.device.type, enabled=False):
        return l2norm(q), l2norm(k)


REPLACED = [
    ("fla.ops.delta_rule.chunk", "chunk_delta_rule", chunk_delta_rule,
     "(q, k, v, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, cu_seqlens=None, "
     "cu_seqlens_cpu=None, **kwargs)"),
    ("fla.ops.delta_rule.fused_recurrent", "fused_recurrent_delta_rule", fused_recurrent_delta_rule,
     "(q, k, v, beta=None, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, cu_seqlens=None)"),
    ("fla.ops.gated_delta_product.chunk", "chunk_gated_delta_product", chunk_gated_delta_product,
     "(q, k, v, g, beta, num_householder, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, "
     "cu_seqlens=None, cu_seqlens_cpu=None, cp_context=None)"),
]  # fmt: skip
