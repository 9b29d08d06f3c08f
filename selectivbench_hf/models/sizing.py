"""The hidden size whose model comes nearest to a number of parameters or to a size of the state, for matched comparisons.

    hidden_size_for("gla", num_parameters=2e6, num_hidden_layers=4, task=task)  ->  Sizing(hidden_size=..., parameters=..., ...)

Every width is tried by building the whole model on the meta device, so that what counts is the model itself and not a formula beside
it: nothing is allocated, and no random number is drawn.
"""

import dataclasses
import functools

import torch
from transformers import initialization

from ..errors import InputError
from .configuration import SelectivBenchConfig, task_fields
from .mixers import check_kwargs, get_mixer, why_not
from .modeling import model_class, parameter_counts

WIDEST = 1 << 16
STRIDE = 256  # two widths that a mixer can have are never further apart than this
NEIGHBOURS = (
    3  # counts need not rise with the width where a rule changes the heads or rounds a rank: look a little further
)
FACTOR = 2.0


@dataclasses.dataclass(frozen=True)
class Sizing:
    """What was found.

    hidden_size  the width, one that the mixer can have
    num_heads    its heads
    parameters   of the whole model, its encoder and head included, a table of learned positions apart
    state_size   numbers that a sequence carries from step to step in all layers; None where they grow with the sequence
    wanted       what was asked for
    matched      "parameters" or "state_size": which of the two was asked for
    """

    hidden_size: int
    num_heads: int
    parameters: int
    state_size: int | None
    wanted: float
    matched: str

    @property
    def deviation(self) -> float:
        """(what was found - what was asked for) / what was asked for."""
        return (getattr(self, self.matched) - self.wanted) / self.wanted

    def as_dict(self) -> dict:
        """For the record of a run."""
        return dataclasses.asdict(self) | {"deviation": self.deviation}

    def describe(self) -> str:
        """One sentence for the user."""
        return (
            f"hidden_size {self.hidden_size} with {self.num_heads} heads has {getattr(self, self.matched):,} {_SAID[self.matched]}, "
            f"{self.deviation:+.2%} from {self.wanted:,.0f}"
        )


def hidden_size_for(
    mixer: str, *, num_parameters: float | None = None, state_size: float | None = None, task=None, **fields
) -> Sizing:
    """The hidden size of this mixer that comes nearest to `num_parameters` or to `state_size` (one of the two).

    Args:
        mixer: a name of `mixer_names()` or "my_module:build".
        num_parameters: of the whole model, as `parameter_counts(model)["total"]` counts them.
        state_size: of all layers, as `models.state_size` measures it.
        task: fixes symbols, states and the longest sequence; otherwise give num_symbols and num_states.
        fields: further fields of SelectivBenchConfig, as they are to be at every width (num_hidden_layers, mixer_kwargs, ...).

    Raises:
        InputError if nothing comes within a factor of 2, or a field cannot be as given.
    """
    if (num_parameters is None) == (state_size is None):
        raise InputError("give one of num_parameters and state_size")
    if "hidden_size" in fields:
        raise InputError("hidden_size is what hidden_size_for finds; leave it out")
    matched, wanted = ("parameters", num_parameters) if state_size is None else ("state_size", state_size)
    if isinstance(wanted, bool) or not isinstance(wanted, int | float) or not 1 <= wanted < float("inf"):
        raise InputError(f"{_NAMES[matched]} is {wanted!r}; it must be a number of at least 1")
    if matched == "state_size" and get_mixer(mixer).state is None:
        raise InputError(f"mixer {mixer!r} has no state of a fixed size to match")
    if task is not None:
        fields = {**task_fields(task), **fields}
    config = SelectivBenchConfig(mixer=mixer, hidden_size=1, **fields)  # what is wrong at every width is said here
    check_kwargs(get_mixer(mixer), config.mixer_kwargs)
    with torch.random.fork_rng(devices=[]):
        return _search(mixer, matched, wanted, fields)


_NAMES = {"parameters": "num_parameters", "state_size": "state_size"}
_SAID = {"parameters": "parameters", "state_size": "numbers of state"}


def _search(mixer: str, matched: str, wanted: float, fields: dict) -> Sizing:
    refused = {}

    @functools.cache
    def at(width: int) -> Sizing | None:
        """The model of that width, or None if the mixer cannot have it."""
        config = SelectivBenchConfig(mixer=mixer, hidden_size=width, **fields)
        try:
            refused[width] = why_not(get_mixer(mixer), width, config.num_heads, config.mixer_kwargs)
            return _measure(config, matched, wanted) if refused[width] is None else None
        except InputError as error:  # a mixer from outside says so only when it is built
            refused[width] = str(error)
            return None

    def value(width: int) -> int:
        return getattr(at(width), matched)

    def nearest(width: int, step: int) -> int | None:
        """The first width from this one on, upwards or downwards, that the mixer can have."""
        return next((w for w in range(width, max(0, width + step * STRIDE), step) if at(w)), None)

    low = high = nearest(1, 1)
    if low is None:
        raise InputError(f"mixer {mixer!r} can have no hidden size up to {STRIDE}: {refused[STRIDE]}")
    while value(high) < wanted and high < WIDEST:
        above = nearest(2 * high, 1)
        if above is None:
            break
        low, high = high, above
    while value(low) < wanted <= value(high):
        between = nearest((low + high) // 2, 1)
        if between is None or between >= high:
            between = nearest((low + high) // 2, -1)
        if between is None or between <= low:
            break
        low, high = (between, high) if value(between) < wanted else (low, between)
    near = {low, high}
    for width, step in ((low, -1), (high, 1)):
        for _ in range(NEIGHBOURS):
            width = nearest(width + step, step)
            if width is None:
                break
            near.add(width)

    def factor(width):
        return max(value(width) / wanted, wanted / value(width))

    best = at(min(near, key=lambda width: (factor(width), width)))
    if factor(best.hidden_size) > FACTOR:
        raise InputError(
            f"no model of mixer {mixer!r} comes within a factor of {FACTOR:g} of {wanted:,.0f} {_SAID[matched]}; "
            f"the nearest: {best.describe()}"
        )
    return best


def _measure(config: SelectivBenchConfig, matched: str, wanted: float) -> Sizing:
    entry = get_mixer(config.mixer)
    with torch.device("meta"), initialization.no_init_weights():
        model = model_class(config)(config)
    state = None
    if entry.state is not None:
        state = sum(entry.state(block.mixer) for block in model.backbone)
    parameters = parameter_counts(model)["total"]
    return Sizing(config.hidden_size, config.num_heads, parameters, state, wanted, matched)
