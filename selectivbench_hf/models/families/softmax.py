"""Softmax attention: over all steps, where memory grows with the sequence, or over a window. Axes: B T H D."""

from ..knobs import check_knobs
from ..mixer import Mixer, fla_layer

ATTENTION = "selectivbench_hf.models.attention:Attention"
FOX = "selectivbench_hf.models.layers.fox:ForgettingAttention"
PATH = "selectivbench_hf.models.layers.path:PaTHAttention"


def transformer(hidden_size, num_heads, layer_idx, use_rope=True, use_short_conv=False, conv_size=4, **kwargs):
    """Causal attention in the manner of transformers' recent models: RMSNorm on queries and keys, rotary positions, SDPA."""
    from ..attention import Attention

    conv = {"use_short_conv": use_short_conv, "conv_size": conv_size}
    return Attention(hidden_size, num_heads, use_rope=use_rope, layer_idx=layer_idx, **conv, **kwargs)


def sliding_window(
    hidden_size, num_heads, layer_idx, window_size=None, use_rope=True, use_short_conv=False, conv_size=4, **kwargs
):
    """The same attention over the last `window_size` steps (32 unless told), the present one included: a memory that does not grow.

    32 steps of keys and values are as many numbers as the states of linear attention with heads of 64.
    """
    from ..attention import Attention

    kwargs |= {"use_short_conv": use_short_conv, "conv_size": conv_size}
    window = 32 if window_size is None else window_size
    return Attention(hidden_size, num_heads, use_rope=use_rope, window_size=window, layer_idx=layer_idx, **kwargs)


def fox(hidden_size, num_heads, layer_idx, use_output_gate=False, decay="learned", initial_decay=None, **kwargs):
    """Forgetting attention, the mixer of the Forgetting Transformer: what a key scores fades with the gates of the steps after it."""
    from ..gates import turn_decay

    check_knobs(use_output_gate=use_output_gate, decay=decay, initial_decay=initial_decay)
    layer = fla_layer(FOX)(
        hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, use_output_gate=use_output_gate, **kwargs
    )
    turn_decay(layer, "f_proj", layer.f_proj.bias, decay, initial_decay)
    return layer


def path_attention(
    hidden_size,
    num_heads,
    layer_idx,
    use_short_conv=True,
    conv_size=3,
    decay="none",
    initial_decay=None,
    allow_neg_eigval=True,
    **kwargs,
):
    """PaTH attention: between key and query lie the products of a Householder-like factor a step, in the place of rotary positions.

    decay="learned" adds the gates of forgetting attention (PaTH-FoX).
    """
    from ..gates import turn_decay

    check_knobs(
        use_short_conv=use_short_conv,
        conv_size=conv_size,
        decay=decay,
        initial_decay=initial_decay,
        allow_neg_eigval=allow_neg_eigval,
    )
    layer = fla_layer(PATH)(
        hidden_size=hidden_size,
        num_heads=num_heads,
        layer_idx=layer_idx,
        use_w_shortconv=use_short_conv,
        conv_size=conv_size,
        use_forget_gate=decay != "none",
        allow_neg_eigval=allow_neg_eigval,
        **kwargs,
    )
    if decay != "none":  # the gates are scaled with the scores
        turn_decay(layer, "g_proj", layer.g_proj.bias, decay, initial_decay, normalizer=layer.head_dim**0.5)
    return layer


def gpt(hidden_size, num_heads, layer_idx, config, **kwargs):
    """The whole GPT-2 of transformers. Its learned positions cover the longest split; the far ones are never trained, and that
    is part of its result."""
    from ..attention import gpt2

    return gpt2(config, hidden_size, num_heads, **kwargs)


MIXERS = (
    Mixer(
        "gpt",
        gpt,
        "attention",
        whole=True,
        reserved=("config",),
        decay="none",
        write="append",
        mixing="none",
        paper="Radford et al. 2019",
    ),
    Mixer(
        "transformer",
        transformer,
        "attention",
        ATTENTION,
        reserved=("window_size",),
        knobs=("use_rope", "use_short_conv", "conv_size"),
        decay="none",
        write="append",
        mixing="none",
        paper="Vaswani et al. 2017, arXiv:1706.03762",
    ),
    Mixer(
        "sliding_window",
        sliding_window,
        "attention",
        ATTENTION,
        knobs=("use_rope", "window_size", "use_short_conv", "conv_size"),
        decay="none",
        write="append",
        mixing="none",
        paper="Beltagy et al. 2020, arXiv:2004.05150",
        state=lambda layer: 2 * layer.window_size * layer.num_heads * layer.head_dim,
    ),
    Mixer(
        "fox",
        fox,
        "attention",
        FOX,
        reserved=("window_size",),
        knobs=("use_output_gate", "decay", "initial_decay"),
        decay="data-dependent scalar",
        write="append",
        mixing="none",
        paper="Lin et al. 2025, arXiv:2503.02130",
        fla=True,
    ),
    Mixer(
        "path_attention",
        path_attention,
        "attention",
        PATH,
        reserved=("use_w_shortconv", "use_forget_gate"),
        knobs=("use_short_conv", "conv_size", "decay", "initial_decay", "allow_neg_eigval"),
        decay="none",
        write="append",
        mixing="rank 1",
        paper="Yang et al. 2025, arXiv:2505.16381",
        fla=True,
    ),
)
