"""The table of sequence mixers, and the checks before one is built.

`MIXERS` gathers the tables of `families`. `module:function` names a mixer outside this package, with the same arguments (outside.py).
A linear recurrent model is a layer of flash-linear-attention, with fla's own parameters and initialisation: fla is imported
when such a layer is built, not before.
"""

import contextlib
import importlib
import inspect
import warnings
from types import SimpleNamespace

from ..errors import InputError, unknown
from .families import classic, delta, gated, generalized, linear, polynomial, rwkv, scan, slots, softmax
from .layer_arguments import check_arguments, defaults
from .mixer import Mixer, heads_for, load_class, require_fla, sentence

_FLA_OWN = ("hidden_size", "num_heads", "layer_idx", "num_hidden_layers")
MIXERS: dict[str, Mixer] = {
    mixer.name: mixer
    for family in (softmax, linear, polynomial, gated, slots, delta, generalized, rwkv, scan, classic)
    for mixer in family.MIXERS
}


NAMED: set[str] = set()  # mixers from outside that were asked for by name in this process


def mixer_names() -> list[str]:
    """The names of the mixers of this package."""
    return list(MIXERS)


def get_mixer(name: str) -> Mixer:
    """The mixer of that name, or the one that `module:function` names. Raises InputError if there is none."""
    if isinstance(name, str) and name in MIXERS:
        return MIXERS[name]
    if not isinstance(name, str) or ":" not in name:
        raise unknown("mixer", name, [*MIXERS, "my_module:build"])
    NAMED.add(name)
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
    if mixer.family != "module" and "num_hidden_layers" in _parameters(mixer.build)[0]:
        kwargs["num_hidden_layers"] = config.num_hidden_layers if config else layer_idx + 1
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


def check_mixer(name: str, hidden_size: int, num_heads: int | None = None, mixer_kwargs: dict | None = None) -> None:
    """Raise InputError if the mixer cannot be built so, naming the nearest hidden sizes that work. Allocates no memory.

    A layer is built on the meta device, so that the rules are the layer's own and not our copy of them.
    """
    mixer = get_mixer(name)
    check_kwargs(mixer, mixer_kwargs or {})
    for field, value in (("hidden_size", hidden_size), ("num_heads", 1 if num_heads is None else num_heads)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{field} is {value!r}; it must be a whole number of at least 1")
    given = num_heads
    reason = why_not(mixer, hidden_size, num_heads or heads_for(hidden_size), mixer_kwargs)
    if reason is None:
        return

    def fits(width):
        return width > 0 and why_not(mixer, width, given or heads_for(width), mixer_kwargs) is None

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
    """Whether the mixer is a layer of fla, which runs on CPU tensors only with `kernels.enable()`."""
    return get_mixer(name).needs_fla


def why_not(mixer: Mixer, hidden_size: int, num_heads: int, mixer_kwargs: dict | None) -> str | None:
    """Why the mixer cannot be built so, in a few words, or None if it can; of one from outside that is not known before it is built.
    Raises InputError for values of mixer_kwargs that no layer can be built with."""
    import torch

    if mixer.family == "module":
        return None  # somebody else's builder may not survive the meta device; it reports when it is built
    if mixer.whole and hidden_size % num_heads:
        return f"it must be a multiple of num_heads ({num_heads})"
    if mixer.whole and not mixer_kwargs:
        return None
    shape = {}
    if "num_hidden_layers" in _parameters(mixer.build)[0]:
        shape["num_hidden_layers"] = 1
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


def check_kwargs(mixer: Mixer, mixer_kwargs: dict) -> None:
    """Unknown names are errors, several layers of fla swallow them without a word; and so are values of another kind."""
    layer = None
    if mixer.layer:
        if mixer.needs_fla:
            require_fla(mixer.name)
        layer = load_class(mixer.layer)
        allowed, any_name = _class_parameters(layer), False
    else:
        allowed, any_name = _parameters(mixer.build)
        if mixer.name == "gpt":
            from .attention import GPT2_KWARGS

            allowed, any_name = list(GPT2_KWARGS), False
    allowed = [*mixer.knobs, *(a for a in allowed if a not in (*_FLA_OWN, *mixer.reserved, *mixer.knobs))]
    for key in mixer_kwargs:
        if key in _FLA_OWN:
            raise InputError(f"mixer_kwargs may not set {key!r}: it is a field of the configuration itself")
        if key not in allowed and not any_name:
            raise unknown("mixer argument", key, allowed, where=f"mixer_kwargs of {mixer.name!r}")
    if mixer.family != "module":
        default = GPT2_KWARGS if mixer.name == "gpt" else defaults(mixer.build, layer)
        check_arguments(mixer_kwargs, mixer.knobs, default)


def _class_parameters(cls) -> list[str]:
    """Names of the keyword arguments of a class, with those of the class it hands the rest to."""
    names, more = _parameters(cls.__init__)
    for base in cls.__mro__[1:] if more else ():
        if "__init__" in vars(base) and base.__module__ != "torch.nn.modules.module":
            further, more = _parameters(base.__init__)
            names += [name for name in further if name not in names]
            if not more:
                break
    return names


def _parameters(function) -> tuple[list[str], bool]:
    """Names of the keyword arguments, and whether any other name is taken too."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some functions written in C do not tell
        return [], True
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name != "self"]
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)
