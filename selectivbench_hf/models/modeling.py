"""`SelectivBenchForStateClassification`: a linear encoder, blocks of one mixer, and a head with one logit per grammar state.

Sequences are padded on the right and there is no attention mask: every mixer is causal, so padding cannot reach a real step.
Axes: B batch, T time, D channels (hidden size), V symbols, S states.
"""

import dataclasses
import functools
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification, PreTrainedModel
from transformers import initialization as guarded
from transformers.modeling_outputs import TokenClassifierOutput
from transformers.utils import ModelOutput

from ..errors import InputError
from .cache import STATE, DecodingCache
from .configuration import SelectivBenchConfig, family_of
from .loading import one_sentence, refuse_misfits
from .mixers import build_mixer, check_mixer, get_mixer, needs_kernels
from .outside import check_materialised, check_outside, check_shared, takes_cache

IGNORED_LABEL = -100
NO_IDS = "the task's symbols are not one-hot, so ids do not say what is shown: give input_features, as sb.batches and sb.Collator make them"


@dataclasses.dataclass
class StateClassifierOutput(ModelOutput):
    """loss (scalar or None), logits (B, T, S), cache (a DecodingCache, or None without use_cache)."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    cache: DecodingCache | None = None


class SwiGLU(nn.Module):
    """(B, T, D) -> (B, T, D): down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.gate = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MatchedBlock(nn.Module):
    """The same block around every mixer: x + drop(mixer(norm(x))), then, unless `mlp` is off, x + drop(SwiGLU(norm(x)))."""

    def __init__(self, config: SelectivBenchConfig, mixer: nn.Module):
        super().__init__()
        self.mixer_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mixer = mixer
        self.mlp = None
        if config.has_mlp:
            self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
            self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor, cache=None, shared: dict | None = None) -> torch.Tensor:
        x = x + self.drop(_mixed(self.mixer, self.mixer_norm(x), cache, shared))
        return x if self.mlp is None else x + self.drop(self.mlp(self.mlp_norm(x)))


class PaperBlock(nn.Module):
    """x = LayerNorm(x + drop(mixer(x))); unless `mlp` says otherwise the transformer alone has an MLP, in the same form."""

    def __init__(self, config: SelectivBenchConfig, mixer: nn.Module):
        super().__init__()
        self.mixer = mixer
        self.mixer_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.drop = nn.Dropout(config.dropout)
        self.mlp = None
        if config.has_mlp:
            self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)
            self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)

    def forward(self, x: torch.Tensor, cache=None, shared: dict | None = None) -> torch.Tensor:
        x = self.mixer_norm(x + self.drop(_mixed(self.mixer, x, cache, shared)))
        return x if self.mlp is None else self.mlp_norm(x + self.drop(self.mlp(x)))


def _mixed(mixer: nn.Module, x: torch.Tensor, cache=None, shared: dict | None = None) -> torch.Tensor:
    arguments = {} if cache is None else {"past_key_values": cache, "use_cache": True}
    if getattr(mixer, "takes_shared", False):  # what layers of one pass tell each other (RWKV-7's first values)
        arguments["shared"] = shared
    out = mixer(x, **arguments)
    return out[0] if isinstance(out, tuple) else out  # fla's layers return (output, attentions, cache)


