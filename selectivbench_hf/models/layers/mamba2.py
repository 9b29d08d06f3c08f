"""Mamba-2 as a layer of ours: fla's parameters, our scan."""

import logging

import fla.layers.mamba2
from fla.layers.utils import get_layer_cache, update_layer_cache

from ...kernels.mamba2 import ssd_forward


class Mamba2(fla.layers.mamba2.Mamba2):
    """fla's Mamba-2, its scan run as simple gated linear attention on every device.

    fla itself takes mamba_ssm's kernels where they are installed and else a scan in plain torch that is 100 times slower; one form
    everywhere keeps results comparable. Parameters, their names and their initialisation are fla's.
    """

    def __init__(self, **kwargs):
        logger = logging.getLogger(fla.layers.mamba2.__name__)
        before = logger.level
        logger.setLevel(logging.ERROR)  # it warns about paths that this class never takes
        try:
            super().__init__(**kwargs)
        finally:
            logger.setLevel(before)

    def forward(
        self,
        hidden_states,
        attention_mask=None,
        past_key_values=None,
        use_cache=False,
        output_attentions=False,
        **kwargs,
    ):
        """(B, T, D) -> (B, T, D), None, the cache."""
        last_state = get_layer_cache(self, past_key_values)
        output, conv_state, ssm_state = ssd_forward(self, hidden_states, last_state, use_cache, attention_mask)
        update_layer_cache(
            self, past_key_values, recurrent_state=ssm_state, conv_state=conv_state, offset=hidden_states.shape[1]
        )
        return output, None, past_key_values
