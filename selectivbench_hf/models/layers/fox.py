"""The Forgetting Transformer's attention as a layer of ours: fla's parameters, and decoding in pieces of any length."""

import fla.layers.forgetting_attn
from torch.nn import functional as F

from ...kernels.forgetting import forgetting_attention

LARGEST_KEY = 256  # of fla's kernels


class ForgettingAttention(fla.layers.forgetting_attn.ForgettingAttention):
    """fla's layer. A sequence in one pass runs in fla's forward; after cached steps, the pieces that follow run here.

    fla's own decoding takes one step at a time and needs an attention mask. Its `window_size` cuts the cache but not the attention of
    a whole sequence, so it is not offered.
    """

    def __init__(self, hidden_size: int, num_heads: int, **kwargs):
        if hidden_size % num_heads:
            raise ValueError(f"it must be a multiple of num_heads ({num_heads})")
        if hidden_size // num_heads > LARGEST_KEY:
            raise ValueError(
                f"fla's kernels take heads of at most {LARGEST_KEY} channels, not {hidden_size // num_heads}"
            )
        super().__init__(hidden_size=hidden_size, num_heads=num_heads, **kwargs)

    def forward(self, hidden_states, attention_mask=None, past_key_values=None, use_cache=False, **kwargs):
        """(B, T, D) -> (B, T, D), None, the cache."""
        if past_key_values is None or not past_key_values.get_seq_length(self.layer_idx):
            return super().forward(hidden_states, attention_mask, past_key_values, use_cache=use_cache, **kwargs)
        q, k, v = self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
        f = F.logsigmoid(self.f_proj(hidden_states).float())
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        state = past_key_values.update(attn_state=(k, v, f), layer_idx=self.layer_idx, offset=q.shape[1])
        k, v, f = state["attn_state"]
        q, k, v = (x.unflatten(-1, (-1, self.head_dim)) for x in (q, k, v))
        mixed = forgetting_attention(q, k, v, f).flatten(2)
        if self.use_output_gate:
            mixed = self.g_proj(hidden_states).sigmoid() * mixed
        return self.o_proj(mixed), None, past_key_values
