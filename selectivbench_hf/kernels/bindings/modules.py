"""The small fused modules of fla: short convolution, norms, activations."""

from .. import pointwise, small

DISPATCHED = [
    ("fla.modules.causal_conv1d.ops", "causal_conv1d_fwd", small.causal_conv1d_fwd,
     "(x, weight, bias, residual, initial_state=None, output_final_state=False, activation=None, cu_seqlens=None, "
     "cu_seqlens_cpu=None, chunk_indices=None, chunk_size=64, layout_fallback=False)"),
    ("fla.modules.causal_conv1d.ops", "causal_conv1d_bwd", small.causal_conv1d_bwd,
     "(x, dy, dht, weight=None, bias=None, residual=None, initial_state=None, activation=None, cu_seqlens=None, "
     "cu_seqlens_cpu=None, chunk_indices=None, chunk_size=64, layout_fallback=False)"),
    ("fla.modules.causal_conv1d.ops", "causal_conv1d_update", small.causal_conv1d_update,
     "(x, cache, residual=None, weight=None, bias=None, activation=None)"),
    ("fla.modules.causal_conv1d.ops", "causal_conv1d_update_states", small.causal_conv1d_update_states,
     "(x, state_len, initial_state=None, cu_seqlens=None)"),
    ("fla.modules.norm.fused_norm_gate", "layer_norm_gated_fwd", small.layer_norm_gated_fwd,
     "(x, g, weight, bias, activation='swish', eps=1e-05, residual=None, out_dtype=None, residual_dtype=None, is_rms_norm=False)"),
    ("fla.modules.norm.fused_norm_gate", "layer_norm_gated_bwd", small.layer_norm_gated_bwd,
     "(dy, x, g, weight, bias, activation='swish', eps=1e-05, mean=None, rstd=None, dresidual=None, has_residual=False, "
     "is_rms_norm=False, x_dtype=None, recompute_output=False)"),
    ("fla.modules.norm.layernorm", "layer_norm_fwd", small.layer_norm_fwd,
     "(x, weight, bias, eps=1e-05, residual=None, out_dtype=None, residual_dtype=None, is_rms_norm=False, num_groups=1)"),
    ("fla.modules.norm.layernorm", "layer_norm_bwd", small.layer_norm_bwd,
     "(dy, x, weight, bias, mean=None, rstd=None, dres=None, has_residual=False, is_rms_norm=False, x_dtype=None, "
     "recompute_output=False, num_groups=1)"),
    ("fla.modules.norm.l2norm", "l2norm_fwd", small.l2norm_fwd, "(x, eps=1e-06, output_dtype=None)"),
    ("fla.modules.norm.l2norm", "l2norm_bwd", small.l2norm_bwd, "(y, rstd, dy, eps=1e-06)"),
    ("fla.modules.activations.ops", "swish_fwd", small.swish_fwd, "(x, output_contiguous=False)"),
    ("fla.modules.activations.ops", "swish_bwd", small.swish_bwd, "(x, dy, output_contiguous=False)"),
    ("fla.modules.activations.ops", "sigmoid_fwd", small.sigmoid_fwd, "(x, output_contiguous=False)"),
    ("fla.modules.activations.ops", "sigmoid_bwd", small.sigmoid_bwd, "(x, dy, output_contiguous=False)"),
    ("fla.modules.activations.ops", "logsigmoid_fwd", small.logsigmoid_fwd, "(x, temperature=1.0, output_contiguous=False)"),
    ("fla.modules.activations.ops", "logsigmoid_bwd", small.logsigmoid_bwd, "(x, dy, temperature=1.0, output_contiguous=False)"),
    ("fla.modules.activations.ops", "swiglu_fwd", pointwise.swiglu_fwd, "(x, y, output_contiguous=False)"),
    ("fla.modules.activations.ops", "swiglu_fwdbwd", pointwise.swiglu_fwdbwd,
     "(x, y, g, use_weight=False, output_contiguous=False)"),
    ("fla.modules.rotary.ops", "rotary_embedding_fwdbwd", pointwise.rotary_embedding_fwdbwd,
     "(x, cos, sin, seqlen_offsets=0, cu_seqlens=None, interleaved=False, inplace=False, conjugate=False, chunk_indices=None)"),
    ("fla.ops.utils.cumsum", "chunk_global_cumsum", pointwise.chunk_global_cumsum,
     "(s, reverse=False, cu_seqlens=None, scale=None, output_dtype=torch.float32, **kwargs)"),
]  # fmt: skip
REPLACED = [
    ("fla.modules.norm.layernorm_gated", "rmsnorm_fn", small.rmsnorm_fn,
     "(x, weight, bias, z=None, eps=1e-06, group_size=None, norm_before_gate=True)"),
]  # fmt: skip
