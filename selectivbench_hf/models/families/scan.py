"""State-space models: Mamba and its kin. Axes: B T H D."""

from ..mixer import Mixer, fla_layer

MAMBA2 = "selectivbench_hf.models.layers.mamba2:Mamba2"


def mamba2(hidden_size, num_heads, layer_idx, **kwargs):
    """Mamba-2 with fla's parameters; its scan runs as simple gated linear attention on every device (the SSD identity)."""
    kwargs.setdefault("expand", 2)
    inner = int(kwargs["expand"] * hidden_size)
    if "head_dim" not in kwargs:
        kwargs["head_dim"], rest = divmod(inner, num_heads)
        if rest:
            raise ValueError(f"expand * hidden_size ({inner}) must be a multiple of num_heads ({num_heads})")
    else:
        num_heads = None
    return fla_layer(MAMBA2)(hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, **kwargs)


MIXERS = (
    Mixer(
        "mamba2",
        mamba2,
        "lrm",
        MAMBA2,
        decay="data-dependent scalar",
        write="additive",
        mixing="none",
        paper="Dao & Gu 2024, arXiv:2405.21060",
        state=lambda layer: layer.num_heads * layer.head_dim * layer.ssm_state_size,
    ),
)
