"""Mamba-2: the whole pass of fla's layer."""

from ..mamba2 import ssd_forward

REPLACED = [
    ("fla.layers.mamba2", "Mamba2.torch_forward", ssd_forward,
     "(self, input_states, last_state=None, use_cache=False, attention_mask=None)"),
]  # fmt: skip
