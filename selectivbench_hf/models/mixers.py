"""The sequence mixers: one function and one line each.

A mixer maps (B, T, D) to (B, T, D) causally. Its function takes `hidden_size`, `num_heads`, `layer_idx` and the user's `mixer_kwargs`
and returns a torch module; `MIXERS` gives it a name. `module:function` names one outside this package, with the same arguments.
A linear recurrent model is a layer of flash-linear-attention, with fla's own parameters and initialisation: fla is imported
when such a layer is built, not before.

Axes: B batch, T time, H heads, D channels.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import warnings
from collections.abc import Callable
from types import SimpleNamespace

from ..errors import InputError, unknown

LARGEST_HEAD = 128


@dataclasses.dataclass(frozen=True)
class Mixer:
    """One way to mix over time.

    build    (hidden_size=, num_heads=, layer_idx=, **mixer_kwargs) -> module; for a whole model also config=
    layer    "module:class" whose keyword arguments `mixer_kwargs` may set (None: those of `build`)
    family   "attention", "lrm" (a linear recurrent model of fla) or "module" (somebody else's)
    whole    it is a whole stack with blocks of its own, not one layer in our block
    reserved keyword arguments of `layer` that other fields of the configuration set
    """

    name: str
    build: Callable
    family: str
    layer: str | None = None
    whole: bool = False
    reserved: tuple[str, ...] = ()


def heads_for(hidden_size: int) -> int:
    """Number of heads by the paper's rule: 4, doubled until hidden_size / heads is at most 128."""
    heads = 4
    while hidden_size / heads > LARGEST_HEAD:
        heads *= 2
    return heads


# --- the mixers -----------------------------------------------------------------------------------------------------------------


def transformer(hidden_size, num_heads, layer_idx, **kwargs):
    """Causal attention in the manner of transformers' recent models: RMSNorm on queries and keys, rotary positions, SDPA."""
    from .attention import Attention

    return Attention(hidden_size, num_heads, **kwargs)


def gpt(hidden_size, num_heads, layer_idx, config, **kwargs):
    """The whole GPT-2 of transformers. Its learned positions cover the longest split; the far ones are never trained, and that
    is part of its result."""
    from .attention import gpt2

    return gpt2(config, hidden_size, num_heads, **kwargs)


def gla(hidden_size, num_heads, layer_idx, **kwargs):
    """Gated linear attention: a decay per key channel, keys half as wide as values."""
    return _fla("GatedLinearAttention")(hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, **kwargs)


def gated_delta_net(hidden_size, num_heads, layer_idx, **kwargs):
    """Gated DeltaNet: a decay per head and the delta rule. fla's allocation: keys of 0.75 * hidden_size, values of twice that."""
    if "head_dim" not in kwargs:
        kwargs["head_dim"], rest = divmod(3 * hidden_size, 4 * num_heads)
        if rest:
            raise ValueError(f"0.75 * hidden_size must be a multiple of num_heads ({num_heads})")
    return _fla("GatedDeltaNet")(hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, **kwargs)


def mamba2(hidden_size, num_heads, layer_idx, **kwargs):
    """Mamba-2 with fla's parameters; its scan runs as simple gated linear attention on every device (the SSD identity)."""
    kwargs.setdefault("expand", 2)
    inner = int(kwargs["expand"] * hidden_size)
    if "head_dim" not in kwargs:
        kwargs["head_dim"], rest = divmod(inner, num_heads)
        if rest:
            raise ValueError(f"expand * hidden_size ({inner}) must be a multiple of num_heads ({num_heads})")
    else:
        num_heads = None
    return _fla("Mamba2")(hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, **kwargs)


_FLA_OWN = ("hidden_size", "num_heads", "layer_idx")
MIXERS: dict[str, Mixer] = {
    mixer.name: mixer
    for mixer in (
        Mixer("gpt", gpt, "attention", whole=True, reserved=("config",)),
        Mixer("transformer", transformer, "attention", "selectivbench_hf.models.attention:Attention"),
        Mixer("gla", gla, "lrm", "fla.layers:GatedLinearAttention"),
        Mixer("gated_delta_net", gated_delta_net, "lrm", "fla.layers:GatedDeltaNet"),
        Mixer("mamba2", mamba2, "lrm", "fla.layers:Mamba2"),
    )
}

# --- looking them up and checking them ------------------------------------------------------------------------------------------


def mixer_names() -> list[str]:
    """The names of the mixers of this package."""
    return list(MIXERS)


def get_mixer(name: str) -> Mixer:
    """The mixer of that name, or the one that `module:function` names. Raises InputError if there is none."""
    if name in MIXERS:
        return MIXERS[name]
    if ":" not in str(name):
        raise unknown("mixer", name, [*MIXERS, "my_module:build"])
    module_name, _, function = str(name).partition(":")
    if not module_name or not function or module_name.startswith("."):
        raise InputError(f"mixer {name!r}: write the module's full name and its function as my_module:build")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f"mixer {name!r}: there is no module {module_name!r} on Python's path") from error
        raise InputError(f"mixer {name!r}: importing {module_name!r} failed: {sentence(error)}") from error
    build = getattr(module, function, None)
    if build is None:
        raise InputError(f"mixer {name!r}: module {module_name!r} has no {function!r}")
    if not callable(build):
        raise InputError(f"mixer {name!r}: {function!r} cannot be called; it must build a module")
    return Mixer(str(name), build, "module", whole="config" in _parameters(build)[0])


