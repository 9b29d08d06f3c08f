"""Attention models: one attention layer for our block, over all steps or a window, and the whole GPT-2 of transformers.

Axes: B batch, T time, S keys and values from the first cached step on, H heads, D channels.
"""

import inspect

import torch
from torch import nn
from torch.nn import functional as F

from ..errors import InputError, unknown
from .knobs import check_knobs

QUERY_BLOCK = 1024  # queries that share a mask when a piece follows earlier steps: the mask stays small
SMALLEST_BLOCK = 64  # of a window's queries: below, the products are too small to be worth a call


class ShortConvolution(nn.Conv1d):
    """A causal convolution of each channel with its own last `conv_size` steps, (B, T, C) -> (B, T, C)."""

    def __init__(self, channels: int, conv_size: int):
        super().__init__(channels, channels, conv_size, groups=channels, bias=False)

    def forward(self, x: torch.Tensor, earlier: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The output, and the inputs (B, conv_size - 1, C) that the next piece needs; `earlier`: those before this piece."""
        before = self.kernel_size[0] - 1
        x = F.pad(x, (0, 0, before, 0)) if earlier is None else torch.cat((earlier, x), 1)
        return super().forward(x.transpose(1, 2)).transpose(1, 2), x[:, x.shape[1] - before :]


class Attention(nn.Module):
    """Causal softmax attention, by default with RMSNorm on queries and keys and rotary positions (base `rope_theta`).

    window_size     steps that each step attends to, its own included (None: all)
    use_short_conv  a short causal convolution over queries, keys and values, of `conv_size` steps
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        rope_theta: float = 10000.0,
        norm_eps: float = 1e-6,
        qk_norm: bool = True,
        use_rope: bool = True,
        window_size: int | None = None,
        use_short_conv: bool = False,
        conv_size: int = 4,
        layer_idx: int = 0,
    ):
        super().__init__()
        check_knobs(use_rope=use_rope, window_size=window_size, use_short_conv=use_short_conv, conv_size=conv_size)
        if not isinstance(qk_norm, bool):
            raise InputError(f"qk_norm is {qk_norm!r}; it must be true or false")
        for name, value in (("rope_theta", rope_theta), ("norm_eps", norm_eps)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise InputError(f"{name} is {value!r}; it must be a number above 0")
        if use_rope and (hidden_size % num_heads or hidden_size // num_heads % 2):
            raise ValueError(
                f"it must be a multiple of 2 * num_heads ({2 * num_heads}), because rotation pairs channels"
            )
        if hidden_size % num_heads:
            raise ValueError(f"it must be a multiple of num_heads ({num_heads})")
        self.num_heads, self.head_dim, self.rope_theta = num_heads, hidden_size // num_heads, rope_theta
        self.qk_norm, self.use_rope, self.window_size, self.layer_idx = qk_norm, use_rope, window_size, layer_idx
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.conv1d = ShortConvolution(3 * hidden_size, conv_size) if use_short_conv else None
        if qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=norm_eps)

    def forward(self, x: torch.Tensor, past_key_values=None, use_cache: bool = False) -> torch.Tensor:
        """(B, T, D) -> (B, T, D). `past_key_values`, a DecodingCache, holds the rotated keys and the values of earlier steps."""
        batch, steps, width = x.shape
        parts = [project(x) for project in (self.q_proj, self.k_proj, self.v_proj)]
        if self.conv1d is not None:
            parts = self._convolved(parts, past_key_values if use_cache else None)
        q, k, v = (part.view(batch, steps, self.num_heads, self.head_dim) for part in parts)
        if self.qk_norm:
            q, k = self.q_norm(q.to(self.q_norm.weight.dtype)), self.k_norm(k.to(self.k_norm.weight.dtype))
        if self.use_rope:
            first = past_key_values.get_seq_length(self.layer_idx) if use_cache else 0
            cos, sin = rotary_table(first, steps, self.head_dim, self.rope_theta, x.device)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k = q.to(v.dtype), k.to(v.dtype)
        if use_cache:
            k, v = self._with_earlier(k, v, past_key_values)
        if self.window_size is None:
            mixed = causal_attention(q, k, v)
        else:
            mixed = window_attention(q, k, v, self.window_size)
        return self.o_proj(mixed.reshape(batch, steps, width))

    def _convolved(self, parts, cache):
        """Queries, keys and values (B, T, D) after the short convolution, whose last inputs the cache keeps."""
        earlier = None
        if cache is not None and cache.get_seq_length(self.layer_idx):
            earlier = cache[self.layer_idx]["conv_state"]
        out, last = self.conv1d(torch.cat(parts, -1), earlier)
        if cache is not None:  # no step counted: the keys and values of this piece are still to come
            cache.update(self.layer_idx, offset=0, conv_state=last)
        return out.chunk(3, -1)

    def _with_earlier(self, k, v, cache):
        """Keys and values (B, T, H, D) after those of earlier steps; of these a window keeps as many as its next step will see."""
        earlier = cache[self.layer_idx]["attn_state"] if cache.get_seq_length(self.layer_idx) else None
        window = {"window_size": self.window_size}
        state = cache.update(self.layer_idx, offset=k.shape[1], attn_state=(k, v), cache_kwargs=window)
        if self.window_size is None or earlier is None:
            return (k, v) if earlier is None else state["attn_state"]
        return tuple(torch.cat(parts, 1) for parts in zip(earlier, (k, v), strict=True))


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The last T of S steps attend to all steps up to their own. q (B, T, H, D), k, v (B, S, H, D) -> (B, T, H, D)."""
    steps, total = q.shape[1], k.shape[1]
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    if steps == total:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    if steps == 1:
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    out = []
    for start in range(0, steps, QUERY_BLOCK):
        part = q[:, :, start : start + QUERY_BLOCK]
        seen = total - steps + start + part.shape[2]
        mask = band(part.shape[2], seen, seen, q.device)
        out.append(F.scaled_dot_product_attention(part, k[:, :, :seen], v[:, :, :seen], mask))
    return torch.cat(out, 2).transpose(1, 2)


def window_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """The last T of S steps attend to `window` steps, the last of them their own. q (B, T, H, D), k, v (B, S, H, D).

    In blocks of queries, each with the keys that it can see: work and memory grow with T * window.
    """
    (batch, steps), total = q.shape[:2], k.shape[1]
    if total <= window:
        return causal_attention(q, k, v)
    size = max(window, SMALLEST_BLOCK)
    first = min(steps, size)
    seen = total - steps + first
    out = [_masked(q[:, :first], k[:, :seen], v[:, :seen], band(first, seen, window, q.device))]
    if steps > first:
        blocks = -(-(steps - first) // size)
        padding = (0, 0, 0, 0, 0, first + blocks * size - steps)
        before = seen - window + 1  # the first key that the second block sees
        q = F.pad(q[:, first:], padding).unflatten(1, (blocks, size)).flatten(0, 1)
        k, v = (
            F.pad(part[:, before:], padding).unfold(1, size + window - 1, size).movedim(-1, 2).flatten(0, 1)
            for part in (k, v)
        )
        rest = _masked(q, k, v, band(size, size + window - 1, window, q.device))
        out.append(rest.reshape(batch, blocks * size, *rest.shape[2:])[:, : steps - first])
    return torch.cat(out, 1)


def _masked(q, k, v, mask):
    return F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)), mask).transpose(1, 2)


def band(steps: int, total: int, window: int, device) -> torch.Tensor:
    """(T, S): whether the last T of S steps see each step: none after their own, and `window` in all."""
    back = torch.arange(total - steps, total, device=device)[:, None] - torch.arange(total, device=device)
    return (back >= 0) & (back < window)


def rotary_table(first: int, steps: int, head_dim: int, theta: float, device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of position times frequency for T steps from `first` on, (T, 1, head_dim / 2) float32.

    Computed in each pass, not kept as a buffer: a table that is not saved is what loading on the meta device leaves as garbage.
    """
    frequencies = theta ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.arange(first, first + steps, device=device, dtype=torch.float32)[:, None, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate channel pairs (d, d + D/2) of x (B, T, H, D) in float32."""
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


GPT2_KWARGS = {  # with their defaults
    "n_inner": None,
    "activation_function": "gelu_new",
    "attn_pdrop": 0.0,
    "layer_norm_epsilon": 1e-5,
    "scale_attn_by_inverse_layer_idx": False,
}


class GPT2(nn.Module):
    """transformers' GPT-2 fed with vectors: (B, T, D) -> (B, T, D). Its unused token table is taken out."""

    def __init__(self, gpt2_config):
        super().__init__()
        from transformers import GPT2Model

        self.gpt2 = GPT2Model(gpt2_config)
        self.gpt2.wte = nn.Identity()
        names = inspect.signature(GPT2Model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"  # its name in older transformers

    @property
    def position_table(self) -> torch.Tensor:
        """The learned positions, (longest sequence, D)."""
        return self.gpt2.wpe.weight

    def forward(self, x: torch.Tensor, cache=None) -> torch.Tensor:
        """(B, T, D) -> (B, T, D). A DecodingCache carries transformers' own cache in `shared`."""
        if cache is None:
            return self.gpt2(inputs_embeds=x, use_cache=False).last_hidden_state
        from transformers import DynamicCache

        theirs = cache.shared.setdefault("gpt2", DynamicCache())
        out = self.gpt2(inputs_embeds=x, use_cache=True, **{self._cache_name: theirs}).last_hidden_state
        cache.update(0, offset=x.shape[1])
        return out


def gpt2(config, hidden_size: int, num_heads: int, **kwargs) -> GPT2:
    """GPT-2 with `config`'s depth, dropout and longest sequence. Dropout of attention weights is off unless asked for
    (`attn_pdrop`): it would take SDPA's quadratic path."""
    from transformers import GPT2Config
    from transformers.activations import ACT2FN

    activation = kwargs.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in ACT2FN:
        raise unknown("activation_function", activation, ACT2FN, where="mixer_kwargs of 'gpt'")
    if hidden_size % num_heads:
        raise ValueError(f"hidden_size must be a multiple of num_heads ({num_heads})")
    fields = {"resid_pdrop": config.dropout, "embd_pdrop": config.dropout, "attn_pdrop": 0.0, **kwargs}
    return GPT2(
        GPT2Config(
            vocab_size=1,
            n_positions=config.max_position_embeddings,
            n_embd=hidden_size,
            n_layer=config.num_hidden_layers,
            n_head=num_heads,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
            attn_implementation="sdpa",
            **fields,
        )
    )
