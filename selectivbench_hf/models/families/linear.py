"""Linear attention with no decay or one per head, additive writes. Axes: B T H D."""

from ...errors import InputError
from ..knobs import check_knobs
from ..mixer import Mixer, fla_layer

LAYERS = "selectivbench_hf.models.layers.linear"
LINEAR_ATTENTION = "fla.layers.linear_attn:LinearAttention"
RETNET = f"{LAYERS}:RetNet"
LIGHTNET = f"{LAYERS}:LightNet"
SIMPLE_GLA = f"{LAYERS}:SimpleGLA"
MESA_NET = f"{LAYERS}:MesaNet"
WIDTHS = ("expand_k", "expand_v")  # fla's names for what the knobs state_size and expand say


def widths(hidden_size, num_heads, state_size, expand) -> dict:
    """fla's arguments for key channels of a head and for the width of all values; none for what is None."""
    check_knobs(state_size=state_size, expand=expand)
    given = {}
    if state_size is not None:
        given["expand_k"] = state_size * num_heads / hidden_size
    if expand is not None:
        given["expand_v"] = expand
    return given


def linear_attention(hidden_size, num_heads, layer_idx, state_size=None, expand=None, **kwargs):
    """Linear attention: a sum of outer products, read by queries, then normalised. Queries and keys pass a trained feature map."""
    kwargs |= widths(hidden_size, num_heads, state_size, expand)
    return fla_layer(LINEAR_ATTENTION)(hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, **kwargs)


def linear_attention_state(layer) -> int:
    """Two feature maps widen the keys; with do_feature_map_norm the sum of the keys is carried too."""
    feature_map = layer.feature_map_k
    wider = {"HedgehogFeatureMap": 2, "DPFPFeatureMap": 2 * getattr(feature_map, "nu", 0)}
    features = layer.head_k_dim * wider.get(type(feature_map).__name__, 1)
    return layer.num_heads * features * (layer.head_v_dim + bool(layer.do_feature_map_norm))


def retnet(
    hidden_size, num_heads, layer_idx, decay="fixed", initial_decay=None, use_rope=True, state_size=None, expand=None,
    use_short_conv=False, conv_size=4, use_output_gate=True, **kwargs,
):  # fmt: skip
    """RetNet: a constant decay per head, 1 - 2^(-5 - h), which nothing trains, and rotary positions."""
    knobs = {
        "use_short_conv": use_short_conv,
        "conv_size": conv_size,
        "use_output_gate": use_output_gate,
        "use_rope": use_rope,
    }
    check_knobs(("fixed", "none"), decay=decay, initial_decay=initial_decay, **knobs)
    return fla_layer(RETNET)(
        hidden_size=hidden_size,
        num_heads=num_heads,
        layer_idx=layer_idx,
        initial_decay=1 if decay == "none" else initial_decay,
        **knobs,
        **kwargs | widths(hidden_size, num_heads, state_size, expand),
    )


def lightnet(
    hidden_size, num_heads, layer_idx, state_size=None, use_short_conv=False, conv_size=4, use_output_gate=True, **kwargs
):  # fmt: skip
    """LightNet: every state is a mean of what was written, weighted by exp(key); so the keys make the decays. As many key as value
    channels in a head."""
    knobs = {"use_short_conv": use_short_conv, "conv_size": conv_size, "use_output_gate": use_output_gate}
    check_knobs(state_size=state_size, **knobs)
    if hidden_size % num_heads:
        raise ValueError(f"it must be a multiple of num_heads ({num_heads})")
    return fla_layer(LIGHTNET)(
        hidden_size=hidden_size,
        num_heads=num_heads,
        layer_idx=layer_idx,
        expand_ratio=hidden_size // num_heads if state_size is None else state_size,
        **knobs,
        **kwargs,
    )


def simple_gla(
    hidden_size, num_heads, layer_idx, decay="learned", initial_decay=None, state_size=None, expand=None, use_short_conv=True,
    conv_size=4, use_output_gate=True, **kwargs,
):  # fmt: skip
    """Gated linear attention with one decay a head: that of Mamba-2, in the layer of GLA."""
    from ..gates import turn_decay

    knobs = {"use_short_conv": use_short_conv, "conv_size": conv_size, "use_output_gate": use_output_gate}
    check_knobs(decay=decay, initial_decay=initial_decay, **knobs)
    kwargs |= widths(hidden_size, num_heads, state_size, expand)
    layer = fla_layer(SIMPLE_GLA)(hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, **knobs, **kwargs)
    turn_decay(layer, "gk_proj", layer.gk_proj.bias, decay, initial_decay, layer.gate_logit_normalizer)
    return layer


