"""Tiny models of transformers with linear layers, run in a process of their own: `python transformers_models.py HOW FILE`.

HOW is `torch` (fla hidden: transformers' own torch code), `early` or `late` (with fla and our kernels, enabled before or after the models'
modules are imported). FILE receives, for each model, loss, logits and gradients of 100 steps, the logits of 20, and what greedy decoding
adds to a prompt; an exception's text where it fails.
"""

import sys

LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "layer_types": ["linear_attention", "full_attention"],
    "pad_token_id": 0,
    "eos_token_id": 1,
}
EXPERTS = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
MODELS = {  # name -> model class, configuration class, its fields
    "qwen3_next": ("Qwen3NextForCausalLM", "Qwen3NextConfig", {**LINEAR, **EXPERTS, "head_dim": 16}),
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", {**LINEAR, "head_dim": 16}),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextConfig", {**LINEAR, **EXPERTS, "head_dim": 16}),
    "olmo_hybrid": ("OlmoHybridForCausalLM", "OlmoHybridConfig", {**LINEAR, "linear_num_value_heads": 2}),
    "lara_mini": ("LaraMiniForCausalLM", "LaraMiniConfig", {**LINEAR, "head_dim": 16}),
    "kimi_linear": (
        "KimiLinearForCausalLM",
        "KimiLinearConfig",
        {
            **LATENT,
            "head_dim": 16,
            "linear_head_dim": 16,
            "linear_num_heads": 2,
            "mlp_layer_types": ["dense", "dense"],
        },
    ),
    "bailing_hybrid": (
        "BailingHybridForCausalLM",
        "BailingHybridConfig",
        {**LATENT, "head_dim": 16, "mlp_layer_types": ["dense", "dense"], "num_mtp_layers": 0},
    ),
}


def results_of(name: str, enable) -> dict:
    """What one model computes; `enable()` is called once its module is imported."""
    import torch
    import transformers

    model_class, config_class, fields = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**{**COMMON, **fields})
    model = getattr(transformers, model_class)(config).eval()
    enable()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())) * 0.02
            )
    ids = torch.randint(2, 64, (2, 100), generator=torch.Generator().manual_seed(1))
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    found = {"loss": out.loss.detach(), "logits": out.logits.detach()}
    found |= {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    with torch.no_grad():
        found["short"] = model(input_ids=ids[:, :20]).logits
        found["generated"] = model.generate(ids[:, :70], max_new_tokens=5, do_sample=False)
    return found


def main(how: str, file: str) -> None:
    """See the top of the file."""
    if how == "torch":
        sys.modules["fla"] = None  # importing it then fails, and transformers takes its own code
    import torch

    def enable():
        from selectivbench_hf import kernels

        kernels.enable()

    if how == "early":
        enable()
    found = {}
    for name in MODELS:
        try:
            found[name] = results_of(name, enable if how == "late" else lambda: None)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    torch.save(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
