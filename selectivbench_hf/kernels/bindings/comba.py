"""Comba under fla's names. Axes: B T H K V."""

import torch

from ..comba import comba
from ..small import l2norm
from . import refuse


def chunk_comba(
    q, k, v, p, g, beta=None, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
    cu_seqlens=None, cu_seqlens_cpu=None,
):  # fmt: skip
    """Writes with k, erases with p (by default k) from the state before its decay; v may have more heads than q, k and p."""
    refuse("chunk_comba", cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)
    p = k if p is None else p
    if v.shape[2] % q.shape[2]:
        raise ValueError(f"chunk_comba: {v.shape[2]} value heads are not a multiple of {q.shape[2]} key heads")
    if use_qk_l2norm_in_kernel:
        with torch.autocast(q.device.type, enabled=False):
            q, k, p = l2norm(q), l2norm(k), l2norm(p)
    if beta is None:
        beta = q.new_ones(v.shape[:3])
    out, state = comba(q, k, v, p, g, beta, scale, initial_state)
    return out, state if output_final_state else None


def fused_recurrent_comba(
    q, k, p, v, g, beta=None, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
):  # fmt: skip
    """The same, p before v, under the name that short sequences take in evaluation (this form has a gradient; fla's has none)."""
    where = "fused_recurrent_comba"
    refuse(where, cu_seqlens=cu_seqlens)
    if beta is not None and beta.dim() == v.dim():
        raise NotImplementedError(
            f"{where} on CPU tensors does not support a beta for every value channel (only CUDA does)"
        )
    return chunk_comba(q, k, v, p, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel)


REPLACED = [
    ("fla.ops.comba.chunk", "chunk_comba", chunk_comba,
     "(q, k, v, p, g, beta=None, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, "
     "cu_seqlens=None, cu_seqlens_cpu=None)"),
    ("fla.ops.comba.fused_recurrent", "fused_recurrent_comba", fused_recurrent_comba,
     "(q, k, p, v, g, beta=None, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, "
     "cu_seqlens=None)"),
]  # fmt: skip
