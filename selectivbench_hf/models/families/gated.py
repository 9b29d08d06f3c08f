"""Linear attention with a decay per channel, additive writes. Axes: B T H D."""

import math

from ...errors import InputError
from ..knobs import check_knobs
from ..mixer import Mixer, fla_layer
from .linear import WIDTHS, widths

GLA = "fla.layers.gla:GatedLinearAttention"


def gla(
    hidden_size, num_heads, layer_idx, decay="learned", initial_decay=None, state_size=None, expand=None, use_short_conv=False,
    conv_size=4, use_output_gate=True, clamp_min=None, **kwargs,
):  # fmt: skip
    """Gated linear attention: a decay per key channel, keys half as wide as values."""
    from ..gates import turn_decay

    knobs = {"use_short_conv": use_short_conv, "conv_size": conv_size, "use_output_gate": use_output_gate}
    check_knobs(decay=decay, initial_decay=initial_decay, **knobs)
    if clamp_min is not None and clamp_min >= 0:
        raise InputError(f"clamp_min is {clamp_min!r}; it bounds a logarithm of decays and must be below 0")
    if initial_decay is not None and clamp_min is not None and math.log(initial_decay) < clamp_min:
        raise InputError(
            f"initial_decay is {initial_decay!r}, and clamp_min {clamp_min!r} lets a decay not fall below {math.exp(clamp_min):.3g}"
        )
    kwargs |= {"clamp_min": clamp_min, **widths(hidden_size, num_heads, state_size, expand)}
    layer = fla_layer(GLA)(hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, **knobs, **kwargs)
    turn_decay(layer, "gk_proj", layer.gk_proj[1].bias, decay, initial_decay, layer.gate_logit_normalizer)
    return layer


MIXERS = (
    Mixer(
        "gla",
        gla,
        "lrm",
        GLA,
        reserved=("mode", *WIDTHS),
        knobs=("decay", "initial_decay", "state_size", "expand", "use_short_conv", "conv_size", "use_output_gate"),
        decay="data-dependent vector",
        write="additive",
        mixing="none",
        paper="Yang et al. 2023, arXiv:2312.06635",
        state=lambda layer: layer.num_heads * layer.head_k_dim * layer.head_v_dim,
    ),
)