def build_mixer(
    name: str, hidden_size: int, num_heads: int, layer_idx: int, mixer_kwargs: dict | None = None, config=None
):
    """The module of a mixer. Raises InputError where its arguments cannot work; see also `check_mixer`, which allocates nothing."""
    mixer = get_mixer(name)
    kwargs = dict(mixer_kwargs or {})
    if mixer.whole:
        kwargs["config"] = config
    if mixer.family == "module":
        return _build_outside(mixer, hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, **kwargs)
    try:
        return mixer.build(hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, **kwargs)
    except (InputError, ImportError):
        raise
    except (AssertionError, ValueError, ZeroDivisionError, TypeError, KeyError) as error:
        raise InputError(
            f"mixer {name!r} cannot be built with hidden_size={hidden_size} and {num_heads} heads: {sentence(error)}"
        ) from error


def _build_outside(mixer: Mixer, **kwargs):
    from torch import nn

    from .outside import check_materialised

    what = f"mixer {mixer.name!r}"
    signature = None
    with contextlib.suppress(ValueError):  # some functions written in C do not tell their arguments
        signature = inspect.signature(mixer.build)
    try:
        if signature:
            signature.bind(**kwargs)
    except TypeError as error:
        raise InputError(
            f"{what}: the function must take the keyword arguments hidden_size, num_heads, layer_idx and those of mixer_kwargs, "
            f"and it does not ({str(error).rstrip('.')})"
        ) from error
    try:
        built = mixer.build(**kwargs)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{what} cannot be built with hidden_size={kwargs['hidden_size']} and {kwargs['num_heads']} heads: {sentence(error)}"
        ) from error
    if not isinstance(built, nn.Module):
        raise InputError(f"{what}: the function returned {type(built).__name__}; it must return a torch.nn.Module")
    check_materialised(what, built, meta_allowed=True)
    return built


