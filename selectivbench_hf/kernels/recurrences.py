"""The recurrences under fla's names and with fla's arguments, on the chunked forms of this package.

Shapes and meaning as in fla 0.6.0: q, k (B, T, H, K), v (B, T, H, V), states (B, H, K, V) or (B, H, V, K) with state_v_first.
What is not implemented raises NotImplementedError with the argument's name.
"""

import torch
from torch.nn import functional as F

from .gated_delta import gated_delta
from .gla import gla
from .layout import compute_dtype
from .simple_gla import simple_gla
from .small import l2norm, refuse


def _state_in(state, v_first):
    return state.transpose(-1, -2) if state is not None and v_first else state


def _state_out(state, wanted, v_first):
    if not wanted:
        return None
    return state.transpose(-1, -2).contiguous() if v_first else state


def _only(where, kwargs, *allowed):
    """Keywords that fla's functions swallow: a few are harmless, the rest are refused by name."""
    refuse(where, **{name: value for name, value in kwargs.items() if name not in allowed})
    return kwargs.get("chunk_size")


def chunk_gla(
    q, k, v, g, scale=None, initial_state=None, output_final_state=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None
):  # fmt: skip
    """Gated linear attention with log decays g (B, T, H, K)."""
    refuse("chunk_gla", cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)
    out, state = gla(q, k, v, g, scale, _state_in(initial_state, state_v_first))
    return out, _state_out(state, output_final_state, state_v_first)


def fused_recurrent_gla(
    q, k, v, gk=None, gv=None, scale=None, initial_state=None, output_final_state=False, reverse=False, state_v_first=False,
    cu_seqlens=None, **kwargs,
):  # fmt: skip
    """The same recurrence under the name that sequences of up to 64 steps take, in training too."""
    refuse("fused_recurrent_gla", gv=gv, reverse=reverse, cu_seqlens=cu_seqlens)
    _only("fused_recurrent_gla", kwargs)
    state = _state_in(initial_state, state_v_first)
    out, state = simple_gla(q, k, v, None, scale, state) if gk is None else gla(q, k, v, gk, scale, state)
    return out, _state_out(state, output_final_state, state_v_first)


def chunk_simple_gla(
    q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False, state_v_first=False, cu_seqlens=None,
    cu_seqlens_cpu=None, **kwargs,
):  # fmt: skip
    """Linear attention with a log decay g (B, T, H) per head, or g_gamma (H,), or none."""
    refuse("chunk_simple_gla", cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)
    chunk = _only("chunk_simple_gla", kwargs, "chunk_size")
    if g_gamma is not None:
        if g is not None:
            raise ValueError("chunk_simple_gla takes g or g_gamma, not both")
        g = g_gamma.expand(*q.shape[:2], -1)
    out, state = simple_gla(q, k, v, g, scale, _state_in(initial_state, state_v_first), chunk)
    return out, _state_out(state, output_final_state, state_v_first)


def fused_recurrent_simple_gla(
    q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False, reverse=False, state_v_first=False,
    cu_seqlens=None, **kwargs,
):  # fmt: skip
    """As chunk_simple_gla."""
    refuse("fused_recurrent_simple_gla", reverse=reverse)
    _only("fused_recurrent_simple_gla", kwargs)
    return chunk_simple_gla(q, k, v, g, g_gamma, scale, initial_state, output_final_state, state_v_first, cu_seqlens)


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
    chunk = _only(where, kwargs, "chunk_size", "use_gate_in_kernel", "A_log", "dt_bias")
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
        out, state = gated_delta(q, k, v, g, beta, scale, _state_in(initial_state, state_v_first), chunk)
    return out, _state_out(state, output_final_state, state_v_first)


def fused_recurrent_gated_delta_rule(
    q, k, v, g=None, gk=None, gv=None, beta=None, scale=None, initial_state=None, output_final_state=False,
    use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, A_log=None, dt_bias=None, use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False, state_v_first=False, cu_seqlens=None, **kwargs,
):  # fmt: skip
    """The same under the name that short sequences take in evaluation (this form has a gradient; fla's has none)."""
    where = "fused_recurrent_gated_delta_rule"
    refuse(where, gk=gk, gv=gv, cu_seqlens=cu_seqlens)
    _only(where, kwargs)
    if beta is None:
        beta = q.new_ones(v.shape[:3])
    return chunk_gated_delta_rule(
        q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel,
        allow_neg_eigval, state_v_first, use_gate_in_kernel=use_gate_in_kernel, A_log=A_log, dt_bias=dt_bias,
    )  # fmt: skip
