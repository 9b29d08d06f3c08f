"""Softmax attention with a memory of its own, in plain loops over time: the reference of forgetting.py and path.py.

Slow and simple. The arithmetic is that of the inputs: give float64 for a reference. Axes: B T H K V.
"""

import torch


def forgetting_attention_loop(q, k, v, g, scale=None):
    """See forgetting.forgetting_attention."""
    steps, total = q.shape[1], k.shape[1]
    repeat = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(repeat, 2) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    lost = torch.zeros_like(g[:, 0, :, None]).expand(-1, -1, 0)  # (B, H, keys so far): what each has lost
    out = []
    for t in range(total):
        lost = torch.cat((lost + g[:, t, :, None], torch.zeros_like(g[:, t, :, None])), -1)
        if t >= total - steps:
            scores = scale * torch.einsum("bhk,bshk->bhs", q[:, t - total + steps], k[:, : t + 1]) + lost
            out.append(torch.einsum("bhs,bshv->bhv", scores.softmax(-1), v[:, : t + 1]))
    return torch.stack(out, 1)


def path_attention_loop(q, k, v, w, beta, g=None, scale=None):
    """See path.path_attention: the output, and the keys as the last step leaves them."""
    steps, total = q.shape[1], k.shape[1]
    repeat = q.shape[2] // k.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    gates = v.new_zeros(*v.shape[:2], q.shape[2]) if g is None else g
    lost = gates[:, : total - steps].flip(1).cumsum(1).flip(1)
    lost = torch.cat((lost[:, 1:], torch.zeros_like(lost[:, :1])), 1)  # (B, keys so far, H): what each has lost
    keys, out = k[:, : total - steps], []
    for t in range(steps):
        now = total - steps + t
        along = torch.einsum("bshk,bhk->bsh", keys, w[:, t]) * beta[:, t, None]
        keys = torch.cat((keys - along[..., None] * w[:, t, None], k[:, now, None]), 1)
        lost = torch.cat((lost + gates[:, now, None], torch.zeros_like(gates[:, :1])), 1)
        scores = torch.einsum("bhk,bshk->bsh", q[:, t], keys.repeat_interleave(repeat, 2)) + lost
        values = v[:, : now + 1].repeat_interleave(repeat, 2)
        out.append(torch.einsum("bsh,bshv->bhv", (scale * scores).softmax(1), values))
    return torch.stack(out, 1), keys
