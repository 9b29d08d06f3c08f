"""Mamba: the whole pass of fla's layer where mamba_ssm cannot run."""

from ..mamba import mamba_forward

REPLACED = [
    ("fla.layers.mamba", "Mamba.slow_forward", mamba_forward,
     "(self, input_states, last_state=None, use_cache=False, attention_mask=None, **kwargs)"),
]  # fmt: skip
