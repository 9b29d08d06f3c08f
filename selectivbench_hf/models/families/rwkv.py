"""RWKV-6: a decay per channel and a bonus for the current step. Axes: B T H D."""

from ..knobs import check_knobs
from ..mixer import Mixer, fla_layer

RWKV6 = "selectivbench_hf.models.layers.rwkv6:RWKV6"


def rwkv6(
    hidden_size, num_heads, layer_idx, use_output_gate=True, decay="learned", initial_decay=None, state_size=None, expand=1,
    **kwargs,
):  # fmt: skip
    """RWKV-6's time mixing, keys half as wide as values; our block has the MLP in the place of its channel mixing."""
    check_knobs(
        use_output_gate=use_output_gate, decay=decay, initial_decay=initial_decay, state_size=state_size, expand=expand
    )  # fmt: skip
    keys, values = num_heads * state_size if state_size else hidden_size / 2, expand * hidden_size
    for name, width in (("0.5 * hidden_size", keys), ("expand * hidden_size", values)):
        if width % num_heads:
            raise ValueError(f"{name} ({width:g}) must be a multiple of num_heads ({num_heads})")
    return fla_layer(RWKV6)(
        hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, expand_k=keys / hidden_size, expand_v=expand,
        use_output_gate=use_output_gate, decay=decay, initial_decay=initial_decay, **kwargs,
    )  # fmt: skip


MIXERS = (
    Mixer(
        "rwkv6",
        rwkv6,
        "lrm",
        RWKV6,
        reserved=("expand_k", "expand_v"),
        knobs=("use_output_gate", "decay", "initial_decay", "state_size", "expand"),
        decay="data-dependent vector",
        write="additive",
        mixing="none",
        paper="Peng et al. 2024, arXiv:2404.05892",
        state=lambda layer: layer.num_heads * layer.head_k_dim * layer.head_v_dim,
    ),
)
