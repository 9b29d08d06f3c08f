"""MesaNet under fla's names. Axes: B T H K."""

from ..mesa import mesa, mesa_step
from ..small import l2norm
from . import refuse


def chunk_mesa_net(
    q, k, v, g, beta, lamb, h_kk_init=None, h_kv_init=None, output_final_state=False, max_CG_iteration=30,
    use_qk_l2norm_in_kernel=False, cu_seqlens=None, cu_seqlens_cpu=None,
):  # fmt: skip
    """Outputs and the two states (or two Nones). fla holds q and k in float16 and states in bfloat16, here they are float32."""
    refuse("chunk_mesa_net", cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)
    if use_qk_l2norm_in_kernel:
        q, k = l2norm(q), l2norm(k)
    out, *states = mesa(q, k, v, g, beta, lamb, h_kk_init, h_kv_init, max_CG_iteration)
    return out, *(states if output_final_state else (None, None))


def mesa_net_decoding_one_step(q, k, v, g, lamb, beta, prev_h_kk, prev_h_kv, max_CG_iteration=30):
    """One step from both states, q, k, v (B, H, K)."""
    return mesa_step(q, k, v, g, beta, lamb, prev_h_kk, prev_h_kv, max_CG_iteration)


REPLACED = [
    ("fla.ops.mesa_net.chunk", "chunk_mesa_net", chunk_mesa_net,
     "(q, k, v, g, beta, lamb, h_kk_init=None, h_kv_init=None, output_final_state=False, max_CG_iteration=30, "
     "use_qk_l2norm_in_kernel=False, cu_seqlens=None, cu_seqlens_cpu=None)"),
    ("fla.ops.mesa_net.decoding_one_step", "mesa_net_decoding_one_step", mesa_net_decoding_one_step,
     "(q, k, v, g, lamb, beta, prev_h_kk, prev_h_kv, max_CG_iteration=30)"),
]  # fmt: skip
