"""The models: what they compute, causality, initialisation, optimiser groups, autocast, Trainer, and what is said about bad input."""

import pytest
import torch
from models_helper import ALL, STATES, SYMBOLS, WIDTH, config, features, ids, model
from torch import nn

from selectivbench_hf import models
from selectivbench_hf.errors import InputError
from selectivbench_hf.models import mixers, modeling

CASES = [(mixer, block) for mixer in ALL for block in (("matched", "paper") if mixer != "gpt" else ("matched",))]

GROWING = ("gpt", "transformer", "fox", "path_attention")  # what they carry from step to step grows with the sequence


def _needs_fla(mixer):
    if models.MIXERS[mixer].needs_fla:
        pytest.importorskip("triton")
        pytest.importorskip("fla")


@pytest.fixture(autouse=True)
def _fla(request):
    mixer = getattr(getattr(request.node, "callspec", None), "params", {}).get("mixer")
    if mixer:
        _needs_fla(mixer)


@pytest.mark.parametrize(("mixer", "block"), CASES)
def test_logits_and_loss(mixer, block):
    net = model(mixer, block=block)
    x = ids()
    labels = torch.randint(0, STATES, x.shape)
    labels[:, ::3] = -100
    with torch.no_grad():
        out = net(input_ids=x, labels=labels)
        by_features = net(input_features=features(x)).logits
        head = net.classifier(net.hidden(input_ids=x))
    assert out.logits.shape == (3, 97, STATES)
    assert torch.allclose(out.logits, by_features, atol=1e-6)
    assert torch.equal(out.logits, head)
    kept = labels != -100
    wanted = -out.logits.double().log_softmax(-1)[kept].gather(-1, labels[kept][:, None]).mean()
    assert out.loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert (out.logits[0] - out.logits[1]).abs().max() > 1e-3


@pytest.mark.parametrize(("mixer", "block"), CASES)
def test_causality_padding_prefixes_and_modes(mixer, block):
    """The last input moves no earlier logit, padding no real one, and training, evaluation and prefixes of any length agree."""
    net = model(mixer, block=block)
    x = ids()
    with torch.no_grad():
        whole = net(input_ids=x).logits
        changed = x.clone()
        changed[:, -1] = (changed[:, -1] + 1) % SYMBOLS
        other = net(input_ids=changed).logits
        assert torch.equal(other[:, :-1], whole[:, :-1])
        assert not torch.equal(other[:, -1], whole[:, -1])
        padded = net(input_ids=torch.cat((x, torch.full((3, 31), SYMBOLS)), 1)).logits[:, :97]
        assert torch.allclose(padded, whole, atol=1e-5)
        for steps in range(1, 66):
            assert torch.allclose(net(input_ids=x[:1, :steps]).logits, whole[:1, :steps], atol=1e-5), steps
        for steps in (1, 2, 63, 64, 65):
            assert torch.allclose(net(input_ids=x[:, :steps]).logits, whole[:, :steps], atol=1e-5), steps
        net.train()
        for steps in (40, 97):
            assert torch.allclose(net(input_ids=x[:, :steps]).logits, whole[:, :steps], atol=1e-5), steps


@pytest.mark.parametrize(("mixer", "block"), CASES)
def test_every_parameter_learns(mixer, block):
    net = model(mixer, block=block).train()
    for steps in (40, 97):
        net.zero_grad()
        x = ids(steps=steps)
        net(input_ids=x, labels=x).loss.backward()
        assert [
            n for n, p in net.named_parameters() if p.grad is None or not p.grad.isfinite().all() or not p.grad.any()
        ] == []


