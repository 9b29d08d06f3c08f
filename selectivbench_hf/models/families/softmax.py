"""Softmax attention: over all steps, where memory grows with the sequence, or over a window. Axes: B T H D."""

from ..knobs import check_knobs
from ..mixer import Mixer, fla_layer

ATTENTION = "selectivbench_hf.models.attention:Attention"
FOX = "selectivbench_hf.models.layers.fox:ForgettingAttention"


def transformer(hidden_size, num_heads, layer_idx, use_rope=True, **kwargs):
    """Causal attention in the manner of transformers' recent models: RMSNorm on queries and keys, rotary positions, SDPA."""
    from ..attention import Attention

    return Attention(hidden_size, num_heads, use_rope=use_rope, layer_idx=layer_idx, **kwargs)


def sliding_window(hidden_size, num_heads, layer_idx, window_size=None, use_rope=True, **kwargs):
    """The same attention over the last `window_size` steps (32 unless told), the present one included: a memory that does not grow.

    32 steps of keys and values are as many numbers as the states of linear attention with heads of 64.
    """
    from ..attention import Attention

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
        knobs=("use_rope",),
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
        knobs=("use_rope", "window_size"),
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
)
