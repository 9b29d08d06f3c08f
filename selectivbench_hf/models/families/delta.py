"""The delta rule and its kin: a write first erases what its key holds. Axes: B T H D."""

import math
import warnings

from ..knobs import check_knobs
from ..mixer import Mixer, fla_layer

DELTA_NET = "selectivbench_hf.models.layers.delta:DeltaNet"
GATED_DELTA_NET = "fla.layers.gated_deltanet:GatedDeltaNet"
GATED_DELTA_PRODUCT = "selectivbench_hf.models.layers.delta:GatedDeltaProduct"
COMBA = "fla.layers.comba:Comba"
MOST_KEYS = 256  # key channels of a head in fla's chunk kernels


def delta_net(
    hidden_size, num_heads, layer_idx, use_short_conv=True, conv_size=4, use_output_gate=False, state_size=None, expand=1,
    allow_neg_eigval=False, **kwargs,
):  # fmt: skip
    """DeltaNet: the delta rule, nothing forgotten by decay. Keys and values as wide as the model."""
    check_knobs(
        use_short_conv=use_short_conv, conv_size=conv_size, use_output_gate=use_output_gate, state_size=state_size,
        expand=expand, allow_neg_eigval=allow_neg_eigval,
    )  # fmt: skip
    keys, values = _channels(hidden_size, num_heads, num_heads, 1, state_size, expand)
    return _built(
        DELTA_NET, hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, use_short_conv=use_short_conv,
        conv_size=conv_size, use_gate=use_output_gate, expand_k=keys * num_heads / hidden_size,
        expand_v=values * num_heads / hidden_size, allow_neg_eigval=allow_neg_eigval, **kwargs,
    )  # fmt: skip


def gated_delta_net(
    hidden_size, num_heads, layer_idx, use_short_conv=True, conv_size=4, use_output_gate=True, decay="learned", initial_decay=None,
    state_size=None, expand=1.5, allow_neg_eigval=False, num_v_heads=None, **kwargs,
):  # fmt: skip
    """Gated DeltaNet: a decay per head and the delta rule. fla's allocation: keys of 0.75 * hidden_size, values of twice that."""
    from ..gates import turn_softplus_decay

    check_knobs(
        use_short_conv=use_short_conv, conv_size=conv_size, use_output_gate=use_output_gate, decay=decay,
        initial_decay=initial_decay, state_size=state_size, expand=expand, allow_neg_eigval=allow_neg_eigval,
    )  # fmt: skip
    layer = _built(
        GATED_DELTA_NET, hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, use_short_conv=use_short_conv,
        conv_size=conv_size, use_gate=use_output_gate, allow_neg_eigval=allow_neg_eigval, num_v_heads=num_v_heads,
        **_heads(hidden_size, num_heads, num_v_heads, state_size, expand), **kwargs,
    )  # fmt: skip
    turn_softplus_decay(layer, "a_proj", decay, initial_decay)
    return layer


def gated_delta_product(
    hidden_size, num_heads, layer_idx, use_short_conv=True, conv_size=4, use_output_gate=True, decay="learned", initial_decay=None,
    state_size=None, expand=1.5, allow_neg_eigval=True, num_householder=2, num_v_heads=None, **kwargs,
):  # fmt: skip
    """Gated DeltaProduct: several delta-rule writes a step after one decay, each with keys, values and beta of its own."""
    from ..gates import turn_softplus_decay

    check_knobs(
        use_short_conv=use_short_conv, conv_size=conv_size, use_output_gate=use_output_gate, decay=decay,
        initial_decay=initial_decay, state_size=state_size, expand=expand, allow_neg_eigval=allow_neg_eigval,
        num_householder=num_householder,
    )  # fmt: skip
    layer = _built(
        GATED_DELTA_PRODUCT, hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, use_short_conv=use_short_conv,
        conv_size=conv_size, use_output_gate=use_output_gate, use_forget_gate=decay != "none", allow_neg_eigval=allow_neg_eigval,
        num_householder=num_householder, num_v_heads=num_v_heads,
        **_heads(hidden_size, num_heads, num_v_heads, state_size, expand), **kwargs,
    )  # fmt: skip
    if decay != "none":
        turn_softplus_decay(layer, "a_proj", decay, initial_decay)
    return layer


