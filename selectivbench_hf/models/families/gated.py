"""Linear attention with a decay per channel, additive writes. Axes: B T H D."""

from ..mixer import Mixer, fla_layer

GLA = "fla.layers.gla:GatedLinearAttention"


def gla(hidden_size, num_heads, layer_idx, **kwargs):
    """Gated linear attention: a decay per key channel, keys half as wide as values."""
    return fla_layer(GLA)(hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, **kwargs)


MIXERS = (
    Mixer(
        "gla",
        gla,
        "lrm",
        GLA,
        decay="data-dependent vector",
        write="additive",
        mixing="none",
        paper="Yang et al. 2023, arXiv:2312.06635",
        state=lambda layer: layer.num_heads * layer.head_k_dim * layer.head_v_dim,
    ),
)
