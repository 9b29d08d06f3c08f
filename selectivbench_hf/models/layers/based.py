"""Based and ReBased as layers of ours: fla's, which keep no state, and a state. Axes: B batch, T time, D channels, H heads."""

from fla.layers.based import BasedLinearAttention
from fla.layers.rebased import ReBasedLinearAttention
from fla.layers.utils import get_layer_cache, update_layer_cache

from ...kernels.based import based, rebased


def _heads(layer, x) -> list:
    """Queries, keys and values, each (B, T, H, K or V)."""
    return [p(x).unflatten(-1, (layer.num_heads, -1)) for p in (layer.q_proj, layer.k_proj, layer.v_proj)]


def _go_on(layer, cache, function, q, k, v, **kwargs):
    """(B, T, D) from the steps after those of the cache, and these into it."""
    state = get_layer_cache(layer, cache)
    o, last = function(q, k, v, initial_state=None if state is None else state["recurrent_state"], **kwargs)
    update_layer_cache(layer, cache, recurrent_state=last, offset=q.shape[1])
    return layer.o_proj(o.flatten(-2))


class Based(BasedLinearAttention):
    """fla's Based layer; with a cache, steps go on from the sums of what was written, on every device in plain torch."""

    def __init__(self, layer_idx=0, **kwargs):
        super().__init__(**kwargs)
        self.layer_idx = layer_idx

    def forward(self, hidden_states, past_key_values=None, use_cache=False, **kwargs):
        """(B, T, D) -> (B, T, D), None, the cache."""
        if past_key_values is None:
            return super().forward(hidden_states), None, None
        return _go_on(self, past_key_values, based, *_heads(self, hidden_states)), None, past_key_values


class ReBased(ReBasedLinearAttention):
    """As Based, for fla's ReBased layer."""

    def forward(self, hidden_states, past_key_values=None, use_cache=False, **kwargs):
        """(B, T, D) -> (B, T, D), None, the cache."""
        if past_key_values is None:
            return super().forward(hidden_states), None, None
        q, k, v = _heads(self, hidden_states)
        q, k = (self.feature_map(x, flatten=False) for x in (q, k))
        return _go_on(self, past_key_values, rebased, q, k, v, eps=self.eps), None, past_key_values