def comba(
    hidden_size, num_heads, layer_idx, use_short_conv=True, conv_size=4, use_output_gate=True, decay="learned", initial_decay=None,
    state_size=None, expand=1.5, num_v_heads=None, **kwargs,
):  # fmt: skip
    """Comba: the delta rule that erases before the state decays, and an output that subtracts what the erased key holds."""
    from ..gates import turn_softplus_decay

    check_knobs(
        use_short_conv=use_short_conv, conv_size=conv_size, use_output_gate=use_output_gate, decay=decay,
        initial_decay=initial_decay, state_size=state_size, expand=expand,
    )  # fmt: skip
    layer = _built(
        COMBA, hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, use_short_conv=use_short_conv,
        conv_size=conv_size, use_output_gate=use_output_gate, num_v_heads=num_v_heads,
        **_heads(hidden_size, num_heads, num_v_heads, state_size, expand), **kwargs,
    )  # fmt: skip
    turn_softplus_decay(layer, "a_proj", decay, initial_decay)
    return layer


def _channels(hidden_size, num_heads, value_heads, share, state_size, expand) -> tuple[int, int]:
    """Key and value channels of a head. share: width of all keys / hidden_size where state_size does not say."""
    if value_heads % num_heads:
        raise ValueError(f"num_v_heads ({value_heads}) must be a multiple of num_heads ({num_heads})")
    keys = share * hidden_size / num_heads if state_size is None else state_size
    if keys % 1:
        width = "it" if share == 1 else f"{share} * hidden_size"
        raise ValueError(f"{width} must be a multiple of num_heads ({num_heads}), or state_size be given")
    values = expand * hidden_size / value_heads
    if values % 1:
        raise ValueError(
            f"expand * hidden_size ({expand * hidden_size:g}) must be a multiple of the heads of values ({value_heads})"
        )
    if keys > MOST_KEYS:
        raise ValueError(f"{keys:g} key channels a head are more than the {MOST_KEYS} that fla's kernels take")
    return int(keys), int(values)


def _heads(hidden_size, num_heads, num_v_heads, state_size, expand) -> dict:
    """fla's names for the channels of a head."""
    keys, values = _channels(hidden_size, num_heads, num_v_heads or num_heads, 0.75, state_size, expand)
    ratio = values / keys
    if int(keys * ratio) < values:  # fla rounds the product down
        ratio = math.nextafter(ratio, math.inf)
    return {"head_dim": keys, "expand_v": ratio}


def _built(layer, **arguments):
    """fla's layer, without its advice on arguments that the user has chosen."""
    with warnings.catch_warnings():
        for advice in ("ShortConvolution is crucial", "The correction_factor is set"):
            warnings.filterwarnings("ignore", message=advice)
        return fla_layer(layer)(**arguments)


def _state(layer):
    return layer.num_v_heads * layer.head_k_dim * layer.head_v_dim


CONV = ("use_short_conv", "conv_size", "use_output_gate")
DECAY = ("decay", "initial_decay")
SIZE = ("state_size", "expand")

MIXERS = (
    Mixer(
        "delta_net",
        delta_net,
        "lrm",
        DELTA_NET,
        reserved=("d_model", "use_gate", "expand_k", "expand_v"),
        knobs=(*CONV, *SIZE, "allow_neg_eigval"),
        decay="none",
        write="delta",
        mixing="rank 1",
        paper="Yang et al. 2024, arXiv:2406.06484",
        state=lambda layer: layer.num_heads * layer.head_k_dim * layer.head_v_dim,
    ),
    Mixer(
        "gated_delta_net",
        gated_delta_net,
        "lrm",
        GATED_DELTA_NET,
        reserved=("use_gate", "head_dim", "expand_v"),
        knobs=(*CONV, *DECAY, *SIZE, "allow_neg_eigval"),
        decay="data-dependent scalar",
        write="delta",
        mixing="rank 1",
        paper="Yang et al. 2024, arXiv:2412.06464",
        state=_state,
    ),
    Mixer(
        "gated_delta_product",
        gated_delta_product,
        "lrm",
        GATED_DELTA_PRODUCT,
        reserved=("use_forget_gate", "head_dim", "expand_v"),
        knobs=(*CONV, *DECAY, *SIZE, "allow_neg_eigval", "num_householder"),
        decay="data-dependent scalar",
        write="product of Householders",
        mixing="rank k",
        paper="Siems et al. 2025, arXiv:2502.10297",
        state=_state,
    ),
    Mixer(
        "comba",
        comba,
        "lrm",
        COMBA,
        reserved=("head_dim", "expand_v"),
        knobs=(*CONV, *DECAY, *SIZE),
        decay="data-dependent scalar",
        write="delta, erasing before the decay",
        mixing="rank 1",
        paper="Hu et al. 2025, arXiv:2506.02475",
        state=_state,
    ),
)
