"""What is asked of a mixer from outside this package before a model is made of it: every question answered with one sentence.

The answers come from two layers built for the purpose on the CPU, from fixed seeds; the random numbers of the caller are as before.
"""

import contextlib
import inspect
import random

import numpy as np
import torch
from torch import nn

from ..errors import InputError
from .cache import DecodingCache
from .mixer import sentence
from .mixers import build_mixer, get_mixer

STEPS = 64  # of the probe; a mixer must take any number, but some take multiples of a chunk only
TOLERANCE = 1e-5  # of the largest output: an FFT lets rounding errors travel backwards


def check_outside(config) -> None:
    """Raise InputError unless the mixer from outside maps (B, T, D) to (B, T, D) causally and is the same model once loaded.

    config: a SelectivBenchConfig whose mixer is `module:function`. Does nothing on the meta device, where a saved model is loaded:
    that model was checked when it was made.
    """
    if torch.empty(0).device.type == "meta":
        return
    name = f"mixer {config.mixer!r}"
    with _apart(), torch.device("cpu"), torch.no_grad():
        first, second = (_build(config, seed).eval() for seed in (1, 2))
        _same_once_loaded(name, first, second)
        steps = min(STEPS, config.max_position_embeddings)
        x = torch.randn(1, steps, config.hidden_size)
        run = _runner(name, first, x)
        out = run(first, x)
        if tuple(out.shape) != tuple(x.shape):
            raise InputError(
                f"{name} returned shape {tuple(out.shape)} for an input of {tuple(x.shape)}; (batch, steps, hidden_size) must come back"
            )
        if not out.isfinite().all():
            raise InputError(f"{name} returned NaN or infinite numbers for a random input of shape {tuple(x.shape)}")
        second.load_state_dict(first.state_dict())
        if _differ(out, run(second, x)):
            raise InputError(
                f"{name} computes something else once its saved weights are loaded: it draws numbers that are not in its "
                "state_dict; make them parameters or persistent buffers"
            )
        if _differ(out, run(first, x, seed=4)):
            raise InputError(
                f"{name} draws random numbers in evaluation mode, so no score could be counted again; nn.Dropout is off there by itself"
            )
        _apart_in_a_batch(name, run, first, x, out)
        if steps > 1:
            if takes_cache(first) and not get_mixer(config.mixer).whole:
                layer = min(1, config.num_hidden_layers - 1)  # the second keeps its state apart from the first
                _decodes(name, run, first if layer == 0 else _build(config, 1, layer).eval(), x, layer)
            _causal(name, run, first, x, out)
            first.train()
            _causal(f"{name}, in training mode,", run, first, x, run(first, x))


def takes_cache(mixer: nn.Module) -> bool:
    """Whether a mixer can go on from a cache: its forward takes `past_key_values`, a DecodingCache."""
    return "past_key_values" in inspect.signature(mixer.forward).parameters


def check_shared(mixer: str, layers) -> None:
    """Raise InputError if two saved tensors of the layers share memory: the file holds each tensor once and would not tie them."""
    seen: dict[int, list] = {}
    for index, layer in enumerate(layers):
        for name, tensor in layer.state_dict(keep_vars=True).items():
            if not isinstance(tensor, torch.Tensor) or tensor.device.type == "meta" or not tensor.numel():
                continue
            start = tensor.data_ptr()
            span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            end = start + span * tensor.element_size()
            known = seen.setdefault(tensor.untyped_storage().data_ptr(), [])
            for other_index, other, other_start, other_end in known:
                if start < other_end and other_start < end:
                    raise InputError(
                        f"mixer {mixer!r} shares weights: {name!r} of layer {index} is {other!r} of layer {other_index}; "
                        "build parameters of its own for each layer, because shared ones cannot be saved"
                    )
            known.append((index, name, start, end))


def check_materialised(what: str, module: nn.Module, meta_allowed: bool = False) -> None:
    """Raise InputError if the module has parameters without values: lazy ones, or some on the meta device."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
            raise InputError(
                f"{what} has the lazy parameter {name!r}, whose shape is not known yet; use layers with fixed shapes"
            )
        if tensor.device.type == "meta" and not meta_allowed:
            raise InputError(
                f"{what} has {name!r} on the meta device, where tensors have no values; build it on the CPU"
            )


@contextlib.contextmanager
def _apart():
    """Random numbers apart from the caller's, and float32 whatever type the model is made in."""
    dtype = torch.get_default_dtype()
    kept = random.getstate(), np.random.get_state()  # noqa: NPY002 - a mixer may draw from it
    cards = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=cards):
            torch.set_default_dtype(torch.float32)
            yield
    finally:
        torch.set_default_dtype(dtype)
        random.setstate(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)  # not torch.manual_seed: that would also seed a GPU not started yet
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


