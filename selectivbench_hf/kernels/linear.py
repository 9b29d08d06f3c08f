"""LightNet's additive gate: keys and decays from one running sum, so that every state is a weighted mean of what was written.

    z_t = log(exp(z_{t-1}) + exp(x_t)),   k_t = exp(x_t - z_t),   g_t = z_{t-1} - z_t          (Qin et al. 2024, arXiv:2405.21022)

Loop: reference_linear.py. As in hgrn.py a step is one pass over numbers that stay in the cache. Every exponent is at most 0.
Axes: B batch, T time, H heads, K key channels.
"""

import torch

from .layout import compute_dtype, exact_backward


def additive_gate(x, initial_state=None, key_type=None, gate_type=None):
    """x (B, T, H, K); initial_state (B, 1, H, K), the z before the first step (None: minus infinity).

    Returns k and g (B, T, H, K) in x's type, or the given ones, and the last z (B, 1, H, K) in float32 (float64 if an input is). From
    nothing, the first g is 0.
    """
    return _AdditiveGate.apply(x, initial_state, key_type or x.dtype, gate_type or x.dtype)


class _AdditiveGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, initial_state, key_type, gate_type):
        dtype = compute_dtype(x, initial_state)
        batch, steps = x.shape[:2]
        scores = x.new_empty(steps, batch, *x.shape[2:], dtype=dtype).copy_(x.transpose(0, 1))  # time outermost
        z = torch.empty(steps + 1, batch, *x.shape[2:], dtype=dtype, device=x.device)
        z[0] = -torch.inf if initial_state is None else initial_state.squeeze(1)
        for t in range(steps):
            torch.logaddexp(z[t], scores[t], out=z[t + 1])
        keys = scores.sub_(z[1:]).exp_()
        gates = z[:-1] - z[1:]
        empty = z[0] == -torch.inf
        gates[0].masked_fill_(empty, 0)
        ctx.save_for_backward(keys, gates, z[0], z[1])
        ctx.types = (x.dtype, None if initial_state is None else initial_state.dtype)
        return keys.transpose(0, 1).to(key_type), gates.transpose(0, 1).to(gate_type), z[-1].unsqueeze(1).clone()

    @staticmethod
    @exact_backward
    def backward(ctx, dkeys, dgates, dlast):
        keys, gates, before, first = ctx.saved_tensors
        x_type, initial_type = ctx.types
        dkeys, dgates = (grad.transpose(0, 1).to(keys.dtype) for grad in (dkeys, dgates))
        from_keys = dkeys * keys
        # the gradient of each z: of its own step's key and gate, of the next gate, and through the next z
        dz = torch.neg(from_keys).sub_(dgates)
        dz[:-1] += dgates[1:]
        empty = before == -torch.inf
        dz[0] += dgates[0].masked_fill(~empty, 0)  # from nothing the first gate is the constant 0
        dz[-1] += dlast.squeeze(1)
        kept = gates.exp()
        for t in range(len(dz) - 2, -1, -1):
            dz[t].addcmul_(kept[t + 1], dz[t + 1])
        dinitial = None
        if initial_type is not None:
            dinitial = (
                ((before - first).exp().mul_(dz[0]) + dgates[0].masked_fill(empty, 0)).unsqueeze(1).to(initial_type)
            )
        return dz.mul_(keys).add_(from_keys).transpose(0, 1).to(x_type), dinitial, None, None
