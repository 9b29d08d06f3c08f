"""The small fused modules of fla's layers in plain torch: short convolution, norms, activations, forward and backward.

Functions named as in fla take fla's arguments, are called inside fla's own autograd functions, and return what fla's return.
All compute in float32 (float64 for float64 input) and cast once at the end. Axes: B batch, T time, D channels, W filter width.
"""

import torch
from torch.nn import functional as F

from .layout import compute_dtype, exact_backward


def refuse(where: str, **arguments) -> None:
    """Raise NotImplementedError for the first argument that is set: the CPU kernels do not know it."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise NotImplementedError(
                f"{where} on CPU tensors does not support the argument {name!r} (only CUDA does)"
            )


def silu_gradient(x: torch.Tensor) -> torch.Tensor:
    """Derivative of x * sigmoid(x)."""
    s = torch.sigmoid(x)
    return s.addcmul(x * s, 1 - s)


# --- short causal convolution ----------------------------------------------------------------------------------------------------

BLOCK = 1 << 17  # numbers that passes over them should find in the cache again: half a megabyte in float32


def _blocks(rows: int, width: int):
    """Slices of about BLOCK numbers. These modules are many cheap passes: over the whole array each would wait for main memory."""
    step = max(1, BLOCK // max(1, width))
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]


def _conv_inputs(x, weight, initial_state):
    """x (B, T, D) in the computing type, and the W - 1 inputs before it (B, W - 1, D) or None."""
    dtype = compute_dtype(x, weight, initial_state)
    x = x.reshape(*x.shape[:2], -1).to(dtype)
    before = None if initial_state is None else initial_state[..., 1:].transpose(1, 2).to(dtype)
    return x, before, weight.to(dtype)


def _convolve(x, before, taps, bias, out=None):
    """x (b, T, D), taps: W vectors (D,)."""
    width, steps = len(taps), x.shape[1]
    y = torch.mul(x, taps[-1], out=out)
    for back in range(1, width):
        y[:, back:].addcmul_(x[:, : max(0, steps - back)], taps[-1 - back])
        if before is not None:
            rows = min(back, steps)
            y[:, :rows].addcmul_(before[:, width - 1 - back : width - 1 - back + rows], taps[-1 - back])
    return y if bias is None else y.add_(bias)


def _last_inputs(x, initial_state, width):
    """The last W inputs, (B, D, W), with those of the initial state (or zeros) where x is shorter."""
    tail = x[:, -width:].transpose(1, 2)
    missing = width - tail.shape[2]
    if not missing:
        return tail.contiguous()
    earlier = (
        x.new_zeros(x.shape[0], x.shape[2], missing)
        if initial_state is None
        else initial_state[..., -missing:].to(x.dtype)
    )
    return torch.cat((earlier, tail), 2)


def causal_conv1d_fwd(
    x, weight, bias, residual, initial_state=None, output_final_state=False, activation=None, cu_seqlens=None,
    cu_seqlens_cpu=None, chunk_indices=None, chunk_size=64, layout_fallback=False,
):  # fmt: skip
    """x (B, T, D), weight (D, W), initial_state (B, D, W): y = activation(conv + bias) + residual, and the last W inputs."""
    refuse("causal_conv1d", cu_seqlens=cu_seqlens)
    xf, before, wf = _conv_inputs(x, weight, initial_state)
    taps, y = [tap.contiguous() for tap in wf.unbind(1)], torch.empty_like(xf, memory_format=torch.contiguous_format)
    for part in _blocks(len(xf), xf[0].numel()):
        block = _convolve(xf[part], None if before is None else before[part], taps, bias, out=y[part])
        if activation in ("swish", "silu"):
            F.silu(block, inplace=True)
    y = y.view(x.shape)
    if residual is not None:
        y = y + residual
    final = None
    if output_final_state:
        final = _last_inputs(x.reshape(*x.shape[:2], -1), initial_state, weight.shape[1])
    return y.to(x.dtype), final


def _over_time(a, b):
    """Sum of a * b over batch and time."""
    return (a * b).sum((0, 1))


def causal_conv1d_bwd(
    x, dy, dht, weight=None, bias=None, residual=None, initial_state=None, activation=None, cu_seqlens=None,
    cu_seqlens_cpu=None, chunk_indices=None, chunk_size=64, layout_fallback=False,
):  # fmt: skip
    """Gradients of x, weight, bias, residual and the initial state, for dy (B, T, D) and dht (B, D, W) of the final state."""
    refuse("causal_conv1d", cu_seqlens=cu_seqlens)
    xf, before, wf = _conv_inputs(x, weight, initial_state)
    dyf = dy.reshape(xf.shape).to(xf.dtype)
    width, steps = wf.shape[1], xf.shape[1]
    taps = [tap.contiguous() for tap in wf.unbind(1)]
    dx = torch.empty_like(xf, memory_format=torch.contiguous_format)
    dtaps = xf.new_zeros(width, xf.shape[2])
    dbias = xf.new_zeros(xf.shape[2])
    dbefore = None if before is None else torch.zeros_like(before)
    for part in _blocks(len(xf), xf[0].numel()):
        xb, dz, first = xf[part], dyf[part], None if before is None else before[part]
        if activation in ("swish", "silu"):
            dz = torch.mul(dz, silu_gradient(_convolve(xb, first, taps, bias)))
        if bias is not None:
            dbias += dz.sum((0, 1))
        dxb = torch.mul(dz, taps[-1], out=dx[part])
        dtaps[-1] += _over_time(dz, xb)
        for back in range(1, width):
            if back < steps:
                dxb[:, :-back].addcmul_(dz[:, back:], taps[-1 - back])
                dtaps[-1 - back] += _over_time(dz[:, back:], xb[:, :-back])
            if before is not None:
                rows, row = min(back, steps), width - 1 - back
                dbefore[part, row : row + rows].addcmul_(dz[:, :rows], taps[-1 - back])
                dtaps[-1 - back] += _over_time(dz[:, :rows], first[:, row : row + rows])
    dinitial = None
    if before is not None:
        dinitial = F.pad(dbefore.transpose(1, 2), (1, 0))
    if dht is not None:
        kept = min(width, steps)
        dx[:, steps - kept :] += dht[..., width - kept :].transpose(1, 2)
        if dinitial is not None and kept < width:
            dinitial[..., kept:] += dht[..., : width - kept]
    return (
        dx.to(x.dtype).view(x.shape),
        dtaps.t().to(weight.dtype),
        None if bias is None else dbias.to(bias.dtype),
        None if residual is None else dy,
        None if dinitial is None else dinitial.to(initial_state.dtype),
    )


def causal_conv1d_update_states(x, state_len, initial_state=None, cu_seqlens=None):
    """The last `state_len` inputs of x (B, T, D), (B, D, state_len)."""
    refuse("causal_conv1d_update_states", cu_seqlens=cu_seqlens)
    return _last_inputs(x, initial_state, state_len)


def causal_conv1d_update(x, cache, residual=None, weight=None, bias=None, activation=None):
    """One step for each of N sequences: x of N * D elements, cache (N, D, W) changed in place. Returns y of x's shape, and the cache."""
    step = x.reshape(-1, weight.shape[0])
    cache.copy_(torch.cat((cache[..., 1:], step.unsqueeze(-1).to(cache.dtype)), -1))
    dtype = compute_dtype(x, weight)
    y = (cache.to(dtype) * weight.to(dtype)).sum(-1)
    if bias is not None:
        y = y + bias
    if activation in ("swish", "silu"):
        y = F.silu(y)
    y = y.view(x.shape)
    return (y if residual is None else y + residual).to(x.dtype), cache


