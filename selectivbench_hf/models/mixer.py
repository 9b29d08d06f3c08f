"""What a mixer is: one function that builds it and one line that says what it does.

A mixer maps (B, T, D) to (B, T, D) causally. Its function takes `hidden_size`, `num_heads`, `layer_idx` and the user's `mixer_kwargs`
and returns a torch module; where it names `num_hidden_layers` or `config`, it is given those too.

Axes: B batch, T time, H heads, D channels.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable

from ..imports import explained

LARGEST_HEAD = 128

DECAYS = ("none", "constant", "data-dependent scalar", "data-dependent vector")
MIXINGS = ("none", "rank 1", "rank k", "dense")


@dataclasses.dataclass(frozen=True)
class Mixer:
    """One way to mix over time.

    build    (hidden_size=, num_heads=, layer_idx=, **mixer_kwargs) -> module; for a whole model also config=
    layer    "module:class" whose keyword arguments `mixer_kwargs` may set (None: those of `build`)
    family   "attention", "lrm" (a linear recurrent model of fla), "classic" (a recurrence that needs no fla: S4D, GRU, LSTM) or
             "module" (somebody else's)
    fla      it is a layer of fla whose family is not "lrm" (attention with a forget gate)
    whole    it is a whole stack with blocks of its own, not one layer in our block
    reserved keyword arguments of `layer` that other fields of the configuration, or knobs, set
    knobs    names of `knobs.KNOBS` that `build` takes, beside the arguments of `layer`

    What `selectivbench models` tells, for the default arguments:

    decay    how the state forgets: one of DECAYS
    write    how a step enters the state: "additive", "delta", "product of Householders", ...
    mixing   whether channels mix inside the state from step to step: one of MIXINGS
    paper    first author, year and arXiv number
    state    formula: the built layer -> numbers of the state that a sequence carries from step to step, once all of it is in use
             (a window of attention is full after `window_size` steps; None: it grows with T)
    """

    name: str
    build: Callable
    family: str
    layer: str | None = None
    whole: bool = False
    reserved: tuple[str, ...] = ()
    knobs: tuple[str, ...] = ()
    decay: str | None = None
    write: str | None = None
    mixing: str | None = None
    paper: str | None = None
    state: Callable | None = None
    fla: bool = False

    @property
    def needs_fla(self) -> bool:
        """Whether it is a layer of fla, which runs on CPU tensors only with `kernels.enable()`."""
        return self.fla or self.family == "lrm"


def heads_for(hidden_size: int) -> int:
    """Number of heads by the paper's rule: 4, doubled until hidden_size / heads is at most 128."""
    heads = 4
    while hidden_size / heads > LARGEST_HEAD:
        heads *= 2
    return heads


def sentence(error: BaseException) -> str:
    """What an error of other people's code says, in one line, after its type where the text alone says little."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1]).rstrip(".")
    plain = isinstance(error, AssertionError | ValueError | ZeroDivisionError | OSError)
    return text if plain and text else f"{type(error).__name__}{': ' * bool(text)}{text}"


def require_fla(mixer: str) -> None:
    """Raise ImportError, in one sentence, where flash-linear-attention cannot work."""
    for module, package in (("triton", "triton"), ("fla", "flash-linear-attention")):
        if importlib.util.find_spec(module) is None:
            from .mixers import MIXERS

            raise ImportError(
                f"mixer {mixer!r} is a layer of flash-linear-attention, and the package {package!r} is not installed here"
                + (" (triton exists for Linux only)" if module == "triton" else "")
                + "; without it the mixers "
                + ", ".join(m.name for m in MIXERS.values() if not m.needs_fla)
                + " work."
            )


@functools.cache
def load_class(where: str):
    """The class that "module:class" names. fla's are imported without its word about the missing GPU: our kernels are there for that."""
    module, _, name = where.partition(":")
    of_fla = module.startswith(("fla.", f"{__package__}.layers."))
    waiting = explained("flash-linear-attention", "fla.layers") if of_fla else contextlib.nullcontext()
    with warnings.catch_warnings(), waiting:
        warnings.filterwarnings("ignore", message="Triton is not supported on current platform")
        return getattr(importlib.import_module(module), name)


def fla_layer(where: str):
    """As load_class, for a layer of fla or a subclass of one. Raises ImportError where fla cannot work."""
    require_fla(where.partition(":")[2])
    return load_class(where)
