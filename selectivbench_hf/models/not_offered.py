"""The layers that flash-linear-attention exports and no mixer is made of, each with the reason."""

_FLASH = "softmax attention through the package flash-attn, which needs a GPU"
_NO_CPU = "no CPU form of its kernels here"

NOT_OFFERED = {
    "Attention": f"{_FLASH}; `transformer` and `sliding_window` are this through torch",
    "BitAttention": f"{_FLASH}, with ternary weights: a question of number formats, not of mixing",
    "CyclicFlowAttention": f"memory in slots of relative time; {_NO_CPU}",
    "DeltaFormerAttention": f"softmax attention with delta-rule values, quadratic and without a cache to decode through; {_NO_CPU}",
    "Mamba3": "runs on CUDA alone, through kernels of the package mamba_ssm, and has no reference to test another form against",
    "MoBA": f"{_FLASH}, over chosen blocks of the past",
    "MomAttention": "routes steps to several gated delta rules, packed to varying lengths, which the CPU forms do not take",
    "MomentumDeltaNet": f"delta rule with a second state as momentum; {_NO_CPU}",
    "MultiheadLatentAttention": f"{_FLASH}, on compressed keys and values: a question of cache size, not of mixing",
    "NativeSparseAttention": f"attention over compressed and chosen blocks of the past; {_NO_CPU}",
    "Parallax": f"quadratic softmax attention with a correction of first order; {_NO_CPU}",
    "PrecondGatedDeltaNet": f"gated delta rule with preconditioned keys; {_NO_CPU}",
    "PrecondKDA": f"KDA with preconditioned keys; {_NO_CPU}",
    "Raven": f"memory in slots with sparse writes; {_NO_CPU}",
    "RodimusAttention": "gated linear attention with a temperature on what it selects; the recurrence is that of `gla`",
    "SlidingWindowSharedKeyAttention": f"{_FLASH}, over a window: the attention half of a Rodimus block",
    "StickBreakingAttention": "runs on a GPU alone and has no cache to decode through",
    "WallAttention": f"softmax attention with a decay by channel; {_NO_CPU}",
    "YOCOCrossAttention": "reads keys and values that another layer of its model made, so it is no mixer of its own",
    "YOCOGatedRetention": "the recurrence of `simple_gla`, as one half of a model whose other half shares its keys and values",
    "YOCOSharedKVBuilder": "makes keys and values for other layers, and mixes nothing",
}
