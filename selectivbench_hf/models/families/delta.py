"""The delta rule and its kin: a write first erases what its key holds. Axes: B T H D."""

from ..mixer import Mixer, fla_layer

GATED_DELTA_NET = "fla.layers.gated_deltanet:GatedDeltaNet"


def gated_delta_net(hidden_size, num_heads, layer_idx, **kwargs):
    """Gated DeltaNet: a decay per head and the delta rule. fla's allocation: keys of 0.75 * hidden_size, values of twice that."""
    if "head_dim" not in kwargs:
        kwargs["head_dim"], rest = divmod(3 * hidden_size, 4 * num_heads)
        if rest:
            raise ValueError(f"0.75 * hidden_size must be a multiple of num_heads ({num_heads})")
    return fla_layer(GATED_DELTA_NET)(hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, **kwargs)


MIXERS = (
    Mixer(
        "gated_delta_net",
        gated_delta_net,
        "lrm",
        GATED_DELTA_NET,
        decay="data-dependent scalar",
        write="delta",
        mixing="rank 1",
        paper="Yang et al. 2024, arXiv:2412.06464",
        state=lambda layer: layer.num_v_heads * layer.head_k_dim * layer.head_v_dim,
    ),
)
