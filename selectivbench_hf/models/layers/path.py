"""PaTH attention as a layer of ours: fla's parameters, eigenvalues of one's choice, and decoding in pieces of any length."""

import fla.layers.path_attn
import torch
from fla.modules.l2norm import l2_norm
from torch.nn import functional as F

from ...kernels.forgetting import forgetting_attention
from ...kernels.path import path_attention

HEAD_DIMS = (16, 32, 64, 128)  # of fla's kernels


class PaTHAttention(fla.layers.path_attn.PaTHAttention):
    """fla's layer; allow_neg_eigval=False keeps beta below 1, so that no factor turns a key's sign (fla's beta goes up to 2).

    fla decodes one step at a time, with an attention mask, and leaves out the norms of queries and keys there; here a piece of any length
    follows what was cached, computed as in one pass. The cache holds the keys as the factors of all steps so far leave them.
    """

    def __init__(self, hidden_size: int, num_heads: int, allow_neg_eigval: bool = True, **kwargs):
        if hidden_size % num_heads:
            raise ValueError(f"it must be a multiple of num_heads ({num_heads})")
        if hidden_size // num_heads not in HEAD_DIMS:
            wanted = ", ".join(map(str, HEAD_DIMS))
            raise ValueError(f"fla's kernels take heads of {wanted} channels, not {hidden_size // num_heads}")
        if num_heads % (kwargs.get("num_kv_heads") or num_heads):
            raise ValueError(f"num_heads ({num_heads}) must be a multiple of num_kv_heads")
        super().__init__(hidden_size=hidden_size, num_heads=num_heads, **kwargs)
        self.allow_neg_eigval = allow_neg_eigval

    def forward(self, hidden_states, attention_mask=None, past_key_values=None, use_cache=False, **kwargs):
        """(B, T, D) -> (B, T, D), None, the cache."""
        if attention_mask is not None:
            raise NotImplementedError("PaTHAttention: attention_mask is not supported; pad on the right")
        cache = past_key_values if use_cache else None
        earlier = cache is not None and cache.get_seq_length(self.layer_idx) > 0
        state = cache[self.layer_idx] if earlier else {"conv_state": None, "attn_state": ()}
        w, conv_state = self.w_proj(hidden_states), None
        if self.use_w_shortconv:
            w, conv_state = self.w_conv1d(w, cache=state["conv_state"], output_final_state=cache is not None)
        q, k, v, w = (
            x.unflatten(-1, (-1, self.head_dim))
            for x in (self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states), w)
        )
        q, k, w = self.maybe_q_norm(q), self.maybe_k_norm(k), l2_norm(w, output_dtype=torch.float32)
        beta = self.bt_proj(hidden_states).float().sigmoid() * (2 if self.allow_neg_eigval else 1)
        g = F.logsigmoid(self.g_proj(hidden_states).float()) if self.use_forget_gate else None
        if cache is None:
            mixed, _ = fla.layers.path_attn.parallel_path_attn(q=q, k=k, v=v, w=w, beta=beta, g=g)
        else:
            mixed = self._after_cached_steps(q, k, v, w, beta, g, state["attn_state"], cache, conv_state)
        return self.o_proj(mixed.flatten(2)), None, past_key_values

    def _after_cached_steps(self, q, k, v, w, beta, g, earlier, cache, conv_state):
        new = (k, v) if g is None else (k, v, g)
        keys, values, *gates = (torch.cat(parts, 1) for parts in zip(earlier, new, strict=True)) if earlier else new
        gates = gates[0] if gates else None
        if q.shape[1] == 1:  # a rank-one step for all keys, then attention as it is
            before = keys[:, :-1].float()
            along = (before * w).sum(-1, keepdim=True) * beta.unsqueeze(-1)
            keys = torch.cat((before - along * w, k), 1)
            gates_in_scores = v.new_zeros(*v.shape[:1], values.shape[1], q.shape[2]) if gates is None else gates
            mixed = forgetting_attention(q, keys, values, gates_in_scores * self.head_dim**-0.5)
        else:
            mixed, keys = path_attention(q, keys, values, w, beta, gates)
        kept = (keys, values) if gates is None else (keys, values, gates)
        if earlier:
            cache[self.layer_idx]["attn_state"] = kept  # every key has changed
            kept = None
        cache.update(self.layer_idx, offset=q.shape[1], attn_state=kept, conv_state=conv_state)
        return mixed.to(q.dtype)
