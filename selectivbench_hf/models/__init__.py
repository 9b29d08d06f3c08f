"""Models: `SelectivBenchConfig`, `SelectivBenchForStateClassification`, and the table of mixers.

Importing this package registers the model with transformers' Auto classes. fla is imported only when a layer of it is built.
"""

from transformers import AutoConfig, AutoModelForTokenClassification

from .configuration import SelectivBenchConfig
from .mixers import MIXERS, check_mixer, get_mixer, mixer_names
from .modeling import SelectivBenchForStateClassification, parameter_counts, parameter_groups, state_size, wrap_module

AutoConfig.register(SelectivBenchConfig.model_type, SelectivBenchConfig, exist_ok=True)
AutoModelForTokenClassification.register(SelectivBenchConfig, SelectivBenchForStateClassification, exist_ok=True)

__all__ = [
    "MIXERS",
    "SelectivBenchConfig",
    "SelectivBenchForStateClassification",
    "check_mixer",
    "get_mixer",
    "mixer_names",
    "parameter_counts",
    "parameter_groups",
    "state_size",
    "wrap_module",
]