@pytest.mark.parametrize("mixer", ALL)
def test_a_layer_keeps_its_own_initialisation(mixer, monkeypatch):
    """What a bare layer draws is what the model has: post_init touches only encoder, head, MLPs and norms outside the mixers."""
    bare, build = [], modeling.build_mixer

    def spy(*args, **kwargs):
        with torch.random.fork_rng():
            torch.manual_seed(len(bare))
            mixer_module = build(*args, **kwargs)
        bare.append({name: value.clone() for name, value in mixer_module.state_dict().items()})
        return mixer_module

    monkeypatch.setattr(modeling, "build_mixer", spy)
    torch.manual_seed(5)
    net = models.SelectivBenchForStateClassification(config(mixer))
    built = [net.backbone] if mixer == "gpt" else [block.mixer for block in net.backbone]
    assert len(bare) == len(built)
    for before, mixer_module in zip(bare, built, strict=True):
        after = mixer_module.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
    assert net.classifier.weight.std().item() == pytest.approx(0.02, rel=0.3)
    assert net.encoder.weight.std().item() == pytest.approx(0.02 if mixer == "gpt" else SYMBOLS**-0.5, rel=0.3)
    assert not net.encoder.bias.any() and not net.classifier.bias.any()


def slow_steps(layer):
    """Steps (softplus of the bias) of 0.001 to 0.1, decays A of 1 and more."""
    bias = layer.dt_proj.bias if hasattr(layer, "dt_proj") else layer.dt_bias
    return bias.max() < -2 and layer.A_log.exp().max() > 0.5


STARTS = {
    "gla": lambda layer: layer.gk_proj[1].bias.abs().max() > 0.01,
    "simple_gla": lambda layer: layer.gk_proj.bias.abs().max() > 0.01,
    "mesa_net": lambda layer: layer.a_proj.bias.abs().max() > 0.01 and layer.lambda_params.exp().min() > 1,
    "gated_delta_net": slow_steps,
    "gated_delta_product": slow_steps,
    "comba": slow_steps,
    "mamba": slow_steps,
    "mamba2": slow_steps,
}


@pytest.mark.parametrize("mixer", STARTS)
def test_flas_decays_start_as_fla_starts_them(mixer):
    """transformers' own initialisation would have set them to zero."""
    net = models.SelectivBenchForStateClassification(config(mixer))
    assert STARTS[mixer](net.backbone[0].mixer)
    assert all(p.dtype == torch.float32 for p in net.parameters())


@pytest.mark.parametrize("mixer", ALL)
@pytest.mark.parametrize("how", ["autocast", "cast"])
def test_bfloat16(mixer, how):
    """Close to float32 under autocast and with bfloat16 weights, with finite gradients for all."""
    net = model(mixer)
    x = ids(steps=65)
    wanted = net(input_ids=x).logits
    if how == "cast":
        net.to(torch.bfloat16)
    for inputs in ({"input_ids": x}, {"input_features": features(x)}):
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
            out = net(**inputs, labels=x)
        out.loss.backward()
        assert out.loss.dtype == torch.float32
        # MesaNet's linear systems multiply the rounding of their entries
        assert (out.logits.float() - wanted).norm() / wanted.norm() < (0.05 if mixer == "mesa_net" else 0.03)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("mixer", ALL)
def test_gradients_of_a_prefix_are_those_of_the_prefix_alone(mixer):
    """What comes later gives no gradient, and the form for up to 64 steps gives that of the form for more."""
    x = ids(batch=2)
    for steps in (1, 17, 64, 65):
        gradients = []
        for given in (x, x[:, :steps]):
            net = model(mixer).train()
            logits = net(input_ids=given).logits[:, :steps]
            (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits).cos()).sum().backward()
            gradients.append({name: p.grad for name, p in net.named_parameters() if p.grad is not None})
        longer, alone = gradients
        for name, wanted in alone.items():
            scale = max(wanted.norm().item(), 1e-3 * max(g.norm().item() for g in alone.values()))
            assert (longer[name] - wanted).norm().item() < 1e-4 * scale, (steps, name)


# their backward passes are autograd's own, and autocast reaches those, as it does in any module of torch
AUTOGRADS = ("s4d", "log_linear_mamba2")


@pytest.mark.parametrize("mixer", [name for name in ALL if name not in AUTOGRADS])
def test_a_backward_pass_inside_autocast_is_the_same(mixer):
    """Hand-written backward passes compute in their own types wherever they are called."""
    x = ids(batch=2, steps=70)
    gradients = []
    for inside in (True, False):
        net = model(mixer)
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(input_ids=x, labels=x).loss
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        gradients.append({name: p.grad for name, p in net.named_parameters()})
    assert [n for n in gradients[0] if not torch.equal(gradients[0][n], gradients[1][n])] == []


