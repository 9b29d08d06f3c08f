"""RWKV-7 under fla's names; its token shift is RWKV-6's. Axes: B T H K V, D = H K channels."""

from ..dplr import dplr
from ..layout import compute_dtype
from . import only, refuse


def chunk_dplr_delta_rule(
    q, k, v, a, b, gk, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None, cu_seqlens_cpu=None,
    safe_gate=False, chunk_size=None, disable_recompute=False, cp_context=None, lower_bound=None, **kwargs,
):  # fmt: skip
    """S_t = (diag(exp(gk)) + b a^T) S_{t-1} + k v^T. safe_gate, lower_bound, chunk_size and disable_recompute tell fla's kernels how to
    compute, and change no result."""
    where = "chunk_dplr_delta_rule"
    refuse(where, cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, cp_context=cp_context)
    only(where, kwargs)
    out, state = dplr(q, k, v, a, b, gk, scale, initial_state)
    return out, state if output_final_state else None


def fused_recurrent_dplr_delta_rule(
    q, k, v, a, b, gk, scale=None, initial_state=None, output_final_state=False, reverse=False, cu_seqlens=None
):  # fmt: skip
    """The same (this form has a gradient; fla's has none)."""
    refuse("fused_recurrent_dplr_delta_rule", reverse=reverse, cu_seqlens=cu_seqlens)
    out, state = dplr(q, k, v, a, b, gk, scale, initial_state)
    return out, state if output_final_state else None


def fused_mul_recurrent_rwkv7(
    r, w, k, v, kk, a, scale=1.0, initial_state=None, output_final_state=False, reverse=False, cu_seqlens=None
):  # fmt: skip
    """The same with RWKV-7's own pair: -kk reads, kk * a writes. The form of short sequences in evaluation."""
    refuse("fused_mul_recurrent_rwkv7", reverse=reverse, cu_seqlens=cu_seqlens)
    dtype = compute_dtype(kk, a)
    kk, a = kk.to(dtype), a.to(dtype)
    out, state = dplr(r, k, v, -kk, kk * a, w, scale, initial_state)
    return out, state if output_final_state else None


def fused_addcmul_rwkv7(hidden_states, delta, xr, xw, xk, xv, xa, xg=None):
    """hidden_states + delta * x for each of the six mixtures x (1, 1, D); hidden_states, delta (B, T, D)."""
    dtype = compute_dtype(hidden_states)
    hidden, change = hidden_states.to(dtype), delta.to(dtype)
    return tuple(
        None if x is None else hidden.addcmul(change, x.to(dtype)).to(hidden_states.dtype)
        for x in (xr, xw, xk, xv, xa, xg)
    )


def fused_k_rwkv7(k, a, ka, cu_seqlens=None, cu_seqlens_cpu=None):
    """k (1 + (a - 1) ka); k, a (B, T, D), ka (D,)."""
    refuse("fused_k_rwkv7", cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)
    dtype = compute_dtype(k, a)
    return (k.to(dtype) * (1 + (a.to(dtype) - 1) * ka.to(dtype))).to(k.dtype)


def gate_output_correction(o, r, k, r_k, v, g):
    """(o + sum_K(r k r_k) v) g; o, g (B, T, D), r, k (B, T, H, K), v (B, T, H, V), r_k (H, K)."""
    dtype = compute_dtype(o, r, k, v, g)
    own = (r.to(dtype) * k.to(dtype) * r_k.to(dtype)).sum(-1, keepdim=True)
    return ((o.to(dtype) + (own * v.to(dtype)).flatten(2)) * g.to(dtype)).to(o.dtype)


OPERATIONS = [
    ("generalized_delta_rule.dplr", "fla.ops.generalized_delta_rule.dplr.chunk", "chunk_dplr_delta_rule",
     chunk_dplr_delta_rule,
     "(q, k, v, a, b, gk, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None, cu_seqlens_cpu=None, "
     "safe_gate=False, chunk_size=None, disable_recompute=False, cp_context=None, lower_bound=None, **kwargs)"),
]  # fmt: skip
REPLACED = [
    ("fla.ops.generalized_delta_rule.dplr.fused_recurrent", "fused_recurrent_dplr_delta_rule",
     fused_recurrent_dplr_delta_rule,
     "(q, k, v, a, b, gk, scale=None, initial_state=None, output_final_state=False, reverse=False, cu_seqlens=None)"),
    ("fla.ops.rwkv7.fused_recurrent", "fused_mul_recurrent_rwkv7", fused_mul_recurrent_rwkv7,
     "(r, w, k, v, kk, a, scale=1.0, initial_state=None, output_final_state=False, reverse=False, cu_seqlens=None)"),
    ("fla.ops.rwkv7.fused_addcmul", "fused_addcmul_rwkv7", fused_addcmul_rwkv7,
     "(hidden_states, delta, xr, xw, xk, xv, xa, xg=None)"),
    ("fla.ops.rwkv7.fused_k_update", "fused_k_rwkv7", fused_k_rwkv7, "(k, a, ka, cu_seqlens=None, cu_seqlens_cpu=None)"),
    ("fla.ops.rwkv7.gate_output_correction", "gate_output_correction", gate_output_correction, "(o, r, k, r_k, v, g)"),
]  # fmt: skip
