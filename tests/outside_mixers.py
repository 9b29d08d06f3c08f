"""Mixers from outside that a model must not be made of, for test_models_outside.py."""

import torch
from torch import nn

SHARED = {}


def shared(hidden_size, num_heads, layer_idx):
    """One layer for all, built once for each width."""
    return SHARED.setdefault(hidden_size, nn.Linear(hidden_size, hidden_size))


class Tied(nn.Module):
    """Two names for one weight."""

    def __init__(self, hidden_size):
        super().__init__()
        self.a, self.b = nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.b.weight = self.a.weight

    def forward(self, x):
        """Both, one after the other."""
        return self.b(self.a(x))


def tied(hidden_size, num_heads, layer_idx):
    """Tied inside one layer."""
    return Tied(hidden_size)


class Scaled(nn.Module):
    """A linear map times something drawn at random, which is not saved."""

    def __init__(self, hidden_size, buffer):
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        if buffer:
            self.register_buffer("table", torch.randn(hidden_size), persistent=False)
        else:
            self.table = torch.randn(hidden_size)

    def forward(self, x):
        """The map of the product."""
        return self.linear(x * self.table)


def random_buffer(hidden_size, num_heads, layer_idx):
    """Drawn at random into a buffer that is not saved."""
    return Scaled(hidden_size, buffer=True)


def random_attribute(hidden_size, num_heads, layer_idx):
    """Drawn at random into a plain attribute."""
    return Scaled(hidden_size, buffer=False)


class Mean(nn.Module):
    """The mean over all steps, the later ones too; its output projection starts at zero if asked to."""

    def __init__(self, hidden_size, zero):
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        if zero:
            nn.init.zeros_(self.linear.weight)

    def forward(self, x):
        """Not causal."""
        return self.linear(x + x.mean(1, keepdim=True))


def acausal(hidden_size, num_heads, layer_idx, zero=False):
    """Looks forwards."""
    return Mean(hidden_size, zero)


class Fourier(nn.Module):
    """A causal convolution by FFT: rounding errors travel backwards."""

    def __init__(self, hidden_size):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4096, hidden_size))

    def forward(self, x):
        """Padded to twice the length."""
        steps = x.shape[1]
        spectrum = torch.fft.rfft(x, 2 * steps, dim=1) * torch.fft.rfft(self.filter[:steps], 2 * steps, dim=0)
        return torch.fft.irfft(spectrum, 2 * steps, dim=1)[:, :steps]


def fourier(hidden_size, num_heads, layer_idx):
    """Good."""
    return Fourier(hidden_size)


def wide(hidden_size, num_heads, layer_idx):
    """The wrong width."""
    return nn.Linear(hidden_size, hidden_size + 1)


def lazy(hidden_size, num_heads, layer_idx):
    """No shapes yet."""
    return nn.LazyLinear(hidden_size)


def number(hidden_size, num_heads, layer_idx):
    """No module."""
    return 3


def signature(width):
    """Other arguments."""
    return nn.Linear(width, width)


def broken(hidden_size, num_heads, layer_idx):
    """Fails while it builds."""
    return nn.Linear(hidden_size, -1)


def deaf(hidden_size, num_heads, layer_idx):
    """Cannot run on vectors."""
    return nn.Embedding(3, hidden_size)


class Changed(nn.Module):
    """A linear map whose input or output goes through a function of the module and the tensor."""

    def __init__(self, hidden_size, before=None, after=None):
        super().__init__()
        self.linear, self.norm = nn.Linear(hidden_size, hidden_size), nn.BatchNorm1d(hidden_size)
        self.before, self.after = before, after

    def forward(self, x):
        """The map."""
        x = self.linear(x if self.before is None else self.before(self, x))
        return x if self.after is None else self.after(self, x)


def double(hidden_size, num_heads, layer_idx):
    """Another type than it was given."""
    return Changed(hidden_size, after=lambda self, x: x.double())


def in_place(hidden_size, num_heads, layer_idx):
    """Overwrites what it is given."""
    return Changed(hidden_size, before=lambda self, x: x.add_(1))


def random_output(hidden_size, num_heads, layer_idx):
    """Dropout that is never off."""
    return Changed(hidden_size, after=lambda self, x: nn.functional.dropout(x, 0.5))


def batch_norm(hidden_size, num_heads, layer_idx):
    """Looks forwards in training mode alone."""
    return Changed(hidden_size, after=lambda self, x: self.norm(x.transpose(1, 2)).transpose(1, 2))


class TimeFirst(nn.Module):
    """A GRU that takes the batch for time."""

    def __init__(self, hidden_size):
        super().__init__()
        self.rnn = nn.GRU(hidden_size, hidden_size)

    def forward(self, x):
        """Without batch_first."""
        return self.rnn(x)[0]


def time_first(hidden_size, num_heads, layer_idx):
    """Right shapes all the same."""
    return TimeFirst(hidden_size)


class OneState(nn.Module):
    """A running sum whose layers all keep their state as the first one's."""

    def forward(self, x, past_key_values=None, use_cache=False):
        """The sum."""
        out = x.cumsum(1)
        if past_key_values is not None:
            if past_key_values.get_seq_length():
                out = out + past_key_values[0]["recurrent_state"][:, None]
            past_key_values.update(recurrent_state=out[:, -1], layer_idx=0, offset=x.shape[1])
        return out


def one_state(hidden_size, num_heads, layer_idx):
    """Right with one layer."""
    return OneState()
