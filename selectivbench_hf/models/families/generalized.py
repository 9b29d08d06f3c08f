"""Erasing with a decay per channel: KDA, Gated DeltaNet-2 and RWKV-7. Axes: B T H D."""

import math

from ..knobs import check_knobs
from ..mixer import Mixer, fla_layer

GDN2 = "selectivbench_hf.models.layers.kda:GatedDeltaNet2"
KDA = "selectivbench_hf.models.layers.kda:KimiDeltaAttention"
RWKV7 = "selectivbench_hf.models.layers.rwkv7:RWKV7Attention"
MOST_KEYS = 256  # key channels of a head in fla's kernels


def kda(hidden_size, num_heads, layer_idx, safe_gate=False, lower_bound=None, **kwargs):
    """Kimi Delta Attention: a decay per key channel and the delta rule, keys and values as wide as the model."""
    if lower_bound is not None and lower_bound >= 0:
        raise ValueError(f"lower_bound is {lower_bound}; it bounds a logarithm of decays and must be below 0")
    if safe_gate and (lower_bound is None or lower_bound < -5):
        raise ValueError("safe_gate needs a lower_bound of at least -5")
    sizes = _sizes(hidden_size, num_heads, **kwargs)
    return fla_layer(KDA)(layer_idx=layer_idx, safe_gate=safe_gate, lower_bound=lower_bound, **sizes)


def gated_delta_net2(hidden_size, num_heads, layer_idx, **kwargs):
    """Gated DeltaNet-2: KDA with a gate per channel for what is erased and another for what is written."""
    return fla_layer(GDN2)(layer_idx=layer_idx, **_sizes(hidden_size, num_heads, **kwargs))


def _sizes(
    hidden_size, num_heads, use_short_conv=True, conv_size=4, use_output_gate=True, decay="learned", initial_decay=None,
    state_size=None, expand=1, allow_neg_eigval=False, num_v_heads=None, **kwargs,
):  # fmt: skip
    """The knobs, checked, and the sizes as fla's layers take them."""
    knobs = {
        "use_short_conv": use_short_conv,
        "conv_size": conv_size,
        "use_output_gate": use_output_gate,
        "decay": decay,
        "initial_decay": initial_decay,
        "allow_neg_eigval": allow_neg_eigval,
    }
    check_knobs(state_size=state_size, expand=expand, **knobs)
    value_heads, width = num_v_heads or num_heads, expand * hidden_size
    if value_heads % num_heads:
        raise ValueError(f"num_v_heads ({value_heads}) must be a multiple of num_heads ({num_heads})")
    if width % value_heads:
        raise ValueError(f"expand * hidden_size ({width:g}) must be a multiple of the heads of values ({value_heads})")
    if state_size is None and hidden_size % num_heads:
        raise ValueError(f"it must be a multiple of num_heads ({num_heads}), or state_size be given")
    head_dim, head_v_dim = state_size or hidden_size // num_heads, int(width) // value_heads
    if head_dim > MOST_KEYS:
        raise ValueError(f"{head_dim} key channels a head are more than the {MOST_KEYS} that fla's kernels take")
    expand_v = head_v_dim / head_dim
    if int(head_dim * expand_v) < head_v_dim:  # fla rounds the product down
        expand_v = math.nextafter(expand_v, math.inf)
    sizes = {"num_heads": num_heads, "num_v_heads": num_v_heads, "head_dim": head_dim, "expand_v": expand_v}
    return {"hidden_size": hidden_size, **sizes, **knobs, **kwargs}


def rwkv7(
    hidden_size, num_heads, layer_idx, num_hidden_layers, use_output_gate=True, decay="learned", initial_decay=None, **kwargs
):  # fmt: skip
    """RWKV-7's time mixing: a decay per channel, and a key that is erased at a rate of its own in each channel."""
    check_knobs(use_output_gate=use_output_gate, decay=decay, initial_decay=initial_decay)
    if hidden_size % num_heads:
        raise ValueError(f"it must be a multiple of num_heads ({num_heads})")
    if not 2 <= hidden_size // num_heads <= MOST_KEYS:
        raise ValueError(f"heads of {hidden_size // num_heads} channels; fla's layer takes 2 to {MOST_KEYS}")
    return fla_layer(RWKV7)(
        hidden_size=hidden_size, num_heads=num_heads, head_dim=None, layer_idx=layer_idx, num_hidden_layers=num_hidden_layers,
        use_output_gate=use_output_gate, decay=decay, initial_decay=initial_decay, **kwargs,
    )  # fmt: skip


KNOBS_OF_BOTH = (
    "use_short_conv",
    "conv_size",
    "use_output_gate",
    "decay",
    "initial_decay",
    "state_size",
    "expand",
    "allow_neg_eigval",
)
MIXERS = (
    Mixer(
        "kda",
        kda,
        "lrm",
        KDA,
        reserved=("head_dim", "expand_v"),
        knobs=KNOBS_OF_BOTH,
        decay="data-dependent vector",
        write="delta",
        mixing="rank 1",
        paper="Kimi Team 2025, arXiv:2510.26692",
        state=lambda layer: layer.num_v_heads * layer.head_k_dim * layer.head_v_dim,
    ),
    Mixer(
        "gated_delta_net2",
        gated_delta_net2,
        "lrm",
        GDN2,
        reserved=("head_dim", "expand_v"),
        knobs=KNOBS_OF_BOTH,
        decay="data-dependent vector",
        write="delta, erasing and writing gated per channel",
        mixing="rank 1",
        paper="Hatamizadeh et al. 2026, arXiv:2605.22791",
        state=lambda layer: layer.num_v_heads * layer.head_k_dim * layer.head_v_dim,
    ),
    Mixer(
        "rwkv7",
        rwkv7,
        "lrm",
        RWKV7,
        # fla's initialisation fails for values of another width and for a norm without weights
        reserved=("head_dim", "value_dim", "elementwise_affine"),
        knobs=("use_output_gate", "decay", "initial_decay"),
        decay="data-dependent vector",
        write="delta, erasing at a rate per channel",
        mixing="rank 1",
        paper="Peng et al. 2025, arXiv:2503.14456",
        state=lambda layer: layer.num_heads * layer.head_dim * layer.head_v_dim,
    ),
)
