"""S4D: a diagonal, constant state-space model with a complex state in every channel. Axes: B batch, T time, D channels, N complex states."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from ...kernels.diagonal_ssm import diagonal_ssm


class S4D(nn.Module):
    """S4D-Lin with zero-order hold (Gu et al. 2022, arXiv:2206.11893): y_t = 2 Re sum_n C_n s_tn + D u_t,
    s_t = exp(dt A) s_{t-1} + (exp(dt A) - 1) / A u_t, A_n = -1/2 + i pi n, then GELU and a linear map with a gated linear unit.

    state_size       numbers of a channel's state, two for each complex one (of a conjugate pair one is kept, hence the factor 2)
    dt_min, dt_max   the steps dt start log-uniformly between them, one a channel
    """

    float32 = ("log_dt", "A_log", "A_imag", "C", "D")  # parameters that stay so in half precision (see `_apply`)

    def __init__(
        self,
        hidden_size: int,
        state_size: int = 64,
        use_output_gate: bool = True,
        initial_decay: float | None = None,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        layer_idx: int | None = None,
    ):
        super().__init__()
        if state_size % 2:
            raise ValueError(f"state_size is {state_size}; it must be even, because a complex state is two numbers")
        if not 0 < dt_min <= dt_max:
            raise ValueError(f"dt_min ({dt_min}) and dt_max ({dt_max}) must be above 0 and in order")
        self.layer_idx, self.use_output_gate = layer_idx, use_output_gate
        pairs = state_size // 2
        self.log_dt = nn.Parameter(torch.empty(hidden_size).uniform_(math.log(dt_min), math.log(dt_max)))
        self.A_log = nn.Parameter(torch.full((hidden_size, pairs), math.log(0.5)))  # of -Re A
        self.A_imag = nn.Parameter(math.pi * torch.arange(float(pairs)).repeat(hidden_size, 1))
        self.C = nn.Parameter(torch.randn(hidden_size, pairs, 2) * 0.5**0.5)
        self.D = nn.Parameter(torch.randn(hidden_size))
        if initial_decay is not None:
            with torch.no_grad():
                self.A_log.copy_((math.log(-math.log(initial_decay)) - self.log_dt[:, None]).expand_as(self.A_log))
        for name in self.float32:
            getattr(self, name)._no_weight_decay = True
        self.out_proj = nn.Linear(hidden_size, 2 * hidden_size if use_output_gate else hidden_size)

    def _apply(self, fn, recurse=True):
        """In half precision the constants of the recurrence stay float32: a phase of some radians a step, with an error of 1 in 256,
        is lost within a hundred steps."""

        def moved(tensor):
            out = fn(tensor)
            return tensor.to(out.device) if out.dtype in (torch.bfloat16, torch.float16) else out

        super()._apply(moved, recurse=False)
        for child in self.children() if recurse else ():
            child._apply(fn)
        return self

    def forward(self, x: torch.Tensor, past_key_values=None, use_cache: bool = False) -> torch.Tensor:
        """(B, T, D) -> (B, T, D)."""
        state = None
        if past_key_values is not None and len(past_key_values) > self.layer_idx:
            state = past_key_values[self.layer_idx]["recurrent_state"]
        with torch.autocast(x.device.type, enabled=False):
            dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
            step, real, imag = self.log_dt.to(dtype).exp()[:, None], -self.A_log.to(dtype).exp(), self.A_imag.to(dtype)
            log_decay, phase = step * real, step * imag
            held = _divide(_expm1(log_decay, phase), (real, imag))
            weight = 2 * torch.view_as_real(torch.view_as_complex(self.C.to(dtype)) * torch.complex(*held))
            u = x.to(dtype)
            y, state = diagonal_ssm(u, log_decay, phase, weight, state)
            y = F.gelu(y + self.D.to(dtype) * u)
        if past_key_values is not None:
            past_key_values.update(self.layer_idx, x.shape[1], recurrent_state=state)
        y = self.out_proj(y.to(x.dtype))
        return F.glu(y) if self.use_output_gate else y


def _expm1(real, imag):
    """exp(real + i imag) - 1 in parts, exact for small numbers."""
    return real.expm1() * imag.cos() - 2 * (imag / 2).sin().square(), real.exp() * imag.sin()


def _divide(x, y):
    """Quotient of complex numbers in parts."""
    (xr, xi), (yr, yi) = x, y
    size = yr.square() + yi.square()
    return (xr * yr + xi * yi) / size, (xi * yr - xr * yi) / size
