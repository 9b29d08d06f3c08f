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
