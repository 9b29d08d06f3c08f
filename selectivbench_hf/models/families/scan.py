"""State-space models: Mamba and its kin. Axes: B T H D."""

from ..knobs import check_knobs
from ..mixer import Mixer, fla_layer

MAMBA = "selectivbench_hf.models.layers.mamba:Mamba"
MAMBA2 = "selectivbench_hf.models.layers.mamba2:Mamba2"
LOG_LINEAR_MAMBA2 = "selectivbench_hf.models.layers.log_linear_mamba2:LogLinearMamba2"


def _inner(hidden_size, expand):
    """Inner channels, a whole number."""
    inner = expand * hidden_size
    if inner != int(inner):
        raise ValueError(f"expand * hidden_size ({inner}) must be a whole number")
    return int(inner)


def _head_dim(hidden_size, num_heads, expand):
    """Inner channels of a head, a whole number."""
    inner = _inner(hidden_size, expand)
    if inner % num_heads:
        raise ValueError(f"expand * hidden_size ({inner}) must be a multiple of num_heads ({num_heads})")
    return inner // num_heads


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
    if "head_dim" not in kwargs:
        kwargs["head_dim"] = _head_dim(hidden_size, num_heads, expand)
    else:
        num_heads = None
    return fla_layer(MAMBA2)(
        hidden_size=hidden_size, num_heads=num_heads, expand=expand, conv_kernel=conv_size, layer_idx=layer_idx, **knobs, **kwargs
    )  # fmt: skip


def log_linear_mamba2(
    hidden_size, num_heads, layer_idx, expand=2, state_size=128, conv_size=4, use_short_conv=True, use_output_gate=True,
    decay="learned", initial_decay=None, **kwargs,
):  # fmt: skip
    """Mamba-2 whose past is kept in blocks of 1, 2, 4, ... steps, each read with a weight of its own; for up to 16,384 steps."""
    knobs = {
        "use_short_conv": use_short_conv,
        "use_output_gate": use_output_gate,
        "decay": decay,
        "initial_decay": initial_decay,
        "state_size": state_size,
    }
    check_knobs(expand=expand, conv_size=conv_size, **knobs)
    head_dim = _head_dim(hidden_size, num_heads, expand)
    # fla's kernels are made for these; a width that only the CPU can take would not be the same model elsewhere
    if head_dim & (head_dim - 1):
        raise ValueError(f"expand * hidden_size / num_heads ({head_dim}) must be a power of two")
    if state_size % 64:
        raise ValueError(f"state_size is {state_size}; it must be a multiple of 64")
    return fla_layer(LOG_LINEAR_MAMBA2)(
        hidden_size=hidden_size, num_heads=num_heads, head_dim=head_dim, expand=expand, conv_kernel=conv_size, layer_idx=layer_idx,
        **knobs, **kwargs,
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
    Mixer(
        "log_linear_mamba2",
        log_linear_mamba2,
        "lrm",
        LOG_LINEAR_MAMBA2,
        reserved=("conv_kernel", "backend", "chunk_size", "head_dim"),
        knobs=KNOBS,
        decay="data-dependent scalar",
        write="additive",
        mixing="none",
        paper="Guo et al. 2025, arXiv:2506.04761",
        # all its levels: after T steps as many of these matrices are in use as T has bits
        state=lambda layer: (layer.num_lambda_dims - 1) * layer.num_heads * layer.head_dim * layer.ssm_state_size,
    ),
)