def mesa_net(
    hidden_size, num_heads, layer_idx, decay="learned", initial_decay=None, state_size=None, use_short_conv=True, conv_size=4,
    use_output_gate=False, max_cg_step_training=30, max_cg_step_decoding=30, lambda_lower_bound=0.25, **kwargs,
):  # fmt: skip
    """MesaNet: two decayed sums, of k k^T and k v^T, read by the solution of the least-squares problem they pose (conjugate gradients).
    As many key as value channels in a head, at most 128."""
    from ..gates import turn_decay

    knobs = {"use_short_conv": use_short_conv, "conv_size": conv_size, "use_output_gate": use_output_gate}
    check_knobs(decay=decay, initial_decay=initial_decay, state_size=state_size, **knobs)
    if max_cg_step_training != max_cg_step_decoding:
        raise InputError(
            f"max_cg_step_training is {max_cg_step_training} and max_cg_step_decoding {max_cg_step_decoding}: they must be equal, or a "
            "sequence step by step is another than in one pass"
        )
    if not 0 <= lambda_lower_bound < 1:
        raise InputError(
            f"lambda_lower_bound is {lambda_lower_bound}; it must be at least 0 and below 1, where lambda starts"
        )
    kwargs |= {
        "max_cg_step_training": max_cg_step_training,
        "max_cg_step_decoding": max_cg_step_decoding,
        "lambda_lower_bound": lambda_lower_bound,
    }
    head_dim = state_size
    if state_size is None:
        head_dim, rest = divmod(hidden_size, num_heads)
        if rest:
            raise ValueError(f"it must be a multiple of num_heads ({num_heads})")
    layer = fla_layer(MESA_NET)(
        hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, head_dim=head_dim, **knobs, **kwargs
    )
    turn_decay(layer, "a_proj", layer.a_proj.bias, decay, initial_decay)
    return layer


MIXERS = (
    Mixer(
        "linear_attention",
        linear_attention,
        "lrm",
        LINEAR_ATTENTION,
        reserved=("mode", *WIDTHS),
        knobs=("state_size", "expand"),
        decay="none",
        write="additive",
        mixing="none",
        paper="Katharopoulos et al. 2020, arXiv:2006.16236",
        state=linear_attention_state,
    ),
    Mixer(
        "retnet",
        retnet,
        "lrm",
        RETNET,
        reserved=("mode", *WIDTHS),
        knobs=(
            "decay",
            "initial_decay",
            "use_rope",
            "state_size",
            "expand",
            "use_short_conv",
            "conv_size",
            "use_output_gate",
        ),
        decay="constant",
        write="additive",
        mixing="none",
        paper="Sun et al. 2023, arXiv:2307.08621",
        state=lambda layer: layer.num_heads * layer.head_k_dim * layer.head_v_dim,
    ),
    Mixer(
        "lightnet",
        lightnet,
        "lrm",
        LIGHTNET,
        reserved=("mode", "expand_ratio", "norm_eps"),  # nothing reads the last
        knobs=("state_size", "use_short_conv", "conv_size", "use_output_gate"),
        decay="data-dependent vector",
        write="additive",
        mixing="none",
        paper="Qin et al. 2024, arXiv:2405.21022",
        state=lambda layer: layer.num_heads * layer.head_f_dim * (layer.head_i_dim + 1),
    ),
    Mixer(
        "simple_gla",
        simple_gla,
        "lrm",
        SIMPLE_GLA,
        reserved=("mode", *WIDTHS),
        knobs=("decay", "initial_decay", "state_size", "expand", "use_short_conv", "conv_size", "use_output_gate"),
        decay="data-dependent scalar",
        write="additive",
        mixing="none",
        paper="Yang et al. 2023, arXiv:2312.06635",
        state=lambda layer: layer.num_heads * layer.head_k_dim * layer.head_v_dim,
    ),
    Mixer(
        "mesa_net",
        mesa_net,
        "lrm",
        MESA_NET,
        reserved=("mode", "head_dim"),
        knobs=("decay", "initial_decay", "state_size", "use_short_conv", "conv_size", "use_output_gate"),
        decay="data-dependent scalar",
        write="additive, read by least squares",
        mixing="none",
        paper="von Oswald et al. 2025, arXiv:2506.05233",
        state=lambda layer: 2 * layer.num_heads * layer.head_dim**2,
    ),
)