# --- norms -----------------------------------------------------------------------------------------------------------------------


def _normalise(x, eps, is_rms_norm):
    """x (rows, D): x - mean scaled to unit mean square, the mean (rows,) or None, and the reciprocal deviation (rows,)."""
    mean = None
    if not is_rms_norm:
        mean = x.mean(-1)
        x = x - mean[:, None]
    rstd = torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(eps).rsqrt_()
    return x * rstd[:, None], mean, rstd


def _grouped(x, weight, groups):
    """Weight or bias (G * D,) as it applies to rows (T, D), where row t belongs to group t mod G."""
    return weight if groups == 1 else weight.view(groups, -1).repeat(x.shape[0] // groups, 1)


def layer_norm_fwd(
    x, weight, bias, eps=1e-5, residual=None, out_dtype=None, residual_dtype=None, is_rms_norm=False, num_groups=1
):  # fmt: skip
    """x (T, D): norm of x + residual, with the mean, the reciprocal deviation and x + residual."""
    return _norm_fwd(x, None, weight, bias, None, eps, residual, out_dtype, residual_dtype, is_rms_norm, num_groups)


def layer_norm_gated_fwd(
    x, g, weight, bias, activation="swish", eps=1e-5, residual=None, out_dtype=None, residual_dtype=None, is_rms_norm=False
):  # fmt: skip
    """As layer_norm_fwd, times the activation of the gate g (T, D)."""
    return _norm_fwd(x, g, weight, bias, activation, eps, residual, out_dtype, residual_dtype, is_rms_norm, 1)


def _norm_fwd(x, g, weight, bias, activation, eps, residual, out_dtype, residual_dtype, is_rms_norm, groups):
    dtype = compute_dtype(x, residual)
    total = x.to(dtype) if residual is None else x.to(dtype) + residual
    y, mean, rstd = _normalise(total, eps, is_rms_norm)
    if weight is not None:
        y = y.mul_(_grouped(y, weight, groups))
    if bias is not None:
        y = y.add_(_grouped(y, bias, groups))
    if g is not None:
        y = y.mul_(_gate(g.to(dtype), activation))
    kept = x
    if residual is not None:
        kept = total.to(residual.dtype)
    elif residual_dtype is not None and residual_dtype != x.dtype:
        kept = x.to(residual_dtype)
    return y.to(out_dtype or x.dtype), mean, rstd, kept


def _gate(g, activation):
    if activation in ("swish", "silu"):
        return F.silu(g)
    if activation == "sigmoid":
        return torch.sigmoid(g)
    raise NotImplementedError(f"gated norm on CPU tensors does not support activation {activation!r}")


def layer_norm_bwd(
    dy, x, weight, bias, mean=None, rstd=None, dres=None, has_residual=False, is_rms_norm=False, x_dtype=None,
    recompute_output=False, num_groups=1,
):  # fmt: skip
    """Gradients of x, weight, bias and the residual (and the output again, if asked)."""
    dx, _, dw, db, dres_in, y = _norm_bwd(
        dy,
        x,
        None,
        weight,
        bias,
        None,
        mean,
        rstd,
        dres,
        has_residual,
        is_rms_norm,
        x_dtype,
        recompute_output,
        num_groups,
    )
    return (dx, dw, db, dres_in, y) if recompute_output else (dx, dw, db, dres_in)


def layer_norm_gated_bwd(
    dy, x, g, weight, bias, activation="swish", eps=1e-5, mean=None, rstd=None, dresidual=None, has_residual=False,
    is_rms_norm=False, x_dtype=None, recompute_output=False,
):  # fmt: skip
    """Gradients of x, the gate, weight, bias and the residual (and the output again, if asked)."""
    dx, dg, dw, db, dres_in, y = _norm_bwd(
        dy,
        x,
        g,
        weight,
        bias,
        activation,
        mean,
        rstd,
        dresidual,
        has_residual,
        is_rms_norm,
        x_dtype,
        recompute_output,
        1,
    )
    return (dx, dg, dw, db, dres_in, y) if recompute_output else (dx, dg, dw, db, dres_in)


def _norm_bwd(
    dy, x, g, weight, bias, activation, mean, rstd, dres, has_residual, is_rms_norm, x_dtype, recompute, groups
):
    dtype, out_type = compute_dtype(x, dy), dy.dtype
    xhat, dy = x.to(dtype), dy.to(dtype)
    if mean is not None:
        xhat = xhat - mean[:, None]
    xhat = xhat * rstd[:, None]
    scaled = xhat if weight is None else xhat * _grouped(xhat, weight, groups)
    if bias is not None:
        scaled = scaled + _grouped(xhat, bias, groups)
    dg, out = None, scaled
    if g is not None:
        gf = g.to(dtype)
        sigmoid = torch.sigmoid(gf)
        if activation == "sigmoid":
            gate, slope = sigmoid, sigmoid * (1 - sigmoid)
        else:
            gate = gf * sigmoid
            slope = torch.addcmul(sigmoid, gate, 1 - sigmoid)
        dg = (slope.mul_(scaled).mul_(dy)).to(x_dtype or g.dtype)
        if recompute:
            out = scaled * gate
        dy = dy * gate
    rows = (slice(None),) if groups == 1 else None

    def reduce(values, like):
        total = values.sum(0) if rows else values.view(-1, groups, values.shape[-1]).sum(0).flatten()
        return total.to(like.dtype)

    dw = None if weight is None else reduce(dy * xhat, weight)
    db = None if bias is None else reduce(dy, bias)
    wdy = dy if weight is None else dy * _grouped(dy, weight, groups)
    dx = torch.addcmul(wdy, xhat, torch.linalg.vecdot(xhat, wdy).div_(-x.shape[-1])[:, None])
    if mean is not None:
        dx = dx - wdy.mean(-1, keepdim=True)
    dx = dx.mul_(rstd[:, None])
    if dres is not None:
        dx = dx + dres
    dx_out = dx.to(x_dtype or x.dtype)
    dres_in = None
    if has_residual:
        dres_in = dx_out if dx_out.dtype == x.dtype else dx.to(x.dtype)
    return dx_out, dg, dw, db, dres_in, out.to(out_type) if recompute else None


class _GatedRMSNorm(torch.autograd.Function):
    """Rows (T, D) in groups of `size` channels: norm(x silu(z)) weight, or norm(x) weight silu(z) with norm_before_gate; in blocks."""

    @staticmethod
    def forward(ctx, x, weight, z, eps, size, before_gate):
        dtype = compute_dtype(x)
        out, rstd = torch.empty_like(x), x.new_empty(len(x), x.shape[1] // size, 1, dtype=dtype)
        for part in _blocks(*x.shape):
            xb, gate = x[part].to(dtype), F.silu(z[part].to(dtype))
            normed = (xb if before_gate else xb * gate).unflatten(-1, (-1, size))
            rows = torch.linalg.vecdot(normed, normed).div_(size).add_(eps).rsqrt_().unsqueeze(-1)
            rstd[part] = rows
            y = (normed * rows).flatten(-2).mul_(weight)
            out[part] = y.mul_(gate) if before_gate else y
        ctx.save_for_backward(x, weight, z, rstd)
        ctx.shape = (size, before_gate)
        return out

    @staticmethod
    @exact_backward
    def backward(ctx, dy):
        x, weight, z, rstd = ctx.saved_tensors
        size, before_gate = ctx.shape
        dx, dz, dweight = torch.empty_like(x), torch.empty_like(z), torch.zeros_like(weight, dtype=rstd.dtype)
        for part in _blocks(*x.shape):
            xb, zb, dyb = x[part].to(rstd.dtype), z[part].to(rstd.dtype), dy[part].to(rstd.dtype)
            sigmoid = torch.sigmoid(zb)
            gate = zb * sigmoid
            slope = torch.addcmul(sigmoid, gate, 1 - sigmoid)
            xhat = (xb if before_gate else xb * gate).unflatten(-1, (-1, size)) * rstd[part]
            if before_gate:
                dz[part] = slope.mul_(dyb).mul_(xhat.flatten(-2)).mul_(weight)
                dyb = dyb * gate
            dweight += (dyb * xhat.flatten(-2)).sum(0)
            dhat = (dyb * weight).unflatten(-1, (-1, size))
            along = torch.linalg.vecdot(dhat, xhat).div_(-size).unsqueeze(-1)
            dnormed = dhat.addcmul_(xhat, along).mul_(rstd[part]).flatten(-2)
            if not before_gate:
                dz[part] = slope.mul_(dnormed).mul_(xb)
                dnormed = dnormed.mul_(gate)
            dx[part] = dnormed
        return dx, dweight.to(weight.dtype), dz, None, None, None


def rmsnorm_fn(x, weight, bias, z=None, eps=1e-6, group_size=None, norm_before_gate=True):
    """Mamba-2's norm: RMSNorm in groups of `group_size` channels, gated by silu(z) before or after."""
    size = group_size or x.shape[-1]
    if z is not None and bias is None:
        rows, gate = x.reshape(-1, x.shape[-1]), z.reshape(-1, x.shape[-1])
        return _GatedRMSNorm.apply(rows, weight, gate, eps, size, norm_before_gate).view(x.shape)
    dtype = compute_dtype(x)
    out = x.to(dtype)
    if z is not None and not norm_before_gate:
        out = out * F.silu(z.to(dtype))
    out = F.rms_norm(out.unflatten(-1, (-1, size)), (size,), eps=eps).flatten(-2) * weight
    if bias is not None:
        out = out + bias
    if z is not None and norm_before_gate:
        out = out * F.silu(z.to(dtype))
    return out.to(x.dtype)


class _L2Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, eps):
        xf = x.to(compute_dtype(x))
        rstd = torch.linalg.vecdot(xf, xf).add_(eps).rsqrt_().unsqueeze(-1)
        y = xf * rstd
        ctx.save_for_backward(y, rstd)
        ctx.dtype = x.dtype
        return y

    @staticmethod
    @exact_backward
    def backward(ctx, dy):
        y, rstd = ctx.saved_tensors
        along = torch.linalg.vecdot(dy, y).unsqueeze(-1)
        return torch.addcmul(dy, y, along, value=-1).mul_(rstd).to(ctx.dtype), None


def l2norm(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """x / sqrt(sum of squares + eps) over the last axis, in the computing type: fla's convention, eps inside the root."""
    return _L2Norm.apply(x, eps)


def l2norm_fwd(x, eps=1e-6, output_dtype=None):
    """x (..., D) scaled to unit length in x's type or output_dtype, and the reciprocal lengths (...)."""
    xf = x.to(compute_dtype(x))
    rstd = torch.linalg.vecdot(xf, xf).add_(eps).rsqrt_()
    return (xf * rstd.unsqueeze(-1)).to(output_dtype or x.dtype), rstd


def l2norm_bwd(y, rstd, dy, eps=1e-6):
    """Gradient of x, from what l2norm_fwd returned."""
    yf, dyf = y.to(rstd.dtype), dy.reshape(y.shape).to(rstd.dtype)
    along = torch.linalg.vecdot(dyf, yf).unsqueeze(-1)
    return torch.addcmul(dyf, yf, along, value=-1).mul_(rstd.unsqueeze(-1)).to(y.dtype)


# --- activations -----------------------------------------------------------------------------------------------------------------


def swish_fwd(x, output_contiguous=False):
    """x * sigmoid(x)."""
    return F.silu(x.to(compute_dtype(x))).to(x.dtype)


def swish_bwd(x, dy, output_contiguous=False):
    """Gradient of swish_fwd."""
    return (dy * silu_gradient(x.to(compute_dtype(x)))).to(x.dtype)


def sigmoid_fwd(x, output_contiguous=False):
    """1 / (1 + exp(-x))."""
    return torch.sigmoid(x)


def sigmoid_bwd(x, dy, output_contiguous=False):
    """Gradient of sigmoid_fwd."""
    s = torch.sigmoid(x.to(compute_dtype(x)))
    return (dy * s * (1 - s)).to(x.dtype)


def logsigmoid_fwd(x, temperature=1.0, output_contiguous=False):
    """log(sigmoid(x)) / temperature."""
    return (F.logsigmoid(x.to(compute_dtype(x))) / temperature).to(x.dtype)


def logsigmoid_bwd(x, dy, temperature=1.0, output_contiguous=False):
    """Gradient of logsigmoid_fwd."""
    return (dy * torch.sigmoid(-x.to(compute_dtype(x))) / temperature).to(x.dtype)
