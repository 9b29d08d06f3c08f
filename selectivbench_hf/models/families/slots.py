"""States in slots, and gates that write what they forget: HGRN, HGRN2, GSA, ABC. Axes: B T H D."""

from ..knobs import check_knobs
from ..mixer import Mixer, fla_layer

HGRN = "selectivbench_hf.models.layers.slots:HGRN"
HGRN2 = "selectivbench_hf.models.layers.slots:HGRN2"
GSA = "selectivbench_hf.models.layers.slots:SlotAttention"
ABC = "selectivbench_hf.models.layers.slots:BoundedMemory"


def _whole(name: str, factor: float, width: int, heads: int = 1) -> int:
    """factor * width where that is a multiple of the heads, else ValueError: no width is rounded."""
    product = factor * width
    if product != int(product) or product % heads:
        wanted = "a whole number" if heads == 1 else f"a multiple of num_heads ({heads})"
        raise ValueError(f"{name} ({product:g}) must be {wanted}")
    return int(product)


def hgrn(
    hidden_size, num_heads, layer_idx, num_hidden_layers=1, use_short_conv=False, conv_size=4, use_output_gate=True,
    decay="learned", initial_decay=None, expand=1, use_lower_bound=True, **kwargs,
):  # fmt: skip
    """HGRN: one number a channel, and no heads. As in fla's models each layer's decays have a lower bound (use_lower_bound)."""
    check_knobs(
        use_short_conv=use_short_conv, conv_size=conv_size, use_output_gate=use_output_gate, decay=decay,
        initial_decay=initial_decay, expand=expand,
    )  # fmt: skip
    _whole("expand * hidden_size", expand, hidden_size)
    return fla_layer(HGRN)(
        hidden_size=hidden_size, layer_idx=layer_idx, num_hidden_layers=num_hidden_layers, expand_ratio=expand,
        use_short_conv=use_short_conv, conv_size=conv_size, use_output_gate=use_output_gate, decay=decay,
        initial_decay=initial_decay, use_lower_bound=use_lower_bound, **kwargs,
    )  # fmt: skip


def hgrn2(
    hidden_size, num_heads, layer_idx, num_hidden_layers=1, use_short_conv=False, conv_size=4, decay="learned",
    initial_decay=None, state_size=None, use_lower_bound=True, **kwargs,
):  # fmt: skip
    """HGRN2: gated linear attention whose keys are 1 - decay, as many channels of them in a head as of values.

    As in fla's models each layer's decays have a lower bound (use_lower_bound).
    """
    check_knobs(
        use_short_conv=use_short_conv, conv_size=conv_size, decay=decay, initial_decay=initial_decay, state_size=state_size
    )  # fmt: skip
    _whole("hidden_size", 1, hidden_size, num_heads)
    return fla_layer(HGRN2)(
        hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, num_hidden_layers=num_hidden_layers,
        use_short_conv=use_short_conv, conv_size=conv_size, decay=decay, initial_decay=initial_decay, state_size=state_size,
        use_lower_bound=use_lower_bound, **kwargs,
    )  # fmt: skip


def gsa(
    hidden_size, num_heads, layer_idx, use_short_conv=False, conv_size=4, decay="learned", initial_decay=None, state_size=None,
    expand=1, expand_k=1, num_kv_heads=None, **kwargs,
):  # fmt: skip
    """Gated slot attention: as many slots (state_size) as a head has key channels, each with a key and a value."""
    check_knobs(
        use_short_conv=use_short_conv, conv_size=conv_size, decay=decay, initial_decay=initial_decay, state_size=state_size,
        expand=expand,
    )  # fmt: skip
    _whole("expand_k * hidden_size", expand_k, hidden_size, num_heads)
    _whole("expand * hidden_size", expand, hidden_size, num_heads)
    if num_kv_heads is not None and num_heads % num_kv_heads:
        raise ValueError(f"num_kv_heads ({num_kv_heads}) must divide num_heads ({num_heads})")
    return fla_layer(GSA)(
        hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, use_short_conv=use_short_conv, conv_size=conv_size,
        decay=decay, initial_decay=initial_decay, num_slots=state_size, expand_v=expand, expand_k=expand_k,
        num_kv_heads=num_kv_heads, **kwargs,
    )  # fmt: skip


def abc(
    hidden_size, num_heads, layer_idx, use_short_conv=False, conv_size=4, use_output_gate=True, use_rope=True, state_size=None,
    expand=1, expand_k=0.5, **kwargs,
):  # fmt: skip
    """Attention with bounded-memory control: as many slots (state_size) as a head has key channels, each a mean of what was written
    to it; so the writes make the decays."""
    check_knobs(
        use_short_conv=use_short_conv, conv_size=conv_size, use_output_gate=use_output_gate, use_rope=use_rope,
        state_size=state_size, expand=expand,
    )  # fmt: skip
    keys = _whole("expand_k * hidden_size", expand_k, hidden_size, num_heads)
    _whole("expand * hidden_size", expand, hidden_size, num_heads)
    if use_rope and keys // num_heads % 2:
        raise ValueError(f"rotary positions need an even number of key channels in a head, not {keys // num_heads}")
    return fla_layer(ABC)(
        hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, use_short_conv=use_short_conv, conv_size=conv_size,
        use_output_gate=use_output_gate, use_rope=use_rope, num_slots=state_size, expand_v=expand, expand_k=expand_k, **kwargs,
    )  # fmt: skip


MIXERS = (
    Mixer(
        "hgrn",
        hgrn,
        "lrm",
        HGRN,
        reserved=("expand_ratio",),
        knobs=("use_short_conv", "conv_size", "use_output_gate", "decay", "initial_decay", "expand"),
        decay="data-dependent vector",
        write="additive",
        mixing="none",
        paper="Qin et al. 2023, arXiv:2311.04823",
        state=lambda layer: layer.input_dim,
    ),
    Mixer(
        "hgrn2",
        hgrn2,
        "lrm",
        HGRN2,
        reserved=("expand_ratio", "norm_eps"),  # nothing reads the last
        knobs=("use_short_conv", "conv_size", "decay", "initial_decay", "state_size"),
        decay="data-dependent vector",
        write="additive",
        mixing="none",
        paper="Qin et al. 2024, arXiv:2404.07904",
        state=lambda layer: layer.num_heads * layer.head_f_dim * layer.head_i_dim,
    ),
    Mixer(
        "gsa",
        gsa,
        "lrm",
        GSA,
        # the last three are arguments of fla's layer that nothing reads
        reserved=("num_slots", "expand_v", "use_output_gate", "use_norm", "norm_eps"),
        knobs=("use_short_conv", "conv_size", "decay", "initial_decay", "state_size", "expand"),
        decay="data-dependent vector",
        write="additive",
        mixing="none",
        paper="Zhang et al. 2024, arXiv:2409.07146",
        state=lambda layer: layer.num_heads * layer.num_slots * (layer.head_k_dim + layer.head_v_dim),
    ),
    Mixer(
        "abc",
        abc,
        "lrm",
        ABC,
        # the last two are arguments of fla's layer that nothing reads
        reserved=("num_slots", "expand_v", "gate_low_rank_dim", "gate_logit_normalizer"),
        knobs=("use_short_conv", "conv_size", "use_output_gate", "use_rope", "state_size", "expand"),
        decay="data-dependent vector",
        write="additive",
        mixing="none",
        paper="Peng et al. 2022, arXiv:2110.02488",
        state=lambda layer: layer.num_heads * layer.num_slots * (layer.head_k_dim + layer.head_v_dim + 1),
    ),
)
