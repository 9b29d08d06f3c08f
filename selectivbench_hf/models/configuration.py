"""`SelectivBenchConfig`: everything that fixes a model's shape, saved as config.json beside its weights."""

from types import NoneType
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from ..errors import InputError, unknown
from .loading import check_config
from .mixer import heads_for
from .mixers import NAMED, check_mixer, get_mixer

BLOCKS = ("matched", "paper")
OBJECTIVES = ("classification", "prediction")
# keywords that transformers itself puts into a configuration beside the declared fields
TRANSFORMERS_OWN = (
    "attn_implementation",
    "auto_map",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "torch_dtype",
)


class SelectivBenchConfig(PreTrainedConfig):
    """The shape of a model for one task.

    mixer                    a name of `mixer_names()`, or "my_module:build" for a function of your own
    hidden_size              width of the residual stream
    num_hidden_layers        number of blocks
    num_heads                None: 4, doubled until a head has at most 128 channels
    block                    "matched": x + drop(mixer(norm(x))), then x + drop(SwiGLU(norm(x))), and a final norm;
                             "paper": LayerNorm(x + drop(mixer(x))), with an MLP in the `transformer` only.
                             `gpt` is a whole GPT-2 with blocks of its own and ignores it.
    objective                "classification": the head has one logit for each of the S states; "prediction": one for each of the V
                             symbols, of which the next item's is asked for
    num_symbols, num_states  V and S of the task ('#' included)
    num_channels             C, numbers that a step of `input_features` has, where the task's symbols are not one-hot (such a model takes
                             no `input_ids`); None: one-hot symbols, V channels
    vocab_size               V + 1: `input_ids` run 0..V, and V is the blank
    dropout                  on the branches that are added to the residual stream (`gpt`: on its embeddings too)
    max_position_embeddings  longest sequence in steps; only `gpt` has a table of that length
    mlp                      whether blocks have the MLP; None: what the block says above
    intermediate_size        width of the SwiGLU MLP; None: 8/3 of the hidden size, rounded up to a multiple of 8
    tie_word_embeddings      whether the head's weight is the encoder's, transposed; needs as many classes as symbols
    initializer_range        standard deviation of head and MLPs at the start, and of the encoder of `gpt`; our blocks' encoder
                             starts at 1 / sqrt(input channels), and a mixer's layer as its authors start it
    mixer_kwargs             further keyword arguments of the mixer's layer
    """

    model_type: ClassVar[str] = "selectivbench"

    mixer: str = "gla"
    hidden_size: int = 256
    num_hidden_layers: int = 8
    num_heads: int | None = None
    block: str = "matched"
    mlp: bool | None = None
    objective: str = "classification"
    num_symbols: int = 27
    num_states: int = 27
    num_channels: int | None = None
    vocab_size: int | None = None
    dropout: float = 0.2
    max_position_embeddings: int = 1024
    intermediate_size: int | None = None
    initializer_range: float = 0.02
    norm_eps: float = 1e-5
    mixer_kwargs: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    use_cache: bool = False

    def __post_init__(self, **kwargs):
        for name in kwargs:
            if name not in TRANSFORMERS_OWN and not name.startswith("_"):
                raise unknown(
                    "model field", name, own_fields()
                )  # transformers would keep it as an attribute nobody reads
        super().__post_init__(**kwargs)
        for name in ("hidden_size", "num_hidden_layers", "num_symbols", "num_states", "max_position_embeddings"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} is {value!r}; it must be a whole number of at least 1")
        for name in ("num_heads", "intermediate_size", "num_channels"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InputError(
                    f"{name} is {value!r}; it must be a whole number of at least 1, or None for the default"
                )
        for name in ("initializer_range", "norm_eps", "dropout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise InputError(f"{name} is {value!r}; it must be a number of at least 0")
        if not isinstance(self.mixer_kwargs, dict | NoneType):
            raise InputError(
                f"mixer_kwargs is {self.mixer_kwargs!r}; it must map names to values, as in {{'expand': 1.0}}"
            )
        if self.block not in BLOCKS:
            raise unknown("block", self.block, BLOCKS)
        if self.objective not in OBJECTIVES:
            raise unknown("objective", self.objective, OBJECTIVES)
        if not isinstance(self.tie_word_embeddings, bool):
            raise InputError(f"tie_word_embeddings is {self.tie_word_embeddings!r}; it must be true or false")
        if self.tie_word_embeddings and self.num_symbols != self.num_classes:
            raise InputError(
                f"tie_word_embeddings needs as many classes as symbols, as recall tasks have them; here are {self.num_classes} classes and "
                f"{self.num_symbols} symbols"
            )
        if self.tie_word_embeddings and self.num_channels is not None:
            raise InputError(
                "tie_word_embeddings needs one-hot symbols: the encoder of other channels has no row for each symbol"
            )
        if not isinstance(self.mlp, bool | NoneType):
            raise InputError(f"mlp is {self.mlp!r}; it must be true, false, or None for the block's own way")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout!r}; it must be at least 0 and below 1")
        self.mixer_kwargs = dict(self.mixer_kwargs or {})
        if self.vocab_size is None:
            self.vocab_size = self.num_symbols + 1
        if self.vocab_size != self.num_symbols + 1:
            raise InputError(
                f"vocab_size is {self.vocab_size}; with num_symbols={self.num_symbols} it is {self.num_symbols + 1} "
                "(one more than the symbols: the last id is the blank)"
            )
        if self.num_heads is None:
            self.num_heads = heads_for(self.hidden_size)
        if self.intermediate_size is None:
            self.intermediate_size = -(-8 * self.hidden_size // 3 // 8) * 8

    @property
    def num_classes(self) -> int:
        """Logits of the head: S, or V in prediction."""
        return self.num_symbols if self.objective == "prediction" else self.num_states

    @property
    def input_channels(self) -> int:
        """Numbers that a step of `input_features` has: num_channels, or V."""
        return self.num_symbols if self.num_channels is None else self.num_channels

    @property
    def has_mlp(self) -> bool:
        """Whether blocks have the MLP."""
        return self.mlp if self.mlp is not None else self.block == "matched" or self.mixer == "transformer"

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        """As in transformers, but a configuration of another model type is an error, not a warning."""
        config, rest = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        check_config(pretrained_model_name_or_path, config, cls.model_type)
        return config, rest

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """As in transformers, but a saved configuration, which may be a stranger's, never decides by itself that code from outside is run."""
        mixer = config_dict.get("mixer")
        if isinstance(mixer, str) and ":" in mixer and mixer not in NAMED:
            raise InputError(
                f"the configuration names the mixer {mixer[:80]!r}, code from outside this package; if you trust it, call "
                f"selectivbench_hf.models.get_mixer({mixer[:80]!r}) before you load the model"
            )
        return super().from_dict(config_dict, **kwargs)

    @classmethod
    def for_task(cls, task, *, mixer: str = "gla", **fields) -> "SelectivBenchConfig":
        """The configuration for a task: its symbols, states and longest split, and the fields given here.

        task: has `num_symbols`, `num_states`, `splits` and `max_steps(split)`, as `selectivbench_hf.get_task` returns.
        Raises InputError for an unknown field, an unknown mixer, or a width that the mixer cannot take.
        """
        allowed = own_fields()
        for name in fields:
            if name not in allowed:
                raise unknown("model field", name, allowed)
        config = cls(mixer=mixer, **{**task_fields(task), **fields})
        check_mixer(config.mixer, config.hidden_size, config.num_heads, config.mixer_kwargs)
        if config.mlp is not None and get_mixer(config.mixer).whole:
            raise InputError(
                f"mlp is {config.mlp}, and mixer {config.mixer!r} has blocks of its own, MLP included: leave mlp out"
            )
        return config


def task_fields(task) -> dict:
    """The fields that a task fixes: its symbols, its states, and the longest sequence of its splits, and where symbols are not one-hot
    their channels."""
    fields = {
        "num_symbols": task.num_symbols,
        "num_states": task.num_states,
        "max_position_embeddings": max(task.max_steps(split) for split in task.splits),
    }
    if getattr(task, "symbols", None) is not None:
        fields["num_channels"] = task.num_channels
    return fields


def family_of(task) -> str:
    """`recall` or `grammar`; whatever else has the sizes of a task counts as the latter."""
    return getattr(task, "family", "grammar")


def own_fields() -> list[str]:
    """The fields a user may set (those of this class, not what transformers adds)."""
    return [name for name in SelectivBenchConfig.__annotations__ if name != "model_type"]


# Whoever has the configuration finds the model through the Auto classes too.
from . import modeling  # noqa: E402, F401
