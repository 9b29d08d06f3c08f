"""Before a run trusts the kernels of a device: its own layers there and, from the same weights, on the CPU with our kernels.

fla's Triton kernels have given wrong gradients with some pairs of card and Triton. So the layers that a run is about to use, at their real
sizes, are built afresh, moved off their starting values, and run on the device and on the CPU in float32: outputs, and for training the
gradients of the input and of every parameter. Both forms are met: up to 64 steps fla takes another kernel than above.

Axes: B batch, T time, D hidden size.
"""

import importlib.metadata

import torch

from ..errors import KernelMismatch
from . import enable

STEPS = (48, 160)  # the recurrent form, and the chunked one with a last chunk that is not full
BATCH = 2
# Largest relative error (2-norm) of outputs and of gradients. Products of float32 are TF32 in Triton, with 10 bits of mantissa; bfloat16 has
# 7, and the linear maps around the kernels round as well. The CPU in bf16 is up to 0.014 and 0.1 off (RWKV-6, whose norm enlarges small
# outputs), float32 as TF32 an eighth of it. What wrong kernels have given was off by far more, or NaN.
BOUNDS = {"fp32": {"output": 1e-2, "gradient": 5e-2}, "bf16": {"output": 5e-2, "gradient": 0.25}}
FLOOR = 0.05  # a gradient smaller than this part of the largest is measured against that: sums that nearly cancel keep few digits


def check_kernels(config, device, precision: str = "fp32", train: bool = True) -> dict:
    """Compare the layers of `config` on `device` with the CPU; returns what the record says. Raises KernelMismatch.

    precision: "fp32" or "bf16" (autocast), of training; evaluation is always in float32. train: gradients too, and evaluation's form.
    """
    from ..models.mixers import get_mixer

    mixer = get_mixer(config.mixer)
    if not mixer.needs_fla:
        return {"status": "not needed", "why": f"{config.mixer} is no layer of flash-linear-attention"}
    try:
        enable()
    except RuntimeError as error:
        raise KernelMismatch(
            f"the kernels of this device cannot be compared with the CPU's: {error} (--self_check false trains all the same)"
        ) from error
    device = torch.device(device)
    modes = [(True, precision), (False, "fp32")] if train else [(False, "fp32")]
    worst = {"output": (0.0, ""), "gradient": (0.0, "")}
    lower = None
    for training, wanted in modes:
        for steps in STEPS:
            here, layers = _run(config, device, wanted, training, steps)
            lower = lower or _lower_precision(layers, device)
            reference, _ = _run(config, torch.device("cpu"), "fp32", training, steps)
            bounds = BOUNDS[lower or wanted]
            for kind, name, error in _errors(here, reference):
                what = f"{kind} {name}".strip()
                if not error <= bounds[kind]:
                    form = f"{steps} steps, {'training' if training else 'evaluation'}, {lower or wanted}"
                    raise KernelMismatch(
                        f"the kernels of mixer {config.mixer!r} are wrong on {_place(device)}: the {what} differs from the CPU's by "
                        f"{error:.2g} of its size ({form}; at most {bounds[kind]:g} is rounding) with {_software()}; use another "
                        "version of triton or flash-linear-attention, or train on the CPU (--self_check false trains all the same)"
                    )
                if error > worst[kind][0]:
                    worst[kind] = (error, what)
    return {
        "status": "passed",
        "device": _place(device),
        "precision": precision if train else "fp32",
        "kernels_computed_in": lower or (precision if train else "fp32"),
        "steps": list(STEPS),
        **{f"largest_{kind}_error": error for kind, (error, _) in worst.items() if kind == "output" or train},
        **({"largest_gradient_error_of": worst["gradient"][1]} if train else {}),
    }


def told(result: dict) -> str:
    """What check_kernels returned, as a line for the user."""
    if result["status"] != "passed":
        return f"kernels: no self-check ({result['why']})"
    errors = ", ".join(
        f"{k} {result[f'largest_{k}_error']:.1g}" for k in BOUNDS["fp32"] if f"largest_{k}_error" in result
    )
    return f"kernels: as the CPU's on {result['device']} (largest error: {errors}; computed in {result['kernels_computed_in']})"


def _run(config, device, precision, training, steps):
    """(name -> tensor on the CPU in float32, the layers) of the first layer, or the first two where layers tell each other something."""
    from ..models.mixers import build_mixer
    from ..models.modeling import _mixed

    generator = torch.Generator().manual_seed(steps)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(0)  # not torch.manual_seed, which would also set the device's
        layers = [
            build_mixer(config.mixer, config.hidden_size, config.num_heads, index, config.mixer_kwargs, config)
            for index in range(min(2, config.num_hidden_layers))
        ]
    if not getattr(layers[0], "takes_shared", False):
        layers = layers[:1]
    with torch.no_grad():
        for layer in layers:
            for parameter in layer.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    for layer in layers:
        layer.to(device).train(training)
    x = torch.randn(BATCH, steps, config.hidden_size, generator=generator)
    weighting = torch.randn(x.shape, generator=generator).to(device)
    x = x.to(device).requires_grad_(training)
    with (
        torch.set_grad_enabled(training),
        torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"),
    ):
        out, shared = x, {}
        for layer in layers:
            out = _mixed(layer, out, None, shared)
    found = {"output": out}
    if training:
        (out.float() * weighting).sum().backward()
        found["input"] = x.grad
        for index, layer in enumerate(layers):
            found |= {f"layer {index}'s {name}": p.grad for name, p in layer.named_parameters() if p.grad is not None}
    return {name: value.detach().float().cpu() for name, value in found.items()}, layers


def _lower_precision(layers, device) -> str | None:
    """ "bf16" if the layers round what they give their kernels on CUDA, whatever they were asked for (models.layers.delta)."""
    rounded = any(getattr(m, "computes_in", None) == "bfloat16" for layer in layers for m in layer.modules())
    return "bf16" if rounded and device.type == "cuda" else None


def _errors(here, reference):
    """(kind, name, relative error) of each tensor; NaN stays NaN."""
    if set(here) != set(reference):
        missing = ", ".join(sorted(set(here) ^ set(reference)))
        raise KernelMismatch(f"only one of the device and the CPU gives a gradient for {missing}")
    yield "output", "", _error(here["output"], reference["output"], 0.0)
    norms = {name: value.norm().item() for name, value in reference.items() if name != "output"}
    for name in norms:
        yield "gradient", f"of {name}", _error(here[name], reference[name], FLOOR * max(norms.values()))


def _error(got, wanted, floor):
    return ((got - wanted).norm() / wanted.norm().clamp_min(max(floor, 1e-12))).item()


def _place(device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _software() -> str:
    names = ("torch", "triton", "fla-core")
    found = []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)
