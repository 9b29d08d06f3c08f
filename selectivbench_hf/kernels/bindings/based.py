"""Based and ReBased under fla's names. Axes: B T H K V."""

from ..based import based, rebased
from . import refuse


def parallel_based(q, k, v, scale=None, use_norm=True):
    """The Taylor series of exp(q k) up to the square as weights, normalised."""
    return based(q, k, v, scale, 1e-6 if use_norm else None, want_state=False)[0]


def parallel_rebased(q, k, v, eps=1e-05, use_scale=True, use_normalize=True, return_both=False):
    """Squares of q k as weights, normalised."""
    refuse("parallel_rebased", return_both=return_both)
    return rebased(q, k, v, None if use_scale else 1.0, eps if use_normalize else None, want_state=False)[0]


REPLACED = [
    ("fla.ops.based.parallel", "parallel_based", parallel_based, "(q, k, v, scale=None, use_norm=True)"),
    ("fla.ops.based.fused_chunk", "fused_chunk_based", parallel_based, "(q, k, v, scale=None, use_norm=True)"),
    ("fla.ops.rebased.parallel", "parallel_rebased", parallel_rebased,
     "(q, k, v, eps=1e-05, use_scale=True, use_normalize=True, return_both=False)"),
]  # fmt: skip