@pytest.mark.parametrize("mixer", ALL)
def test_optimiser_groups(mixer):
    """With zero gradients only the decaying group shrinks; marked parameters, norms, biases and embeddings do not."""
    net = model(mixer).train()
    groups = models.parameter_groups(net, 0.1)
    decay, free = (next(g for g in groups if g["name"] == name) for name in ("decay", "no_decay"))
    named = dict(net.named_parameters())
    assert sorted(decay["names"] + free["names"]) == sorted(named)
    for name, parameter in named.items():
        exempt = parameter.ndim < 2 or "norm" in name or "wpe" in name or name == "encoder.weight"
        exempt = exempt or getattr(parameter, "_no_weight_decay", False)
        assert (name in free["names"]) == exempt, name
    before = {name: value.clone() for name, value in named.items()}
    optimiser = torch.optim.AdamW(groups, lr=0.1)
    for parameter in named.values():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    shrunk = {name for name, value in named.items() if not torch.equal(value, before[name])}
    assert shrunk == set(decay["names"])
    if mixer in ("gated_delta_net", "mamba2"):
        marked = [n for n in named if n.endswith(("A_log", "dt_bias"))]
        assert marked and set(marked) <= set(free["names"])
        for n in marked:  # a matrix with the mark, and a module wrapped by another
            assert n in net._no_decay_names
    wrapped = nn.Sequential(net)
    assert {n.removeprefix("0.") for n in models.parameter_groups(wrapped, 0.1)[1]["names"]} == set(free["names"])


def test_parameter_counts_put_the_positions_apart():
    short, long = (model("gpt", max_position_embeddings=n) for n in (128, 1000))
    counts = models.parameter_counts(long)
    assert counts["position_table"] == 1000 * WIDTH
    assert counts["total"] == models.parameter_counts(short)["total"]
    assert sum(counts.values()) == sum(p.numel() for p in long.parameters())
    assert models.parameter_counts(model("transformer"))["position_table"] == 0


@pytest.mark.parametrize("mixer", ALL)
def test_state_size(mixer):
    """The formula of the table is what a real cache holds; asking draws no random number."""
    entry, made = models.MIXERS[mixer], config(mixer)
    before = torch.random.get_rng_state()
    measured = models.state_size(made)
    assert torch.equal(before, torch.random.get_rng_state())
    assert (measured is None) == (entry.state is None) == (mixer in GROWING)
    if measured is not None:
        layer = mixers.build_mixer(mixer, WIDTH, made.num_heads, 0, made.mixer_kwargs, made)
        assert measured == 2 * entry.state(layer)


@pytest.mark.parametrize("mixer", ALL)
@pytest.mark.parametrize("batch", [1, 3])
def test_pieces_with_the_cache_equal_the_whole(mixer, batch):
    """97 steps in pieces around the length at which fla's layers change their form, and one step at a time."""
    net = model(mixer)
    x = ids(batch)
    with torch.no_grad():
        whole = net(input_ids=x).logits
        for pieces in ((1, 96), (3, 94), (63, 34), (64, 33), (65, 32), (96, 1), (1,) * 97):
            cache, got = None, []
            for part in x.split(pieces, 1):
                out = net(input_ids=part, cache=cache, use_cache=True)
                cache = out.cache
                got.append(out.logits)
            assert torch.allclose(torch.cat(got, 1), whole, atol=1e-4), pieces
            assert cache.get_seq_length() == 97


def test_heads_follow_the_rule_and_can_be_set():
    assert [
        models.SelectivBenchConfig(mixer="transformer", hidden_size=w).num_heads for w in (64, 512, 520, 1024, 2048)
    ] == [4, 4, 8, 8, 16]
    assert models.SelectivBenchConfig(mixer="transformer", hidden_size=64, num_heads=2).num_heads == 2


class FakeTask:
    """As much of a task as a configuration looks at."""

    num_symbols, num_states, splits = SYMBOLS, STATES, {"train": 5, "test": 5, "test_gap_1": 5}

    def max_steps(self, split):
        return {"train": 30, "test": 30, "test_gap_1": 90}[split]


