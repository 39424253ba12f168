"""The documentation is true: every Python block runs, every page is reachable, every public name is in the reference."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import re
import runpy
import socket
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import autosparse
from autosparse.methods import METHODS
from autosparse.methods.families.base import LooksAtData
from tests.sparse_nets import example_for, prepare_for

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"python", "text", "console", ""}
CLASSES: dict[str, Any] = {cls.__name__: cls for cls in METHODS.values()}
METHOD_IN_TEXT = re.compile(rf"`((?:{'|'.join(CLASSES)})\([^`]*\))`")
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")


class MyNet(nn.Module):
    """The reader's own model: two convolutions with batch norm and a classifier, for 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.bn1(self.conv1(images)))
        hidden = torch.relu(self.bn2(self.conv2(hidden)))
        logits: Tensor = self.fc(hidden.mean(dim=(2, 3)))
        return logits


def prelude() -> dict[str, Any]:
    """What the pages call the reader's own: a model, a loader, a loss."""
    data = torch.Generator().manual_seed(0)
    batches = [(torch.rand(16, 1, 8, 8, generator=data), torch.randint(10, (16,), generator=data)) for _ in range(4)]
    names = {"torch": torch, "nn": nn, "autosparse": autosparse, "AutoSparse": autosparse.AutoSparse}
    own = {"MyNet": MyNet, "model": MyNet(), "loader": batches, "criterion": nn.CrossEntropyLoss()}
    return {**names, **own, "train_one_epoch": train_one_epoch}


