"""The Accelerate entry of a checkout: everything is in selectivbench_hf/training.py.

    accelerate launch train.py --task te3_noisy_gaps --mixer gla --hidden_size 256 --num_hidden_layers 8 --output_dir runs/gla
    accelerate launch train.py --config recipe.yaml --learning_rate 3e-4                # the same names in a file; flags win
    accelerate launch train.py --output_dir runs/gla --resume                           # go on from the newest complete checkpoint
    accelerate launch train.py --help

Two processes on CPUs (`--cpu --num_processes 2` would start one; this script refuses that; `--main_process_port 0` finds a free port):

    ACCELERATE_USE_CPU=1 accelerate launch --multi_gpu --num_processes 2 --num_machines 1 train.py --task lite_noisy_gaps --mixer transformer

From an installed wheel, without this file: accelerate launch -m selectivbench_hf.training ...
"""

import sys

from selectivbench_hf.training import main

if __name__ == "__main__":
    sys.exit(main())
