"""Kimi Delta Attention and Gated DeltaNet-2 under fla's names. Axes: B T K V, H heads of queries and keys, HV of values, a multiple of H."""

import torch
from torch.nn import functional as F

from ..kda import gdn2, kda
from ..layout import compute_dtype
from ..small import l2norm
from . import only, refuse, state_in, state_out


def chunk_kda(
    q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, safe_gate=False, lower_bound=None,
    disable_recompute=False, return_intermediate_states=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None,
    cp_context=None, use_graph=False, max_num_seqs=None, **kwargs,
):  # fmt: skip
    """KDA. g (B, T, HV, K) is a log decay, or with use_gate_in_kernel what `log_decay` makes one.

    safe_gate and disable_recompute tell fla's kernels how to compute and change no result."""
    where = "chunk_kda"
    refuse(
        where, return_intermediate_states=return_intermediate_states, cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu,
        cp_context=cp_context, use_graph=use_graph, max_num_seqs=max_num_seqs,
    )  # fmt: skip
    chunk = only(where, kwargs, "chunk_size", "A_log", "dt_bias")
    if v.shape[2] % q.shape[2]:
        raise ValueError(f"{where}: {v.shape[2]} value heads are not a multiple of {q.shape[2]} key heads")
    dtype = compute_dtype(q, k, v, g, beta)
    with torch.autocast(q.device.type, enabled=False):
        if use_gate_in_kernel:
            g = log_decay(g.to(dtype), kwargs.get("A_log"), kwargs.get("dt_bias"), lower_bound)
        if use_beta_sigmoid_in_kernel:
            beta = beta.to(dtype).sigmoid() * (2.0 if allow_neg_eigval else 1.0)
        elif allow_neg_eigval:
            raise ValueError(f"{where}: allow_neg_eigval needs use_beta_sigmoid_in_kernel")
        if use_qk_l2norm_in_kernel:
            q, k = l2norm(q), l2norm(k)
        out, state = kda(q, k, v, g, beta, scale, state_in(initial_state, state_v_first), chunk)
    return out, state_out(state, output_final_state, state_v_first)


def fused_recurrent_kda(
    q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None, output_final_state=False,
    use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False,
    lower_bound=None, state_v_first=False, cu_seqlens=None, **kwargs,
):  # fmt: skip
    """The same under the name that short sequences take in evaluation (this form has a gradient; fla's has none)."""
    where = "fused_recurrent_kda"
    refuse(where, cu_seqlens=cu_seqlens)
    only(where, kwargs)
    return chunk_kda(
        q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
        use_beta_sigmoid_in_kernel, allow_neg_eigval, lower_bound=lower_bound, state_v_first=state_v_first, A_log=A_log,
        dt_bias=dt_bias,
    )  # fmt: skip


def fused_recurrent_kda_fwd(
    q, k, v, g, beta, A_log=None, dt_bias=None, initial_state=None, scale=None, output_final_state=False, inplace_final_state=True,
    state_v_first=False, cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None, use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, lower_bound=None, out=None, **kwargs,
):  # fmt: skip
    """What fla's function of that name calls: for transformers' models imported before the kernels were enabled, which hold that one."""
    where = "fused_recurrent_kda_fwd"
    refuse(
        where, inplace_final_state=inplace_final_state, ssm_state_indices=ssm_state_indices,
        num_accepted_tokens=num_accepted_tokens, out=out,
    )  # fmt: skip
    return fused_recurrent_kda(
        q, k, v, g, beta, A_log, dt_bias, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
        use_beta_sigmoid_in_kernel, allow_neg_eigval, lower_bound, state_v_first, cu_seqlens, **kwargs,
    )  # fmt: skip


