"""Small models for the tests, and mixers from outside the package."""

import torch
from torch import nn

from selectivbench_hf.models import MIXERS, SelectivBenchConfig, SelectivBenchForStateClassification

SYMBOLS, STATES, WIDTH = 7, 11, 32
ATTENTION, LRM, CLASSIC = (
    [mixer.name for mixer in MIXERS.values() if mixer.family == family] for family in ("attention", "lrm", "classic")
)
ALL = [*ATTENTION, *LRM, *CLASSIC]
# what makes a mixer small enough for a test, where its defaults do not
SMALL = {
    "mamba2": {"state_size": 16},
    "log_linear_mamba2": {"state_size": 64},
}
HEADS = {"path_attention": 2}  # whose heads have at least 16 channels


def config(mixer, **fields):
    """A configuration of width 32 with two layers and no dropout."""
    defaults = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_heads": HEADS.get(mixer),
        "num_symbols": SYMBOLS,
        "num_states": STATES,
        "dropout": 0.0,
        "max_position_embeddings": 128,
        "mixer_kwargs": SMALL.get(mixer, {}),
    }
    return SelectivBenchConfig(mixer=mixer, **{**defaults, **fields})


def model(mixer, seed=0, **fields):
    """A model whose every parameter, norms and biases too, is off its starting value."""
    torch.manual_seed(seed)
    built = SelectivBenchForStateClassification(config(mixer, **fields))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return built.eval()


def ids(batch=3, steps=97, seed=1):
    """Random symbol ids with blanks among them."""
    return torch.randint(0, SYMBOLS + 1, (batch, steps), generator=torch.Generator().manual_seed(seed))


def features(input_ids):
    """The one-hot features of ids, the zero vector for a blank."""
    return nn.functional.one_hot(input_ids, SYMBOLS + 1)[..., :SYMBOLS].float()


class Tabled(nn.Module):
    """A mixer with tables that are not saved: what loading on the meta device loses."""

    def __init__(self, hidden_size, power):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden_size))
        self.inner = nn.Module()
        self.inner.register_buffer("table", torch.arange(hidden_size).float() ** power, persistent=False)
        self.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool).tril(), persistent=False)
        self.register_buffer("kept", torch.full((2,), 3.0))

    def forward(self, x):
        """Cumulative means, scaled by the table."""
        counts = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return x.cumsum(1) / counts * self.weight * self.inner.table.to(x.dtype) * 0.01


def build_tabled(hidden_size, num_heads, layer_idx, power=1.0):
    """For `mixer="models_helper:build_tabled"`."""
    return Tabled(hidden_size, power)
