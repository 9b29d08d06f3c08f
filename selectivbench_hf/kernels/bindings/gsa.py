"""Gated slot attention, and ABC, under fla's names. Axes: B T H K V, S slots; states (B, H, K, S) and (B, H, S, V)."""

from ..gsa import gsa
from ..linear import additive_gate
from . import only, refuse


def chunk_gsa(
    q, k, v, s, g=None, scale=None, initial_state=None, output_final_state=False, checkpoint_level=2, cu_seqlens=None,
    cu_seqlens_cpu=None, **kwargs,
):  # fmt: skip
    """Writes s and log decays g (B, T, H, S) of the slots, or logits s of the writes alone. One head of keys may serve several heads of queries, in a row."""
    refuse("chunk_gsa", cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)
    chunk = only("chunk_gsa", kwargs, "chunk_size")
    if g is None:  # slots normalised by all that was written to them
        s, g, _ = additive_gate(s)
    repeat = q.shape[2] // k.shape[2]
    if repeat > 1:
        k, v, s, g = (x.repeat_interleave(repeat, 2) for x in (k, v, s, g))
        if initial_state is not None:
            initial_state = tuple(x.repeat_interleave(repeat, 1) for x in initial_state)
    out, states = gsa(q, k, v, s, g, scale, initial_state, chunk)
    if not output_final_state:
        return out, (None, None)
    return out, tuple(x[:, ::repeat] for x in states)


def fused_recurrent_gsa(
    q, k, v, s, g=None, scale=None, initial_state=None, output_final_state=False, reverse=False, cu_seqlens=None
):
    """The same under the name that sequences of up to 64 steps take, in training too."""
    refuse("fused_recurrent_gsa", reverse=reverse, cu_seqlens=cu_seqlens)
    return chunk_gsa(q, k, v, s, g, scale, initial_state, output_final_state)


def chunk_abc(q, k, v, s, initial_state=None, output_final_state=False):
    """Slots normalised by all that was written to them. fla's states leave out the normaliser, so that nothing can go on from them."""
    refuse("chunk_abc", initial_state=initial_state, output_final_state=output_final_state)
    return chunk_gsa(q, k, v, s)[0], None


REPLACED = [
    ("fla.ops.gsa.chunk", "chunk_gsa", chunk_gsa,
     "(q, k, v, s, g=None, scale=None, initial_state=None, output_final_state=False, checkpoint_level=2, cu_seqlens=None, "
     "cu_seqlens_cpu=None, **kwargs)"),
    ("fla.ops.gsa.fused_recurrent", "fused_recurrent_gsa", fused_recurrent_gsa,
     "(q, k, v, s, g=None, scale=None, initial_state=None, output_final_state=False, reverse=False, cu_seqlens=None)"),
    ("fla.ops.abc.chunk", "chunk_abc", chunk_abc, "(q, k, v, s, initial_state=None, output_final_state=False)"),
]  # fmt: skip
