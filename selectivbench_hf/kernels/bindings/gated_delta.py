"""The gated delta rule under fla's names. Axes: B T H K V."""

import torch
from torch.nn import functional as F

from ..gated_delta import gated_delta
from ..layout import compute_dtype
from ..small import l2norm
from . import only, refuse, state_in, state_out


def chunk_gated_delta_rule(
    q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
    use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None,
    chunk_indices=None, cp_context=None, **kwargs,
):  # fmt: skip
    """The gated delta rule. g (B, T, HV) is a log decay, or with use_gate_in_kernel what -exp(A_log) softplus(g + dt_bias) makes one."""
    where = "chunk_gated_delta_rule"
    refuse(
        where, cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_indices=chunk_indices, cp_context=cp_context
    )
    chunk = only(where, kwargs, "chunk_size", "use_gate_in_kernel", "A_log", "dt_bias")
    if v.shape[2] % q.shape[2]:
        raise ValueError(f"{where}: {v.shape[2]} value heads are not a multiple of {q.shape[2]} key heads")
    dtype = compute_dtype(q, k, v, g, beta)
    with torch.autocast(q.device.type, enabled=False):
        if kwargs.get("use_gate_in_kernel"):
            g = g.to(dtype) if kwargs.get("dt_bias") is None else g.to(dtype) + kwargs["dt_bias"].to(dtype)
            g = -kwargs["A_log"].to(dtype).exp() * F.softplus(g)
        if use_beta_sigmoid_in_kernel:
            beta = beta.to(dtype).sigmoid() * (2.0 if allow_neg_eigval else 1.0)
        elif allow_neg_eigval:
            raise ValueError(f"{where}: allow_neg_eigval needs use_beta_sigmoid_in_kernel")
        if use_qk_l2norm_in_kernel:
            q, k = l2norm(q), l2norm(k)
        out, state = gated_delta(q, k, v, g, beta, scale, state_in(initial_state, state_v_first), chunk)
    return out, state_out(state, output_final_state, state_v_first)


def fused_recurrent_gated_delta_rule(
    q, k, v, g=None, gk=None, gv=None, beta=None, scale=None, initial_state=None, output_final_state=False,
    use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, A_log=None, dt_bias=None, use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False, state_v_first=False, cu_seqlens=None, **kwargs,
):  # fmt: skip
    """The same under the name that short sequences take in evaluation (this form has a gradient; fla's has none)."""
    where = "fused_recurrent_gated_delta_rule"
    refuse(where, gk=gk, gv=gv, cu_seqlens=cu_seqlens)
    only(where, kwargs)
    if beta is None:
        beta = q.new_ones(v.shape[:3])
    if beta.dim() == v.dim():
        raise NotImplementedError(
            f"{where} on CPU tensors does not support a beta for every value channel (only CUDA does)"
        )
    return chunk_gated_delta_rule(
        q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel,
        allow_neg_eigval, state_v_first, use_gate_in_kernel=use_gate_in_kernel, A_log=A_log, dt_bias=dt_bias,
    )  # fmt: skip


def fused_recurrent_gated_delta_rule_fwd(
    q, k, v, g=None, gk=None, gv=None, beta=None, A_log=None, dt_bias=None, scale=None, initial_state=None,
    output_final_state=False, use_qk_l2norm_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False,
    state_v_first=False, cu_seqlens=None,
):  # fmt: skip
    """What fla's function of that name calls: for transformers' models imported before the kernels were enabled, which hold that one."""
    return fused_recurrent_gated_delta_rule(
        q, k, v, g, gk, gv, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, A_log is not None,
        A_log, dt_bias, use_beta_sigmoid_in_kernel, allow_neg_eigval, state_v_first, cu_seqlens,
    )  # fmt: skip


OPERATIONS = [
    ("gated_delta_rule", "fla.ops.gated_delta_rule.chunk", "chunk_gated_delta_rule", chunk_gated_delta_rule,
     "(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, "
     "use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, "
     "chunk_indices=None, cp_context=None, **kwargs)"),
]  # fmt: skip
REPLACED = [
    ("fla.ops.gated_delta_rule.fused_recurrent", "fused_recurrent_gated_delta_rule", fused_recurrent_gated_delta_rule,
     "(q, k, v, g=None, gk=None, gv=None, beta=None, scale=None, initial_state=None, output_final_state=False, "
     "use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, A_log=None, dt_bias=None, use_beta_sigmoid_in_kernel=False, "
     "allow_neg_eigval=False, state_v_first=False, cu_seqlens=None, **kwargs)"),
    ("fla.ops.gated_delta_rule.fused_recurrent", "fused_recurrent_gated_delta_rule_fwd", fused_recurrent_gated_delta_rule_fwd,
     "(q, k, v, g=None, gk=None, gv=None, beta=None, A_log=None, dt_bias=None, scale=None, initial_state=None, "
     "output_final_state=False, use_qk_l2norm_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, "
     "state_v_first=False, cu_seqlens=None)"),
]  # fmt: skip
