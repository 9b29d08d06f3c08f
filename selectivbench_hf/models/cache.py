"""What a model carries from step to step, for decoding step by step. Axes: B batch, T time.

It answers fla's layers as fla's own cache does (indexing, `update`, `get_seq_length`), and serves the layers that need no fla. A
state is a dict with `recurrent_state`, `attn_state` (tensors (B, T, ...) that grow with time, up to a window), `conv_state` and
`ffn_state`, each None where a layer has none.
"""

import torch

PARTS = ("recurrent_state", "attn_state", "conv_state", "ffn_state")
STATE = (
    "recurrent_state",
    "attn_state",
    "ffn_state",
)  # what counts as state: not the few last inputs of a short convolution


class DecodingCache:
    """The states of all layers after `get_seq_length()` steps. `shared` holds what else a model keeps (GPT-2's own cache)."""

    def __init__(self):
        self.states: dict[int, dict] = {}
        self.seen: dict[int, int] = {}
        self.shared: dict = {}

    def __len__(self) -> int:
        """Number of layers with a state, counted from the first."""
        return max(self.states, default=-1) + 1

    def __getitem__(self, layer_idx: int) -> dict:
        return self.states[layer_idx]

    def __iter__(self):
        return iter(self.states.values())

    def get_seq_length(self, layer_idx: int | None = 0) -> int:
        """Steps that the layer has seen."""
        return self.seen.get(layer_idx or 0, 0)

    def update(self, layer_idx: int = 0, offset: int | None = 1, cache_kwargs: dict | None = None, **parts) -> dict:
        """Put in what a layer has after `offset` further steps: states replace the earlier ones, attn_state is appended to it and cut
        to the window (`cache_kwargs["window_size"]`). Parts that are None stay as they were. Returns the layer's state."""
        state = self.states.setdefault(layer_idx, dict.fromkeys(PARTS))
        for name, value in parts.items():
            if name not in PARTS:
                raise TypeError(f"a cache has no part {name!r}; it has {', '.join(PARTS)}")
            if value is None:
                continue
            if name == "attn_state":
                earlier = state[name] or [None] * len(value)
                value = tuple(
                    new if old is None else torch.cat((old, new), 1) for old, new in zip(earlier, value, strict=True)
                )
                window = (cache_kwargs or {}).get("window_size")
                if window is not None:
                    value = tuple(part[:, -window:] for part in value)
            state[name] = value
        self.seen[layer_idx] = self.get_seq_length(layer_idx) + (1 if offset is None else offset)
        return state

    def numbers(self, parts: tuple[str, ...] = PARTS) -> int:
        """How many numbers these parts of all layers hold, for the whole batch; `shared` is keys and values, as attn_state is."""
        numbers = sum(count(state[part]) for state in self for part in parts)
        return numbers + (count(self.shared) if "attn_state" in parts else 0)


def count(state) -> int:
    """Numbers in a tensor, or in all tensors of tuples, lists, dicts and objects."""
    if isinstance(state, torch.Tensor):
        return state.numel()
    if isinstance(state, dict):
        return sum(map(count, state.values()))
    if isinstance(state, list | tuple):
        return sum(map(count, state))
    return count(vars(state)) if hasattr(state, "__dict__") else 0