def train_one_epoch(model: nn.Module, loader: list[tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer) -> None:
    """The loop that the README leaves as it is."""
    for x, y in loader:
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()


def train_densely(batches: list[tuple[Tensor, Tensor]]) -> None:
    """What the page on fine-tuning finds: `dense.pt` of the reader's model and a folder `my-bert`, trained here."""
    model, criterion = MyNet(), nn.CrossEntropyLoss()
    _train(model, lambda: torch.stack([criterion(model(x), y) for x, y in batches]).mean())
    torch.save(model.state_dict(), "dense.pt")
    bert = importlib.import_module("transformers").BertForSequenceClassification
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    pretrained = bert(bert.config_class(vocab_size=26, **sizes))
    tokens = torch.stack([each["input_ids"] for each in sentences()])
    labels = torch.tensor([each["labels"] for each in sentences()])
    _train(pretrained, lambda: pretrained(input_ids=tokens, labels=labels).loss)
    pretrained.save_pretrained("my-bert")
    if has_timm():
        of_timm = importlib.import_module("timm").create_model("resnet10t", in_chans=1, num_classes=10)
        _train(of_timm, lambda: criterion(of_timm(batches[0][0]), batches[0][1]), steps=10)
        torch.save(of_timm.state_dict(), "resnet10t.pt")


@functools.cache
def has_timm() -> bool:
    """It comes with the extra `zoo`; once imported with a stand-in for torchvision, a page may import it."""
    try:
        importlib.import_module("tests.zoo.members.timm_nets")
    except ImportError:
        return False
    return True


def _train(model: nn.Module, loss: Callable[[], Tensor], steps: int = 100) -> None:
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        opt.zero_grad()
        torch.autograd.backward(loss())
        opt.step()


def sentences() -> list[dict[str, Any]]:
    tokens = torch.randint(26, (32, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": each, "labels": int(each[0] % 2)} for each in tokens]


def fences(page: Path) -> list[tuple[int, str, str]]:
    """Line, language and code of every fenced block."""
    text = page.read_text(encoding="utf-8")
    found = [(text[: each.start()].count("\n") + 2, each["language"].strip(), each["code"]) for each in FENCE.finditer(text)]
    return [(line, language, textwrap.dedent(code)) for line, language, code in found]


def run_page(page: Path) -> None:
    """All Python blocks of a page in order, in one namespace, with the lines of the page in tracebacks."""
    names = prelude()
    if page.stem == "fine-tuning":
        train_densely(names["loader"])
        names["dataset"] = sentences()
    for line, language, code in fences(page):
        if language == "python" and ("import timm" not in code or has_timm()):
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)


def one_process() -> dict[str, str]:
    """What torchrun tells a run of one process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if page.stem == "fine-tuning":
        pytest.importorskip("transformers")
    if page.stem == "integrations":
        for framework in ("transformers", "lightning", "accelerate"):
            pytest.importorskip(framework)
    if page.stem == "resume-and-distributed":
        for name, value in one_process().items():
            monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        # a page that makes the library complain teaches the wrong thing
        warnings.simplefilter("error", autosparse.SparsityWarning)
        # the labels here are random: a net that can only memorise them fights for its weights
        warnings.filterwarnings("ignore", "target_sparsity = .* reached", autosparse.SparsityWarning)
        # true of transformers' models, and said on the page
        warnings.filterwarnings("ignore", "deploy: the model keeps its structure", autosparse.SparsityWarning)
        if not autosparse.kernels.available():
            warnings.filterwarnings("ignore", "deploy: all layers run in dense torch", autosparse.SparsityWarning)
        run_page(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_say_what_they_are(page: Path) -> None:
    assert {language for _, language, _ in fences(page)} <= LANGUAGES
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(fences(page))


@pytest.mark.parametrize("page", [*PAGES, *sorted(DOCS.glob("methods/*.md"))], ids=lambda page: page.name)
def test_methods_in_sentences_and_tables_take_the_fields_they_are_given(page: Path) -> None:
    for expression in METHOD_IN_TEXT.findall(page.read_text()):
        call = ast.parse(expression, mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        fields = {field.name for field in dataclasses.fields(CLASSES[call.func.id])}
        assert {keyword.arg for keyword in call.keywords} <= fields, expression
        names = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
        if "..." not in expression and names <= set(CLASSES):
            eval(expression, dict(CLASSES))  # values that are not allowed raise


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [each["target"] for each in LINK.finditer(page.read_text(encoding="utf-8"))]
    missing = [each for each in targets if "://" not in each and not (page.parent / each).exists()]
    assert missing == []


def test_lists_begin_after_an_empty_line() -> None:
    """Without one the site prints `- this - and that` as one paragraph; only a heading may stand right above."""
    item, broken = re.compile(r"[-*] |\d+\. "), []
    for page in sorted(DOCS.rglob("*.md")):
        text = FENCE.sub("code", page.read_text(encoding="utf-8"))
        for block in re.split(r"\n\s*\n", text):
            lines = [line for line in block.strip("\n").splitlines() if not line.startswith("#")]
            if lines and not item.match(lines[0].lstrip()) and not lines[0].startswith(" "):
                broken += [f"{page.relative_to(ROOT)}: {line}" for line in lines if item.match(line)]
    assert not broken, "\n".join(broken)


def test_every_page_is_in_the_navigation() -> None:
    """Those of methods and results are added by docs/navigation.py."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", text[text.index("\nnav:") :], re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in DOCS.glob("*.md"))
    added = runpy.run_path(str(DOCS / "navigation.py"))["on_config"]({"docs_dir": str(DOCS), "nav": [{"Reference": []}]})
    methods = next(section["Methods"] for section in added["nav"] if "Methods" in section)
    assert methods[0] == "methods/README.md"
    assert {f"methods/{name}.md" for name in autosparse.list_methods()} <= set(methods)


def test_every_public_name_is_in_the_reference() -> None:
    documented = set(re.findall(r"^::: autosparse\.([\w.]+)", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE))
    rooms = {name for name in autosparse.__all__ if type(getattr(autosparse, name)).__name__ == "module"}
    homes = {f"{autosparse._HOMES[name]}.{name}" for name in autosparse._HOMES}
    listed = {name.rpartition(".")[2] for name in documented}
    assert {home.rpartition(".")[2] for home in homes} <= listed
    assert {room for room in rooms if room != "methods"} <= {name.partition(".")[0] for name in documented}


# ------------------------------------------------------------------------------------------------ supported combinations


def accumulated(name: str, parts: int) -> tuple[autosparse.Sparsifier, nn.Module]:
    """Four steps on the same sixteen samples, each step in one or more batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    prepare_for(name, model)
    often = {"update_every": 2} if "update_every" in METHODS[name].__dataclass_fields__ else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", autosparse.SparsityWarning)  # OptG's ramp needs more than two epochs
        example = example_for(name, torch.zeros(2, 12, dtype=torch.float64))
        sp = autosparse.sparsify(model, autosparse.method(name, **often), epochs=2, steps_per_epoch=2, **example)
    opt = torch.optim.SGD(sp.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)
    sp.bind(opt)
    inputs, targets = torch.randn(16, 12, dtype=torch.float64), torch.randint(3, (16,))
    if isinstance(sp.method, LooksAtData):
        sp.score([(inputs, targets)], lambda net, batch: nn.functional.cross_entropy(net(batch[0]), batch[1]))
    for _ in range(2):
        for _ in range(2):
            opt.zero_grad()
            for part, labels in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
                torch.autograd.backward((nn.functional.cross_entropy(model(part), labels) + sp.penalty()) / parts)
            opt.step()
        sp.end_epoch(loss=1.0)
    return sp, model


@pytest.mark.parametrize("name", [name for name in autosparse.list_methods() if name != "swat"])
def test_accumulated_batches_equal_the_whole_batch(name: str) -> None:
    (whole, expected), (halves, found) = accumulated(name, 1), accumulated(name, 2)
    assert whole.step == halves.step == 4
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[key], value, rtol=0, atol=1e-9, msg=key)
    assert halves.report().zeros == whole.report().zeros


def test_swat_sees_other_activations_in_half_batches() -> None:
    (_, expected), (_, found) = accumulated("swat", 1), accumulated("swat", 2)
    assert any(not torch.allclose(found.state_dict()[key], value) for key, value in expected.state_dict().items())


def test_methods_that_need_whole_weights_refuse_fsdp2(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in one_process().items():
        monkeypatch.setenv(variable, value)
    dist.init_process_group("gloo")
    try:
        mesh = init_device_mesh("cpu", (1,))
        for name, cls in METHODS.items():
            model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
            prepare_for(name, model)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", autosparse.SparsityWarning)  # OptG's ramp needs more than two epochs
                example = example_for(name, torch.zeros(2, 8))
                sp = autosparse.sparsify(model, autosparse.method(name), epochs=2, steps_per_epoch=2, **example)
            fully_shard(model, mesh=mesh)
            opt = torch.optim.SGD(sp.param_groups(), lr=0.1)
            if cls().traits.shardable:
                sp.bind(opt)
            else:
                with pytest.raises(ValueError, match="cannot run under FSDP2: use DDP"):
                    sp.bind(opt)
    finally:
        dist.destroy_process_group()


def test_every_shardable_method_has_a_sharded_run_in_the_table() -> None:
    table = runpy.run_path(str(DOCS / "make_support_table.py"))
    assert set(table["SHARDED_HERE"]) == {name for name, cls in METHODS.items() if cls().traits.shardable}


@pytest.mark.slow  # it collects every test there is
def test_the_table_of_supported_combinations_is_up_to_date() -> None:
    table = runpy.run_path(str(DOCS / "make_support_table.py"))
    assert (DOCS / "supported.md").read_text(encoding="utf-8") == table["page"](table["collected"]())


def test_figures_that_pages_show_exist_and_are_small() -> None:
    shown = {each for page in PAGES for each in re.findall(r"!\[[^\]]*\]\((figures/[^)]+)\)", page.read_text(encoding="utf-8"))}
    assert shown == {path.relative_to(DOCS).as_posix() for path in (DOCS / "figures").rglob("*.*")}
    assert all((DOCS / each).stat().st_size < 200_000 for each in shown)