def chunk_gdn2(
    q, k, v, g, b, w, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False, cu_seqlens=None, cu_seqlens_cpu=None, safe_gate=False, lower_bound=None, disable_recompute=False,
    return_intermediate_states=False, state_v_first=False, cp_context=None, **kwargs,
):  # fmt: skip
    """Gated DeltaNet-2: b (B, T, H, K) erases, w (B, T, H, V) writes, all have H heads; the rest is as in chunk_kda."""
    where = "chunk_gdn2"
    refuse(
        where, return_intermediate_states=return_intermediate_states, cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu,
        cp_context=cp_context,
    )  # fmt: skip
    chunk = only(where, kwargs, "chunk_size", "A_log", "dt_bias")
    dtype = compute_dtype(q, k, v, g, b, w)
    with torch.autocast(q.device.type, enabled=False):
        if use_gate_in_kernel:
            g = log_decay(g.to(dtype), kwargs.get("A_log"), kwargs.get("dt_bias"), lower_bound)
        if use_qk_l2norm_in_kernel:
            q, k = l2norm(q), l2norm(k)
        out, state = gdn2(q, k, v, g, b, w, scale, state_in(initial_state, state_v_first), chunk)
    return out, state_out(state, output_final_state, state_v_first)


def fused_recurrent_gdn2(
    q, k, v, g, b, w, A_log=None, dt_bias=None, scale=None, initial_state=None, output_final_state=False,
    use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, lower_bound=None, state_v_first=False, cu_seqlens=None, **kwargs,
):  # fmt: skip
    """The same under the name that short sequences take in evaluation (this form has a gradient; fla's has none)."""
    where = "fused_recurrent_gdn2"
    refuse(where, cu_seqlens=cu_seqlens)
    only(where, kwargs)
    return chunk_gdn2(
        q, k, v, g, b, w, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
        lower_bound=lower_bound, state_v_first=state_v_first, A_log=A_log, dt_bias=dt_bias,
    )  # fmt: skip


def log_decay(g, A_log, dt_bias, lower_bound):
    """g (B, T, HV, K), A_log (HV,) or None, dt_bias (HV K,) or None: -exp(A_log) softplus(g + dt_bias), or with a lower bound
    lower_bound sigmoid(exp(A_log) (g + dt_bias))."""
    if dt_bias is not None:
        g = g + dt_bias.to(g.dtype).view(g.shape[2:])
    rate = 1.0 if A_log is None else A_log.to(g.dtype).exp()[:, None]
    if lower_bound is not None:
        return lower_bound * torch.sigmoid(rate * g)
    if A_log is None:
        raise ValueError("KDA's gate needs A_log where there is no lower_bound")
    return -rate * F.softplus(g)


DISPATCHED = [
    ("fla.ops.kda.chunk", "chunk_kda", chunk_kda,
     "(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, "
     "use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, safe_gate=False, lower_bound=None, "
     "disable_recompute=False, return_intermediate_states=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, "
     "cp_context=None, use_graph=False, max_num_seqs=None, **kwargs)"),
]  # fmt: skip
OPERATIONS = [
    ("kda", "fla.ops.kda.fused_recurrent", "fused_recurrent_kda_fwd", fused_recurrent_kda_fwd,
     "(q, k, v, g, beta, A_log=None, dt_bias=None, initial_state=None, scale=None, output_final_state=False, "
     "inplace_final_state=True, state_v_first=False, cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None, "
     "use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, "
     "lower_bound=None, out=None, **kwargs)"),
]  # fmt: skip
REPLACED = [
    ("fla.ops.kda.fused_recurrent", "fused_recurrent_kda", fused_recurrent_kda,
     "(q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None, output_final_state=False, "
     "use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, "
     "lower_bound=None, state_v_first=False, cu_seqlens=None, **kwargs)"),
    ("fla.ops.gdn2.chunk", "chunk_gdn2", chunk_gdn2,
     "(q, k, v, g, b, w, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, "
     "use_gate_in_kernel=False, cu_seqlens=None, cu_seqlens_cpu=None, safe_gate=False, lower_bound=None, "
     "disable_recompute=False, return_intermediate_states=False, state_v_first=False, cp_context=None, **kwargs)"),
    ("fla.ops.gdn2.fused_recurrent", "fused_recurrent_gdn2", fused_recurrent_gdn2,
     "(q, k, v, g, b, w, A_log=None, dt_bias=None, scale=None, initial_state=None, output_final_state=False, "
     "use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, lower_bound=None, state_v_first=False, cu_seqlens=None, "
     "**kwargs)"),
]  # fmt: skip
