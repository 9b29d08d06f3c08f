"""State-space models: Mamba and its kin. Axes: B T H D."""

from ..knobs import check_knobs
from ..mixer import Mixer, fla_layer

MAMBA = "selectivbench_hf.models.layers.mamba:Mamba"
MAMBA2 = "selectivbench_hf.models.layers.mamba2:Mamba2"


def _inner(hidden_size, expand):
    """Inner channels, a whole number."""
    inner = expand * hidden_size
    if inner != int(inner):
        raise ValueError(f"expand * hidden_size ({inner}) must be a whole number")
    return int(inner)


def mamba(
    hidden_size, num_heads, layer_idx, expand=2, state_size=16, conv_size=4, use_short_conv=True, use_output_gate=True,
    decay="learned", initial_decay=None, **kwargs,
):  # fmt: skip
    """Mamba with fla's parameters; it has no heads. A step of its own for every inner channel, and a decay for each of its states."""
    knobs = {
        "use_short_conv": use_short_conv,
        "use_output_gate": use_output_gate,
        "decay": decay,
        "initial_decay": initial_decay,
        "state_size": state_size,
    }
    check_knobs(expand=expand, conv_size=conv_size, **knobs)
    return fla_layer(MAMBA)(
        hidden_size=hidden_size, intermediate_size=_inner(hidden_size, expand), conv_kernel=conv_size, layer_idx=layer_idx,
        **knobs, **kwargs,
    )  # fmt: skip


def mamba2(
    hidden_size, num_heads, layer_idx, expand=2, state_size=128, conv_size=4, use_short_conv=True, use_output_gate=True,
    decay="learned", initial_decay=None, **kwargs,
):  # fmt: skip
    """Mamba-2 with fla's parameters; its scan runs as simple gated linear attention on every device (the SSD identity)."""
    knobs = {
        "use_short_conv": use_short_conv,
        "use_output_gate": use_output_gate,
        "decay": decay,
        "initial_decay": initial_decay,
        "state_size": state_size,
    }
    check_knobs(expand=expand, conv_size=conv_size, **knobs)
    inner = _inner(hidden_size, expand)
    if "head_dim" not in kwargs:
        kwargs["head_dim"], rest = divmod(inner, num_heads)
        if rest:
            raise ValueError(f"expand * hidden_size ({inner}) must be a multiple of num_heads ({num_heads})")
    else:
        num_heads = None
    return fla_layer(MAMBA2)(
        hidden_size=hidden_size, num_heads=num_heads, expand=expand, conv_kernel=conv_size, layer_idx=layer_idx, **knobs, **kwargs
    )  # fmt: skip


KNOBS = ("use_short_conv", "conv_size", "use_output_gate", "decay", "initial_decay", "state_size", "expand")

MIXERS = (
    Mixer(
        "mamba",
        mamba,
        "lrm",
        MAMBA,
        reserved=("intermediate_size", "conv_kernel", "backend"),
        knobs=KNOBS,
        decay="data-dependent vector",
        write="additive",
        mixing="none",
        paper="Gu & Dao 2023, arXiv:2312.00752",
        state=lambda layer: layer.intermediate_size * layer.ssm_state_size,
    ),
    Mixer(
        "mamba2",
        mamba2,
        "lrm",
        MAMBA2,
        reserved=("conv_kernel", "backend", "chunk_size"),
        knobs=KNOBS,
        decay="data-dependent scalar",
        write="additive",
        mixing="none",
        paper="Dao & Gu 2024, arXiv:2405.21060",
        state=lambda layer: layer.num_heads * layer.head_dim * layer.ssm_state_size,
    ),
)
