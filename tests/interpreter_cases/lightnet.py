"""LightNet."""

SIZE = {"hidden_size": 32, "num_heads": 2, "expand_ratio": 12, "gate_low_rank_dim": 8}
CASES = {
    "lightnet_short": ("LightNetAttention", SIZE, 40, True),
    "lightnet_long": ("LightNetAttention", SIZE, 100, True),
    # no conv_bias: a constant added to a channel of the keys' scores changes nothing, so that its gradient is 0 but for rounding
    "lightnet_conv": ("LightNetAttention", {**SIZE, "use_short_conv": True}, 70, True),
}