def test_for_task_takes_the_longest_split():
    made = models.SelectivBenchConfig.for_task(FakeTask(), mixer="gpt", hidden_size=WIDTH, num_hidden_layers=1)
    assert (made.num_symbols, made.num_states, made.vocab_size, made.max_position_embeddings) == (
        SYMBOLS,
        STATES,
        SYMBOLS + 1,
        90,
    )
    net = models.SelectivBenchForStateClassification(made)
    assert net(input_ids=ids(steps=90)).logits.shape[1] == 90
    with pytest.raises(InputError, match="91 steps.*90"):
        net(input_ids=ids(steps=91))


BAD = [
    (
        lambda: models.SelectivBenchConfig.for_task(FakeTask(), mixer="glaa"),
        "unknown mixer 'glaa'; did you mean 'gla'",
    ),
    (lambda: models.SelectivBenchConfig.for_task(FakeTask(), hiden_size=3), "did you mean 'hidden_size'"),
    (lambda: config("transformer", num_hiden_layers=3), "did you mean 'num_hidden_layers'"),
    (lambda: models.SelectivBenchConfig.for_task(FakeTask(), mixer="transformer", hidden_size=63), "56 or 64"),
    (lambda: models.SelectivBenchConfig.for_task(FakeTask(), mixer="gpt", hidden_size=63), "60 or 64"),
    (lambda: models.check_mixer("gla", 66), "gla.*64 or 72"),
    (lambda: models.check_mixer("gated_delta_net", 66), "0.75.*64 or 80"),
    (lambda: models.check_mixer("mamba2", 65), "64 or 66"),
    (lambda: models.check_mixer("gla", 64, 7), "63|56|70"),
    (lambda: models.check_mixer("gla", 64, None, {"expandd": 1}), "did you mean 'expand'"),
    (lambda: models.check_mixer("gated_delta_net", 64, None, {"expand_w": 1}), "did you mean 'expand'"),
    (lambda: models.check_mixer("gla", 64, None, {"hidden_size": 1}), "field of the configuration"),
    (lambda: models.check_mixer("gpt", 64, None, {"n_innner": 1}), "did you mean 'n_inner'"),
    (lambda: models.check_mixer("nowhere:build", 64), "no module 'nowhere'"),
    (lambda: models.check_mixer("models_helper:biuld", 64), "has no 'biuld'"),
    (lambda: config("transformer", block="papre"), "did you mean 'paper'"),
    (lambda: config("transformer", dropout=1.5), "dropout"),
    (lambda: config("transformer", num_hidden_layers=0), "num_hidden_layers"),
    (lambda: config("transformer", vocab_size=99), "vocab_size"),
    (lambda: model("transformer")(), "input_features or input_ids"),
    (lambda: model("transformer")(input_features=torch.zeros(1, 4, SYMBOLS + 2)), r"\(batch, steps, 7\)"),
    (lambda: model("transformer")(input_ids=torch.zeros(4, dtype=torch.long)), r"\(batch, steps\)"),
    (
        lambda: model("models_helper:build_tabled")(input_ids=ids(), use_cache=True),
        "use_cache=True is not supported for mixer 'models_helper:build_tabled'",
    ),
    (lambda: model("transformer").train()(input_ids=ids(), use_cache=True), "for evaluation"),
    (lambda: model("transformer")(input_ids=ids(), cache=3), "cache is a int"),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_bad_input_is_one_sentence(case):
    make, text = BAD[case]
    pytest.importorskip("triton")
    with pytest.raises(InputError, match=text) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_checking_a_width_allocates_nothing():
    pytest.importorskip("triton")
    models.check_mixer("gla", 1 << 16, 512)  # 16 GiB of weights, were they built


def test_a_mixer_from_outside():
    net = model("models_helper:build_tabled", mixer_kwargs={"power": 0.5})
    assert net(input_ids=ids()).logits.shape == (3, 97, STATES)
    assert models.state_size(net.config) is None
    with pytest.raises(InputError, match="did you mean 'power'"):
        model("models_helper:build_tabled", mixer_kwargs={"powr": 0.5})


def test_any_module_can_be_wrapped():
    net = models.wrap_module(nn.Sequential(nn.Linear(SYMBOLS, 16), nn.Linear(16, STATES)), FakeTask())
    x = ids()
    out = net(input_ids=x, labels=x, example_id=torch.arange(3))
    assert torch.allclose(out.logits, net(input_features=features(x)).logits) and out.loss.requires_grad
    assert torch.equal(net.classifier(net.hidden(input_ids=x)), out.logits)
    assert models.wrap_module(net, FakeTask()) is net
    with pytest.raises(InputError, match=r"\(3, 97, 5\).*\(3, 97, 11\)"):
        models.wrap_module(nn.Linear(SYMBOLS, 5), FakeTask())(input_ids=x)
    with pytest.raises(InputError, match="torch.nn.Module, not int"):
        models.wrap_module(3, FakeTask())


class Rows(torch.utils.data.Dataset):
    """Columns as our data set has them."""

    def __init__(self, count):
        self.ids = ids(count, 20)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {
            "example_id": index,
            "input_ids": self.ids[index],
            "labels": self.ids[index],
            "item_ids": self.ids[index],
        }


@pytest.mark.parametrize("mixer", ["transformer", "gla"])
def test_trainer(mixer, tmp_path):
    """transformers' Trainer with default column handling: three accumulated steps give the mean loss, an eval_loss, and a checkpoint."""
    from transformers import Trainer, TrainingArguments

    net = model(mixer)
    rows = Rows(24)
    seen = []

    def collate(batch):
        seen.append(set(batch[0]))
        return {key: torch.stack([torch.as_tensor(row[key]) for row in batch]) for key in batch[0]}

    arguments = TrainingArguments(
        tmp_path, max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=4, logging_steps=1, learning_rate=0.0,
        eval_strategy="steps", eval_steps=3, save_steps=3, use_cpu=True, report_to="none", disable_tqdm=True,
        load_best_model_at_end=True, lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = Trainer(net, arguments, train_dataset=rows, eval_dataset=rows, data_collator=collate)
    trainer.train()
    logs = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    with torch.no_grad():
        whole = net(input_ids=rows.ids, labels=rows.ids).loss.item()
    assert len(logs) == 3 and sum(logs) / 3 == pytest.approx(
        whole, rel=1e-3
    )  # not multiplied by the accumulation steps
    assert trainer.evaluate()["eval_loss"] == pytest.approx(whole, rel=1e-3)
    assert {"input_ids", "labels", "example_id", "item_ids"} <= seen[0]


def test_importing_the_models_does_not_import_fla(python):
    done = python("-c", "import sys, selectivbench_hf.models; print('fla' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


NO_TRITON = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("triton", "fla"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.split(".")[0] in ("triton", "fla") else real(name, *rest)
import torch
from selectivbench_hf.models import SelectivBenchConfig, SelectivBenchForStateClassification
x = torch.zeros(1, 5, dtype=torch.long)
for mixer in ("gpt", "transformer", "s4d", "gru", "lstm"):
    net = SelectivBenchForStateClassification(SelectivBenchConfig(mixer=mixer, hidden_size=32, num_hidden_layers=1))
    net(input_ids=x, labels=x).loss.backward()
try:
    SelectivBenchForStateClassification(SelectivBenchConfig(mixer="gla", hidden_size=32))
except ImportError as error:
    print(error)
"""


def test_without_triton_attention_works_and_an_lrm_says_why(python):
    done = python("-c", NO_TRITON)
    assert done.returncode == 0, done.stderr
    text = done.stdout.strip()
    assert (
        "mixer 'gla'" in text
        and "'triton' is not installed" in text
        and "gpt, transformer" in text
        and "\n" not in text
    )


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", ALL)
def test_cuda_agrees_with_the_cpu(mixer):
    net = model(mixer)
    x = ids(steps=100)
    with torch.no_grad():
        wanted = net(input_ids=x).logits
        got = net.cuda()(input_ids=x.cuda()).logits.cpu()
    half = any(hasattr(module, "computes_in") for module in net.modules())  # fla's kernel refuses float32
    assert (got - wanted).norm() / wanted.norm() < (2e-2 if half else 5e-3)
