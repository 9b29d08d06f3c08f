"""Softmax attention: the models whose memory grows with the sequence. Axes: B T H D."""

from ..mixer import Mixer


def transformer(hidden_size, num_heads, layer_idx, **kwargs):
    """Causal attention in the manner of transformers' recent models: RMSNorm on queries and keys, rotary positions, SDPA."""
    from ..attention import Attention

    return Attention(hidden_size, num_heads, **kwargs)


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
        "selectivbench_hf.models.attention:Attention",
        decay="none",
        write="append",
        mixing="none",
        paper="Vaswani et al. 2017, arXiv:1706.03762",
    ),
)
