"""Comba's recurrence in chunks (Hu et al. 2025): the delta rule, closed by feedback from the state before it decays.

    S_t = exp(g_t) S_{t-1} + beta_t k_t (v_t - S_{t-1}^T p_t)^T,   o_t = scale * S_t^T q_t           (loop: reference_delta.py)

This is what fla's kernels compute; its plain reference decays the state before it erases. Axes: B T G H K V, as in gated_delta.py.
"""

from .gated_delta import delta


def comba(q, k, v, p, g, beta, scale=None, initial_state=None, chunk=None):
    """q, k, p (B, T, G, K); v (B, T, H, V), H a multiple of G; g (B, T, H) log decay <= 0; beta (B, T, H); initial_state (B, H, K, V).

    Returns o (B, T, H, V) in v's type and the last state (B, H, K, V) in float32 (float64 if an input is). scale: 1/sqrt(K).
    """
    return delta(q, k, p, v, g, beta, scale, initial_state, chunk)
