"""Attention models: one rotary attention layer for our block, and the whole GPT-2 of transformers. Axes: B T H D."""

import torch
from torch import nn
from torch.nn import functional as F

from ..errors import InputError, unknown


class Attention(nn.Module):
    """Causal softmax attention with RMSNorm on queries and keys and rotary positions (base `rope_theta`)."""

    def __init__(self, hidden_size: int, num_heads: int, rope_theta: float = 10000.0, norm_eps: float = 1e-6):
        super().__init__()
        if hidden_size % num_heads or hidden_size // num_heads % 2:
            raise ValueError(
                f"it must be a multiple of 2 * num_heads ({2 * num_heads}), because rotation pairs channels"
            )
        for name, value in (("rope_theta", rope_theta), ("norm_eps", norm_eps)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise InputError(f"mixer_kwargs of 'transformer': {name} is {value!r}; it must be a number above 0")
        self.num_heads, self.head_dim, self.rope_theta = num_heads, hidden_size // num_heads, rope_theta
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, D) -> (B, T, D)."""
        batch, steps, width = x.shape
        q, k, v = (
            project(x).view(batch, steps, self.num_heads, self.head_dim)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = rotary_table(steps, self.head_dim, self.rope_theta, x.device)
        q = rotate(self.q_norm(q.to(self.q_norm.weight.dtype)), cos, sin).to(v.dtype).transpose(1, 2)
        k = rotate(self.k_norm(k.to(self.k_norm.weight.dtype)), cos, sin).to(v.dtype).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, steps, width))


def rotary_table(steps: int, head_dim: int, theta: float, device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of position times frequency, (T, 1, head_dim / 2) float32.

    Computed in each pass, not kept as a buffer: a table that is not saved is what loading on the meta device leaves as garbage.
    """
    frequencies = theta ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.arange(steps, device=device, dtype=torch.float32)[:, None, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate channel pairs (d, d + D/2) of x (B, T, H, D) in float32."""
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


GPT2_KWARGS = ("n_inner", "activation_function", "attn_pdrop", "layer_norm_epsilon", "scale_attn_by_inverse_layer_idx")


class GPT2(nn.Module):
    """transformers' GPT-2 fed with vectors: (B, T, D) -> (B, T, D). Its unused token table is taken out."""

    def __init__(self, gpt2_config):
        super().__init__()
        from transformers import GPT2Model

        self.gpt2 = GPT2Model(gpt2_config)
        self.gpt2.wte = nn.Identity()

    @property
    def position_table(self) -> torch.Tensor:
        """The learned positions, (longest sequence, D)."""
        return self.gpt2.wpe.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.gpt2(inputs_embeds=x, use_cache=False).last_hidden_state


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