def sentence(error: BaseException) -> str:
    """What an error of other people's code says, in one line, after its type where the text alone says little."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1]).rstrip(".")
    plain = isinstance(error, AssertionError | ValueError | ZeroDivisionError | OSError)
    return text if plain and text else f"{type(error).__name__}{': ' * bool(text)}{text}"


def check_mixer(name: str, hidden_size: int, num_heads: int | None = None, mixer_kwargs: dict | None = None) -> None:
    """Raise InputError if the mixer cannot be built so, naming the nearest hidden sizes that work. Allocates no memory.

    A layer is built on the meta device, so that the rules are the layer's own and not our copy of them.
    """
    mixer = get_mixer(name)
    _check_kwargs(mixer, mixer_kwargs or {})
    for field, value in (("hidden_size", hidden_size), ("num_heads", 1 if num_heads is None else num_heads)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{field} is {value!r}; it must be a whole number of at least 1")
    given = num_heads
    reason = _why_not(mixer, hidden_size, num_heads or heads_for(hidden_size), mixer_kwargs)
    if reason is None:
        return

    def fits(width):
        return width > 0 and _why_not(mixer, width, given or heads_for(width), mixer_kwargs) is None

    below = next((w for w in range(hidden_size - 1, max(0, hidden_size - 257), -1) if fits(w)), None)
    above = next((w for w in range(hidden_size + 1, hidden_size + 257) if fits(w)), None)
    near = " or ".join(str(w) for w in (below, above) if w is not None)
    if not near and mixer_kwargs:
        raise InputError(f"mixer {name!r} cannot be built with mixer_kwargs {mixer_kwargs}: {reason}")
    raise InputError(
        f"hidden_size={hidden_size} does not work for mixer {name!r} with {num_heads or heads_for(hidden_size)} heads: {reason}; "
        + (f"the nearest that work: {near}" if near else "no hidden size near it works either: look at num_heads")
    )


def needs_kernels(name: str) -> bool:
    """Whether the mixer is a linear recurrent model of fla, which runs on CPU tensors only with `kernels.enable()`."""
    return get_mixer(name).family == "lrm"


def _why_not(mixer: Mixer, hidden_size: int, num_heads: int, mixer_kwargs: dict | None) -> str | None:
    import torch

    if mixer.family == "module":
        return None  # somebody else's builder may not survive the meta device; it reports when it is built
    if mixer.whole and hidden_size % num_heads:
        return f"it must be a multiple of num_heads ({num_heads})"
    if mixer.whole and not mixer_kwargs:
        return None
    shape = {}
    if mixer.whole:
        shape["config"] = SimpleNamespace(dropout=0.0, max_position_embeddings=1, num_hidden_layers=1)
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Initializing zero-element tensors")
            layer = mixer.build(
                hidden_size=hidden_size, num_heads=num_heads, layer_idx=0, **shape, **(mixer_kwargs or {})
            )
    except (InputError, ImportError):
        raise
    except (AssertionError, ValueError, ZeroDivisionError) as error:
        if mixer.whole:  # its width is right
            raise _bad_kwargs(mixer, mixer_kwargs, error) from error
        return sentence(error)
    except Exception as error:
        if not mixer_kwargs:
            return sentence(error)
        raise _bad_kwargs(mixer, mixer_kwargs, error) from error
    return next((f"{key} would be empty" for key, p in layer.named_parameters() if not p.numel()), None)


def _bad_kwargs(mixer: Mixer, mixer_kwargs: dict, error: Exception) -> InputError:
    """The sentence for values that no layer can be built with."""
    return InputError(f"mixer {mixer.name!r} cannot be built with mixer_kwargs {mixer_kwargs}: {sentence(error)}")


def _check_kwargs(mixer: Mixer, mixer_kwargs: dict) -> None:
    """Unknown names are errors: several layers of fla swallow them without a word."""
    if mixer.layer:
        module, _, name = mixer.layer.partition(":")
        if mixer.family == "lrm":
            require_fla(mixer.name)
            importlib.import_module("selectivbench_hf.models.fla_layers")
        allowed, any_name = _parameters(getattr(importlib.import_module(module), name).__init__)
        any_name = False
    else:
        allowed, any_name = _parameters(mixer.build)
        if mixer.name == "gpt":
            from .attention import GPT2_KWARGS

            allowed, any_name = list(GPT2_KWARGS), False
    allowed = [a for a in allowed if a not in (*_FLA_OWN, *mixer.reserved)]
    for key in mixer_kwargs:
        if key in _FLA_OWN:
            raise InputError(f"mixer_kwargs may not set {key!r}: it is a field of the configuration itself")
        if key not in allowed and not any_name:
            raise unknown("mixer argument", key, allowed, where=f"mixer_kwargs of {mixer.name!r}")


def _parameters(function) -> tuple[list[str], bool]:
    """Names of the keyword arguments, and whether any other name is taken too."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some functions written in C do not tell
        return [], True
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name != "self"]
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)


def require_fla(mixer: str) -> None:
    """Raise ImportError, in one sentence, where flash-linear-attention cannot work."""
    for module, package in (("triton", "triton"), ("fla", "flash-linear-attention")):
        if importlib.util.find_spec(module) is None:
            raise ImportError(
                f"mixer {mixer!r} is a layer of flash-linear-attention, and the package {package!r} is not installed here"
                + (" (triton exists for Linux only)" if module == "triton" else "")
                + "; without it the mixers "
                + ", ".join(m.name for m in MIXERS.values() if m.family == "attention")
                + " work."
            )


@functools.cache
def _fla(layer: str):
    require_fla(layer)
    return getattr(importlib.import_module("selectivbench_hf.models.fla_layers"), layer)
