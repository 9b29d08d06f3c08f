"""The kernels of this package under fla's names and with fla's arguments, one module for a family of recurrences.

Each module ends with the tables that dispatch.py reads, any of:

    DISPATCHED   (home module, name, ours, signature)              functions with a dispatch point of their own in fla
    OPERATIONS   (operation, home module, name, ours, signature)   functions that fla dispatches under an operation's name
    REPLACED     (home module, name or Class.method, ours, signature)   functions without such a point

The signature is that of fla's function when ours was written and tested. Shapes and meaning are those of fla 0.6.0: q, k (B, T, H, K),
v (B, T, H, V), states (B, H, K, V) or, with state_v_first, (B, H, V, K). What is not implemented raises NotImplementedError with the
argument's name.
"""

from ..small import refuse

FAMILIES = (
    "modules",
    "simple_gla",
    "gla",
    "linear",
    "hgrn",
    "gsa",
    "rwkv6",
    "based",
    "delta",
    "gated_delta",
    "comba",
    "mesa",
    "kda",
    "rwkv7",
    "mamba",
    "mamba2",
    "log_linear",
    "forgetting",
    "path",
)

__all__ = ["FAMILIES", "only", "refuse", "state_in", "state_out"]


def state_in(state, v_first):
    """A state as fla passes it, as (B, H, K, V)."""
    return state.transpose(-1, -2) if state is not None and v_first else state


def state_out(state, wanted, v_first):
    """A state (B, H, K, V) as fla expects it back."""
    if not wanted:
        return None
    return state.transpose(-1, -2).contiguous() if v_first else state


def only(where, kwargs, *allowed):
    """Keywords that fla's functions swallow: a few are harmless, the rest are refused by name."""
    refuse(where, **{name: value for name, value in kwargs.items() if name not in allowed})
    return kwargs.get("chunk_size")