class TiedHead(nn.Module):
    """Logits of the symbols, (..., D) -> (..., V), by the encoder's weight and a bias of its own.

    The weight stays the encoder's alone: it is saved, loaded, counted and trained once, and no file can hold half of a pair.
    """

    def __init__(self, encoder: nn.Linear):
        super().__init__()
        self._encoder = (encoder,)  # in a tuple, where torch does not take it for a part of this module
        self.bias = nn.Parameter(torch.zeros(encoder.in_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._encoder[0].weight.t(), self.bias)


def _in_memory(init):
    """For a model's __init__: parameters that the machine has no memory for are one sentence."""

    @functools.wraps(init)
    def wrapped(self, config):
        try:
            init(self, config)
        except (RuntimeError, MemoryError) as error:
            text = str(error)
            if not isinstance(error, MemoryError) and "allocate memory" not in text and "out of memory" not in text:
                raise
            raise InputError(
                f"a model of mixer {config.mixer!r} with hidden_size={config.hidden_size} and num_hidden_layers="
                f"{config.num_hidden_layers} does not fit into memory"
            ) from error

    return wrapped


class SelectivBenchForStateClassification(PreTrainedModel):
    """Which grammar state produced each step: logits (B, T, S) from features (B, T, V) or symbol ids (B, T).

    Build it from a configuration; save and load as any transformers model. Weights are float32 unless loaded otherwise.
    """

    config_class = SelectivBenchConfig
    base_model_prefix = "model"
    main_input_name = "input_features"
    # the loss is a mean over this call's labels: Trainer must divide by the accumulation steps itself
    accepts_loss_kwargs = False
    _supports_sdpa = True

    @_in_memory
    def __init__(self, config: SelectivBenchConfig):
        self._check_objective(config)
        super().__init__(config)
        check_mixer(config.mixer, config.hidden_size, config.num_heads, config.mixer_kwargs)
        _enable_kernels(config.mixer)
        outside = get_mixer(config.mixer).family == "module"
        if outside:
            check_outside(config)
        self.encoder = nn.Linear(config.input_channels, config.hidden_size)
        layers = 1 if get_mixer(config.mixer).whole else config.num_hidden_layers
        built = [
            build_mixer(config.mixer, config.hidden_size, config.num_heads, index, config.mixer_kwargs, config=config)
            for index in range(layers)
        ]
        if outside:
            check_shared(config.mixer, built)
        if get_mixer(config.mixer).whole:
            self.backbone, self.norm = built[0], nn.Identity()
        else:
            block = MatchedBlock if config.block == "matched" else PaperBlock
            self.backbone = nn.Sequential(*(block(config, mixer) for mixer in built))
            self.norm = (
                nn.RMSNorm(config.hidden_size, eps=config.norm_eps) if config.block == "matched" else nn.Identity()
            )
        self.classifier = (
            TiedHead(self.encoder) if config.tie_word_embeddings else nn.Linear(config.hidden_size, config.num_classes)
        )

        # What `_init_weights` may touch. The rest belongs to the mixers, and a layer keeps its own initialisation.
        inside = {id(part) for mixer in built for part in mixer.modules()}
        for module in self.modules():
            if id(module) not in inside and isinstance(module, nn.Linear | TiedHead | nn.RMSNorm | nn.LayerNorm):
                module._initialised_here = True
        for index, mixer in enumerate(built):
            for path, part in mixer.named_modules():
                for name in part._non_persistent_buffers_set:
                    part._mixer_path = (index, path)
                    if part._buffers[name] is not None and not part._buffers[name].is_meta:
                        part._buffers[name]._is_hf_initialized = True  # as transformers marks what needs no more
        # what a layer keeps in float32 when it is cast, it is also loaded in
        self._keep_in_fp32_modules_strict = {
            f"mixer.{name}" for mixer in built for name in getattr(mixer, "float32", ())
        }
        # Loading on the meta device makes new Parameter objects, and fla's marks on them are lost: keep the names.
        self._no_decay_names = {n for n, p in self.named_parameters() if getattr(p, "_no_weight_decay", False)}
        self._no_decay_names.add("encoder.weight")  # an embedding of the symbols, though written as a linear map
        self.post_init()

    def forward(
        self,
        input_features: torch.Tensor | None = None,
        input_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        example_id: torch.Tensor | None = None,
        item_ids: torch.Tensor | None = None,
        lengths: torch.Tensor | None = None,
        cache: DecodingCache | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> "StateClassifierOutput | tuple":
        """Logits, and the loss if labels are given.

        input_features  (B, T, V) float: one-hot symbols, with noise if the task has any, zero where nothing is shown; with
                        num_channels (B, T, C), the task's own vectors for symbols
        input_ids       (B, T) int in 0..V (V: blank), used when there are no features; the same as noiseless features
        labels          (B, T) int64 states, -100 where there is none; the loss is the mean cross-entropy over the others
        use_cache       return `cache`, a DecodingCache: pass it in again with the steps that follow, one or more at a time,
                        and their logits are those of the whole sequence in one pass (evaluation mode)
        example_id, item_ids, lengths   columns of our batches that the model has no use for; named here so that
                        transformers' Trainer neither removes them before the collator nor fails on them after it
        """
        if use_cache and cache is None:
            cache = DecodingCache()
        logits = self.classifier(self.hidden(input_features, input_ids, cache))
        loss = None if labels is None else state_loss(logits, labels)
        if return_dict is False:
            return tuple(part for part in (loss, logits, cache) if part is not None)
        return StateClassifierOutput(loss=loss, logits=logits, cache=cache)

    def hidden(
        self,
        input_features: torch.Tensor | None = None,
        input_ids: torch.Tensor | None = None,
        cache: DecodingCache | None = None,
    ) -> torch.Tensor:
        """The states (B, T, D) before `classifier`, so that the head can be applied to a few steps at a time."""
        self._check_cache(cache)
        if input_features is not None:
            if input_features.dim() != 3 or input_features.shape[-1] != self.config.input_channels:
                raise InputError(
                    f"input_features has shape {tuple(input_features.shape)}; it must be (batch, steps, {self.config.input_channels})"
                )
            weight = self.encoder.weight
            # the residual stream has the weights' type, under autocast too: only the branches are computed in half precision
            x = self.encoder(input_features.to(weight.dtype)).to(weight.dtype)
        elif input_ids is not None:
            if self.config.num_channels is not None:
                raise InputError(NO_IDS)
            if input_ids.dim() != 2:
                raise InputError(f"input_ids has shape {tuple(input_ids.shape)}; it must be (batch, steps)")
            table = F.pad(
                self.encoder.weight.t(), (0, 0, 0, 1)
            )  # one row per symbol, and the zero vector for the blank
            x = F.embedding(input_ids, table) + self.encoder.bias
        else:
            raise InputError("give input_features or input_ids")
        if not x.shape[0] or not x.shape[1]:
            raise InputError(f"the input has {x.shape[0]} sequences of {x.shape[1]} steps; both must be at least 1")
        whole = get_mixer(self.config.mixer).whole
        steps = x.shape[1] + (cache.get_seq_length() if cache is not None else 0)
        if whole and steps > self.config.max_position_embeddings:
            raise InputError(
                f"the sequence has {steps} steps and mixer {self.config.mixer!r} has positions for "
                f"{self.config.max_position_embeddings} (max_position_embeddings)"
            )
        if whole:
            return self.norm(self.backbone(x) if cache is None else self.backbone(x, cache))
        shared = {}
        for block in self.backbone:
            x = block(x, cache, shared)
        return self.norm(x)

    @staticmethod
    def _check_objective(config) -> None:
        if config.objective != "classification":
            raise InputError(
                f"a model with objective {config.objective!r} is a SelectivBenchForCausalLM (AutoModelForCausalLM), not one for states"
            )

    def _check_cache(self, cache) -> None:
        if cache is None:
            return
        if not isinstance(cache, DecodingCache):
            raise InputError(f"cache is a {type(cache).__name__}; it must be what a call with use_cache=True returned")
        mixer = get_mixer(self.config.mixer)
        if mixer.family == "module" and (mixer.whole or not all(takes_cache(block.mixer) for block in self.backbone)):
            raise InputError(
                f"use_cache=True is not supported for mixer {self.config.mixer!r}, whose forward takes no past_key_values: give "
                "the whole sequence at once"
            )
        if self.training:
            raise InputError("use_cache=True is for evaluation: call model.eval() first")

    def _init_weights(self, module: nn.Module) -> None:
        """Encoder, head, MLPs and norms only; transformers' own version would overwrite what the layers drew for themselves.

        All are normal with `initializer_range`, except the encoder of our blocks: 1 / sqrt(V), as wide as a linear map of V inputs
        wants (of C with other channels). With 0.02 the symbols drown in what the first layers add, and every mixer learns more slowly (measured on
        `lite_noisy_gaps`, the transformer most of all). GPT-2 keeps 0.02, the size of its positions.
        Through guarded helpers, which leave alone whatever was read from a file. Buffers that are not saved come back from the
        meta device uninitialised: they are copied from a layer built afresh, for each module that has some.
        """
        if getattr(module, "_initialised_here", False):
            if isinstance(module, nn.Linear):
                std = self.config.initializer_range
                if module is self.encoder and not get_mixer(self.config.mixer).whole:
                    std = self.config.input_channels**-0.5
                guarded.normal_(module.weight, std=std)
                if module.bias is not None:
                    guarded.zeros_(module.bias)
            elif isinstance(module, TiedHead):
                guarded.zeros_(module.bias)
            else:
                guarded.ones_(module.weight)
                if getattr(module, "bias", None) is not None:
                    guarded.zeros_(module.bias)
        elif hasattr(module, "_mixer_path"):
            config, (index, path) = self.config, module._mixer_path
            lost = {
                name: buffer
                for name, buffer in module._buffers.items()
                if name in module._non_persistent_buffers_set
                and not (buffer is None or getattr(buffer, "_is_hf_initialized", False))
            }
            if lost:
                with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                    fresh = build_mixer(
                        config.mixer,
                        config.hidden_size,
                        config.num_heads,
                        index,
                        config.mixer_kwargs,
                        config=config,
                    ).get_submodule(path)
                for name, buffer in lost.items():
                    buffer.copy_(fresh.get_buffer(name))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, output_loading_info: bool = False, **kwargs):
        """As in transformers, but whatever does not fit is one InputError: a damaged or missing file, a configuration of another
        model, a tensor that is missing, of another shape, or one too many."""
        where = pretrained_model_name_or_path
        kwargs["ignore_mismatched_sizes"] = True  # they are refused here, in one sentence with the shapes
        with one_sentence(where, cls.config_class.model_type, kwargs.get("subfolder") or "", "config" in kwargs):
            model, info = super().from_pretrained(where, *args, output_loading_info=True, **kwargs)
            refuse_misfits(where, info)
        return (model, info) if output_loading_info else model

    def __setstate__(self, state):
        """A model that arrives in another process brings its kernels along."""
        super().__setstate__(state)
        _enable_kernels(self.config.mixer)


class SelectivBenchForCausalLM(SelectivBenchForStateClassification):
    """Which symbol the next item will be: logits (B, T, V). The same parts and names of weights, with V outputs.

    Unlike transformers' language models it shifts nothing: `labels` (B, T) say for each step which symbol the next item has, as
    batches with objective="prediction" do; blank steps and distractors lie between an item and the next. A model of a recall
    task, whose classes are symbols, can be loaded as one too.
    """

    @staticmethod
    def _check_objective(config) -> None:
        if config.num_classes != config.num_symbols:
            raise InputError(
                f"a model with objective {config.objective!r} and {config.num_classes} classes is a SelectivBenchForStateClassification "
                f"(AutoModelForTokenClassification); a SelectivBenchForCausalLM has one class for each of the {config.num_symbols} symbols"
            )


def model_class(config: SelectivBenchConfig) -> type[SelectivBenchForStateClassification]:
    """The class of a configuration's model, by its objective."""
    return SelectivBenchForCausalLM if config.objective == "prediction" else SelectivBenchForStateClassification


def state_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over labels that are not -100, in float32. logits (B, T, S), labels (B, T)."""
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten().long(), ignore_index=IGNORED_LABEL)


class WrappedModule(nn.Module):
    """Any module (B, T, V) -> (B, T, C), called as our models are; C: states, or in prediction symbols. `hidden` gives its logits and
    `classifier` is the identity.

    Without `one_hot` a task shows symbols otherwise, the module takes (B, T, channels) and ids are refused.
    With `takes_ids` (recall tasks) the module is given ids in the place of features: (B, T) int64 in 0..V, V at padding.
    """

    accepts_loss_kwargs = False

    def __init__(
        self,
        module: nn.Module,
        num_symbols: int,
        num_classes: int,
        objective: str = "classification",
        takes_ids: bool = False,
        one_hot: bool = True,
    ):
        super().__init__()
        self.module, self.num_symbols, self.num_classes, self.objective = module, num_symbols, num_classes, objective
        self.takes_ids, self.one_hot = takes_ids, one_hot
        self.classifier = nn.Identity()

    def forward(self, input_features=None, input_ids=None, labels=None, example_id=None, item_ids=None, lengths=None):
        """See SelectivBenchForStateClassification.forward."""
        logits = self.hidden(input_features, input_ids)
        return TokenClassifierOutput(loss=None if labels is None else state_loss(logits, labels), logits=logits)

    def hidden(self, input_features=None, input_ids=None):
        """The module's logits (B, T, C)."""
        inputs = input_ids if self.takes_ids else input_features
        if inputs is None:
            if input_ids is None:
                raise InputError("give input_ids" if self.takes_ids else "give input_features or input_ids")
            if not self.one_hot:
                raise InputError(NO_IDS)
            inputs = F.one_hot(input_ids, self.num_symbols + 1)[..., : self.num_symbols].float()
        out = self.module(inputs)
        out = out[0] if isinstance(out, tuple) else getattr(out, "logits", out)
        name = type(self.module).__name__
        if not isinstance(out, torch.Tensor):
            raise InputError(f"the module {name} returned {type(out).__name__}; a tensor of logits is needed")
        if self.training and torch.is_grad_enabled() and not out.requires_grad:
            raise InputError(
                f"the module {name} returned logits without a gradient: they are detached or computed under no_grad, "
                "or no parameter requires one, so nothing can be learned"
            )
        wanted = (*inputs.shape[:2], self.num_classes)
        if tuple(out.shape) != wanted:
            classes = "symbols" if self.objective == "prediction" or self.takes_ids else "states"
            raise InputError(
                f"the module {name} returned shape {tuple(out.shape)}; (batch, steps, {classes}) = {wanted} is needed"
            )
        return out


def wrap_module(module: nn.Module, task, objective: str | None = None) -> nn.Module:
    """A user's module as a model of ours for `task` (which has num_symbols and num_states); ours come back as they are.

    objective: "classification" or "prediction"; None: the model's own, classification for a bare module.
    """
    if isinstance(module, SelectivBenchForStateClassification | WrappedModule):
        if objective not in (None, own := objective_of(module)):
            raise InputError(f"the model was made with objective {own!r}, so it cannot be used with {objective!r}")
        return module
    if not isinstance(module, nn.Module):
        raise InputError(f"a model is the name of a mixer or a torch.nn.Module, not {type(module).__name__}")
    name = f"the module {type(module).__name__}"
    check_materialised(name, module)
    for key, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            raise InputError(
                f"{name} has {key!r} in {str(parameter.dtype).removeprefix('torch.')}; parameters must be float32 "
                "(call module.float(); half precision is the option `precision`)"
            )
    objective = objective or "classification"
    classes = task.num_symbols if objective == "prediction" else task.num_states
    one_hot = getattr(task, "symbols", None) is None
    return WrappedModule(module, task.num_symbols, classes, objective, family_of(task) == "recall", one_hot)


def objective_of(model: nn.Module) -> str:
    """What one of our models, or a wrapped module, was made for."""
    return model.objective if isinstance(model, WrappedModule) else model.config.objective


def parameter_counts(model: nn.Module) -> dict[str, int]:
    """Numbers of parameters: `total` without the table of learned positions, and `position_table` apart."""
    tables = {id(m.position_table): m.position_table.numel() for m in model.modules() if hasattr(m, "position_table")}
    everything = sum(p.numel() for p in model.parameters())
    return {"total": everything - sum(tables.values()), "position_table": sum(tables.values())}


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two groups for an optimiser: `decay`, and `no_decay` with weight_decay 0.

    No decay: parameters a layer marked (`_no_weight_decay`), norms, biases, vectors and scalars, embeddings (ours is the encoder's
    weight, GPT-2's the positions). Works on wrapped models too. Each group has `name` and `names` beside what torch needs.
    """
    free = set()
    for prefix, module in model.named_modules():
        inside = f"{prefix}." if prefix else ""
        free.update(inside + name for name in getattr(module, "_no_decay_names", ()))
        if isinstance(module, nn.Embedding) or "norm" in type(module).__name__.lower():
            free.update(inside + name for name, _ in module.named_parameters(recurse=False))
    groups = {"decay": ([], []), "no_decay": ([], [])}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        exempt = (
            parameter.ndim < 2
            or name.endswith("bias")
            or name in free
            or getattr(parameter, "_no_weight_decay", False)
        )
        names, members = groups["no_decay" if exempt else "decay"]
        names.append(name)
        members.append(parameter)
    return [
        {"name": group, "names": names, "params": members, "weight_decay": weight_decay if group == "decay" else 0.0}
        for group, (names, members) in groups.items()
        if members
    ]


def state_size(config: SelectivBenchConfig) -> int | None:
    """Numbers that a sequence carries from step to step in all layers' recurrent states and full windows, as real layers return them.

    None where the state grows, as that of attention to all steps, and for mixers from outside without a cache. The few last inputs
    that a short convolution keeps are not counted.
    """
    mixer = get_mixer(config.mixer)
    if mixer.state is None and (mixer.family != "module" or mixer.whole):
        return None
    _enable_kernels(config.mixer)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        layer = build_mixer(config.mixer, config.hidden_size, config.num_heads, 0, config.mixer_kwargs, config).eval()
        if mixer.family == "module" and not takes_cache(layer):
            return None
        steps = getattr(layer, "window_size", None) or 1
        sizes = []
        for more in (0, 1) if mixer.state is None else (0,):
            cache = DecodingCache()
            _mixed(layer, torch.zeros(1, steps + more, config.hidden_size), cache, {})
            sizes.append(cache.numbers(STATE))
    return sizes[0] * config.num_hidden_layers if sizes[0] == sizes[-1] else None


def _enable_kernels(mixer: str) -> None:
    if not needs_kernels(mixer):
        return
    from .. import kernels
    from .mixer import require_fla

    require_fla(mixer)
    try:
        kernels.enable()
    except RuntimeError as error:
        if not torch.cuda.is_available():
            raise
        warnings.warn(f"{error}. On this machine mixer {mixer!r} will run on CUDA tensors only.", stacklevel=3)


AutoConfig.register(SelectivBenchConfig.model_type, SelectivBenchConfig, exist_ok=True)
AutoModelForTokenClassification.register(SelectivBenchConfig, SelectivBenchForStateClassification, exist_ok=True)
AutoModelForCausalLM.register(SelectivBenchConfig, SelectivBenchForCausalLM, exist_ok=True)
