"""MesaNet."""

SIZE = {"hidden_size": 32, "num_heads": 2, "head_dim": 16}
# fla's kernels hold q and k in float16, states in bfloat16, and add 1e-5 to each divisor of the solver: the gradients of two numbers
# (the biases of beta and of the decay) come out 2e-2 apart, the others 4e-3
BOUNDS = {"output": 2e-3, "gradient": 3e-2}
CASES = {
    "mesa_net_short": ("MesaNet", SIZE, 40, True, BOUNDS),
    "mesa_net_long": ("MesaNet", SIZE, 100, True, BOUNDS),
    "mesa_net_gate": ("MesaNet", {**SIZE, "use_output_gate": True, "conv_bias": True}, 70, True, BOUNDS),
}