def _build(config, seed: int, layer_idx: int = 0) -> nn.Module:
    _seed(seed)
    return build_mixer(
        config.mixer, config.hidden_size, config.num_heads, layer_idx, config.mixer_kwargs, config=config
    )


def _same_once_loaded(name: str, first: nn.Module, second: nn.Module) -> None:
    saved, others = set(first.state_dict()), dict(second.named_buffers())
    for key, buffer in first.named_buffers():
        if key not in saved and not (key in others and torch.equal(buffer, others[key])):
            raise InputError(
                f"{name} has the buffer {key!r}, which is drawn at random and not saved: a loaded model would be another one; "
                "register it with persistent=True"
            )


def _runner(name: str, module: nn.Module, x: torch.Tensor):
    """A function (module, x) -> output on the CPU; through the GPU where the mixer runs on that alone."""

    def run(module, x, device="cpu", seed=3, **arguments):
        _seed(seed)
        given = x.to(device, copy=True)
        out = module.to(device)(given, **arguments)
        out = out[0] if isinstance(out, tuple) else out
        if not isinstance(out, torch.Tensor):
            raise InputError(f"{name} returned {type(out).__name__}; a tensor (batch, steps, hidden_size) is needed")
        if out.dtype != x.dtype:
            raise InputError(
                f"{name} returned {_plain(out.dtype)} for an input in {_plain(x.dtype)}; the same type must come back"
            )
        if not torch.equal(given, x.to(device)):
            raise InputError(
                f"{name} changes its input in place; work on a copy, because the block around it needs the input too"
            )
        return out.float().cpu()

    try:
        run(module, x)
        return run
    except InputError:
        raise
    except Exception as error:
        if torch.cuda.is_available():
            with contextlib.suppress(Exception):
                run(module, x, "cuda")
                return lambda module, x, **arguments: run(module, x, "cuda", **arguments)
        raise InputError(f"{name} fails on an input of shape {tuple(x.shape)}: {sentence(error)}") from error


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _apart_in_a_batch(name: str, run, module: nn.Module, x: torch.Tensor, out: torch.Tensor) -> None:
    """A sequence must give what it gives alone, whatever else is in its batch."""
    other = torch.randn(x.shape, generator=torch.Generator().manual_seed(5))
    together = run(module, torch.cat((other, x)))
    if together.shape[0] != 2 or _differ(together[1:], out):
        raise InputError(
            f"{name} mixes the sequences of a batch: the output for one depends on another; inputs are (batch, steps, hidden_size), "
            "batch first"
        )


def _causal(name: str, run, module: nn.Module, x: torch.Tensor, out: torch.Tensor) -> None:
    for attempt in range(2):
        moved = False
        for step in (x.shape[1] - 1, x.shape[1] // 2):
            changed = x.clone()
            changed[:, step:] = torch.randn(changed[:, step:].shape, generator=torch.Generator().manual_seed(4))
            other = run(module, changed)
            if _differ(out[:, :step], other[:, :step]):
                raise InputError(
                    f"{name} is not causal: changing the input from step {step} on changes its output before step {step}; "
                    "the benchmark needs mixers that look only backwards"
                )
            moved = moved or _differ(out, other)
        if moved or attempt:
            return
        # it answers nothing yet (an output projection that starts at zero): ask again with other weights
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn(parameter.shape).to(parameter) * 0.05)
        out = run(module, x)


def _decodes(name: str, run, module: nn.Module, x: torch.Tensor, layer: int) -> None:
    """In pieces, each going on from the cache, the sequence must give what it gives at once."""
    whole, cache, pieces = run(module, x), DecodingCache(), []
    half = x.shape[1] // 2
    for piece in (x[:, :half], x[:, half:-1], x[:, -1:]):
        try:
            pieces.append(run(module, piece, past_key_values=cache, use_cache=True))
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"{name} takes past_key_values and fails on a piece of {piece.shape[1]} steps with it: {sentence(error)}"
            ) from error
        seen = sum(part.shape[1] for part in pieces)
        if cache.get_seq_length(layer) != seen:
            raise InputError(
                f"{name} takes past_key_values, and after {seen} steps its cache says {cache.get_seq_length(layer)}: call "
                "past_key_values.update(..., layer_idx=layer_idx, offset=steps of this call) once in each call"
            )
    if _differ(whole, torch.cat(pieces, 1)):
        raise InputError(
            f"{name} takes past_key_values, and a sequence in pieces gives something else than the whole at once: what it keeps in "
            "the cache is not all that later steps need"
        )


def _differ(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape:
        return True
    if not a.numel():
        return False
    return bool((a - b).abs().max() > TOLERANCE * max(a.abs().max().item(), b.abs().max().item()))
