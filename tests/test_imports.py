"""What an import loads: the table of mixers nothing heavy, and the Auto classes know our model in whichever order things are imported."""

import pytest

HEAVY = "{'torch', 'transformers', 'fla', 'triton', 'accelerate', 'datasets'} & set(sys.modules)"
KNOWN = "assert transformers.AutoModelForTokenClassification._model_mapping[type(transformers.AutoConfig.for_model('selectivbench'))]"


@pytest.mark.parametrize(
    "code",
    [
        "import selectivbench_hf",
        "import selectivbench_hf.models",
        "from selectivbench_hf.models import MIXERS, get_mixer; assert get_mixer('gla') is MIXERS['gla']",
        "from selectivbench_hf.models.mixers import MIXERS",
        "import selectivbench_hf as sb; assert not sb.kernels.enabled()",
        "from selectivbench_hf import cli; assert cli.main(['demo', '--mixers', 'glaa']) == 2",
        "from selectivbench_hf import training; assert training.main(['--task', 'lite', '--mixer', 'glaa']) == 2",
    ],
)
def test_nothing_heavy_is_loaded(python, code):
    done = python("-c", f"import sys\n{code}\nassert not {HEAVY}, {HEAVY}")
    assert done.returncode == 0, done.stderr
    assert ("did you mean 'gla'" in done.stderr) == ("glaa" in code)


@pytest.mark.parametrize(
    "code",
    [
        f"import selectivbench_hf.models, transformers; {KNOWN}",
        f"import transformers, selectivbench_hf.models; {KNOWN}",
        f"import selectivbench_hf as sb, transformers; sb.SelectivBenchConfig; {KNOWN}",
        f"import selectivbench_hf.models.configuration, transformers; {KNOWN}",
        f"import selectivbench_hf.models.modeling, transformers; {KNOWN}",
        f"import selectivbench_hf.models; from transformers import AutoModel; import transformers; {KNOWN}",
    ],
)
def test_auto_classes_know_the_model(python, code):
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_an_import_that_takes_long_is_explained(tmp_path, capfd, monkeypatch):
    import sys
    import time

    from selectivbench_hf import imports

    monkeypatch.setattr(imports, "PATIENCE", 0.05)
    with imports.explained("a slow package", "not_loaded"):
        time.sleep(0.3)
    assert capfd.readouterr().err.startswith("importing a slow package takes its time")
    with imports.explained("a quick package", "not_loaded"):
        pass
    assert "pytest" in sys.modules
    with imports.explained("a package that is there", "pytest"):
        time.sleep(0.3)
    assert capfd.readouterr().err == ""


def test_after_import_acts_once(tmp_path, monkeypatch):
    import importlib
    import sys

    from selectivbench_hf.imports import after_import

    (tmp_path / "some_package_of_ours.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders, seen = list(sys.meta_path), []
    for _ in range(2):
        after_import("some_package_of_ours", lambda: seen.append(sys.modules["some_package_of_ours"].value))
    importlib.import_module("some_package_of_ours")
    importlib.import_module("some_package_of_ours")
    assert seen == [1]
    assert sys.meta_path == finders
    del sys.modules["some_package_of_ours"]
