"""The arguments of a mixer's layer in mixer_kwargs: a value of another kind, or one that nothing would read, is one sentence."""

import pytest
import torch
from models_helper import ALL, config, model

from selectivbench_hf.errors import InputError
from selectivbench_hf.models import check_mixer

BAD = [
    ("fox", {"qkv_bias": "no"}, "qkv_bias is 'no'; it must be true or false"),
    ("gla", {"conv_bias": 1, "use_short_conv": True}, "conv_bias is 1; it must be true or false"),
    ("gla", {"norm_eps": "1e-5"}, "norm_eps is '1e-5'; it must be a number above 0"),
    ("kda", {"norm_eps": float("nan")}, "norm_eps is nan; it must be a number above 0"),
    ("gated_delta_net", {"norm_eps": 0}, "norm_eps is 0; it must be a number above 0"),
    ("rebased", {"eps": 0}, "eps is 0; it must be a number above 0"),
    ("simple_gla", {"gate_logit_normalizer": 0}, "gate_logit_normalizer is 0; it must be a number above 0"),
    ("gla", {"clamp_min": "x"}, "clamp_min is 'x'; it must be a number"),
    ("gla", {"clamp_min": 1}, "clamp_min is 1; it bounds a logarithm of decays and must be below 0"),
    ("gla", {"num_kv_heads": True}, "num_kv_heads is True; it must be a whole number of at least 1"),
    ("kda", {"num_v_heads": 0}, "num_v_heads is 0; it must be a whole number of at least 1"),
    ("mamba", {"dt_rank": "x"}, "dt_rank is 'x'; it must be a whole number of at least 1 or 'auto'"),
    ("mamba", {"dt_scale": -1}, "dt_scale is -1; it must be a number above 0"),
    ("mamba2", {"dt_limit": 1}, "dt_limit is 1; it must be two numbers, the smaller one first"),
    ("mamba2", {"conv_init": -1}, "conv_init is -1; it must be a number above 0"),
    (
        "mesa_net",
        {"max_cg_step_training": 2.5},
        "max_cg_step_training is 2.5; it must be a whole number of at least 1",
    ),
    ("mesa_net", {"max_cg_step_training": 1}, "they must be equal"),
    ("mesa_net", {"lambda_lower_bound": 2.5}, "lambda_lower_bound is 2.5; it must be at least 0 and below 1"),
    ("gsa", {"mode": "fused_chunk"}, "mode is 'fused_chunk'; it must be 'chunk' or 'fused_recurrent'"),
    ("gsa", {"scale": "x"}, "scale is 'x'; it must be a number"),
    ("gpt", {"attn_pdrop": float("nan")}, "attn_pdrop is nan; it must be a number"),
    ("gpt", {"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon is nan; it must be a number above 0"),
    # what nothing would read
    ("transformer", {"conv_size": 8}, "conv_size is 8, and without a short convolution nothing reads it"),
    ("kda", {"conv_size": 8, "use_short_conv": False}, "conv_size is 8, and without a short convolution"),
    ("hgrn", {"conv_bias": True}, "conv_bias is True, and without a short convolution nothing reads it"),
    ("hgrn2", {"norm_eps": 1e-3}, "unknown mixer argument 'norm_eps'"),
    ("gsa", {"norm_eps": 1e-3}, "unknown mixer argument 'norm_eps'"),
    ("based", {"eps": 1e-3}, "unknown mixer argument 'eps'"),
    # None would turn a knob that has a default
    ("kda", {"use_short_conv": None}, "use_short_conv is None; leave it out for the default"),
    ("path_attention", {"decay": None}, "decay is None; leave it out for the default"),
    ("mamba", {"state_size": None}, "state_size is None; leave it out for the default"),
]


@pytest.mark.parametrize(("mixer", "kwargs", "text"), BAD)
def test_wrong_values_are_one_sentence(mixer, kwargs, text):
    with pytest.raises(InputError) as caught:
        check_mixer(mixer, 32, 2 if mixer == "path_attention" else 4, kwargs)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mixer", ALL)
def test_a_configuration_may_say_the_defaults(mixer):
    """None where it is the default, and what is right, are taken."""
    from selectivbench_hf.models import MIXERS
    from selectivbench_hf.models.layer_arguments import defaults

    own = defaults(MIXERS[mixer].build)
    kwargs = {name: own[name] for name in MIXERS[mixer].knobs if name in own and name != "conv_size"}
    made = config(mixer)
    check_mixer(mixer, made.hidden_size, made.num_heads, {**kwargs, **made.mixer_kwargs})


def test_a_model_too_large_for_memory_is_one_sentence():
    with pytest.raises(InputError, match="does not fit into memory") as caught:
        model("gru", hidden_size=1 << 20, num_hidden_layers=1, intermediate_size=1 << 30)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mixer", ["gpt", "transformer", "fox", "gru"])
@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
def test_an_empty_batch_is_one_sentence(mixer, shape):
    with pytest.raises(InputError, match=f"{shape[0]} sequences of {shape[1]} steps; both must be at least 1"):
        model(mixer)(input_ids=torch.zeros(shape, dtype=torch.long))


@pytest.mark.parametrize("mlp", [True, False])
def test_the_mlp_of_a_whole_stack_is_not_to_choose(mlp):
    import selectivbench_hf as sb

    with pytest.raises(InputError, match=f"mlp is {mlp}, and mixer 'gpt' has blocks of its own"):
        sb.SelectivBenchConfig.for_task(sb.get_task("lite"), mixer="gpt", hidden_size=16, mlp=mlp)
