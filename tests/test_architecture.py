"""The house keeps its shape: imports point one way, files stay small, nothing depends on one machine."""

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from autosparse.methods import METHODS, Method
from autosparse.methods.families import base

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "examples", "benchmarks", "docs", ".ci")
TEXT = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".json", ".cpp", ".h", ".cmake"}
MAX_LINES = 400
MAX_LINES_OF = {"src/autosparse/sparsifier/sparsifier.py": 500}
MAX_FUNCTION_LINES = 60
MAX_HOOKS = 12
MAX_DEPTH = 4  # classes from a registered method up to Method, both counted
# The roots of home and scratch folders, put together from parts so that this file does not match itself.
MACHINE_PATH = re.compile("(?<![A-Za-z0-9_.~-])/" + "(home|root|Users|work|tmp|opt|mnt)/" + r"[\w.-]+|[A-Z]:\\Users\\")


def project_files() -> list[Path]:
    """Every text file of the project, whether or not it is committed."""
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    top = [path for path in ROOT.iterdir() if path.is_file()]
    chosen = [path for path in inside + top if path.suffix in TEXT or path.name in ("Makefile", "run")]
    return sorted(path for path in chosen if "__pycache__" not in path.parts)


def lint_imports(project: Path, sources: Path) -> subprocess.CompletedProcess[str]:
    """import-linter's verdict on a project, by the contracts in its pyproject.toml."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def test_imports_point_one_way() -> None:
    verdict = lint_imports(ROOT, ROOT / "src")
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    assert " 0 broken" in verdict.stdout


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("schedules", "autosparse.cli"),
        ("models", "autosparse.kernels"),
        ("methods.autotune", "torch"),
        ("methods.target", "torch"),
    ],
)
def test_a_forbidden_import_is_noticed(module: str, forbidden: str, tmp_path: Path) -> None:
    package = tmp_path / "autosparse"
    for floor in floors():
        for name in floor:
            (package / name).mkdir(parents=True)
            (package / name / "__init__.py").touch()
    (package / "__init__.py").touch()
    for name in ("methods/autotune", "methods/target"):
        (package / f"{name}.py").touch()
    target = package / module.replace(".", "/")
    (target / "__init__.py" if target.is_dir() else target.with_suffix(".py")).write_text(f"import {forbidden}\n")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    verdict = lint_imports(tmp_path, tmp_path)
    assert verdict.returncode == 1, verdict.stdout + verdict.stderr
    assert f"autosparse.{module} -> {forbidden}" in verdict.stdout


def floors() -> list[set[str]]:
    """The floors of the contract, from the top."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    return [set(re.findall(r"\w+", floor)) for floor in contract["layers"]]


def test_contributing_lists_the_floors_of_the_contract() -> None:
    listed = re.findall(r"^\d+\. ((?:`\w+`,? ?)+):", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    assert [set(re.findall(r"\w+", floor)) for floor in listed] == floors()


@pytest.mark.parametrize("folder", ["src", "examples"])
def test_files_are_small(folder: str) -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert lengths
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES_OF.get(path, MAX_LINES)} == {}


@pytest.mark.parametrize("folder", ["src", "examples"])
def test_functions_are_small(folder: str) -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert long == []


def hooks(kind: type) -> set[str]:
    """The functions with which a class answers the Sparsifier."""
    return {name for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")}


def optional_hooks() -> set[str]:
    """The functions that only some methods have: those of the protocols that tell such methods apart."""
    protocols = [kind for kind in vars(base).values() if getattr(kind, "_is_runtime_protocol", False)]
    assert protocols
    return set().union(*map(hooks, protocols))


def asked_of_methods() -> set[str]:
    """The functions of registered methods that code outside of `methods` uses."""
    methods = ROOT / "src" / "autosparse" / "methods"
    trees = [ast.parse(path.read_text()) for path in (ROOT / "src").rglob("*.py") if methods not in path.parents]
    used = {
        node.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.fullmatch(r"(.*\.)?method", ast.unparse(node.value))
    }
    return {name for name in used if any(inspect.isfunction(getattr(kind, name, None)) for kind in METHODS.values())}


def depth(kind: type) -> int:
    """How many classes the longest chain from this one up to Method has."""
    return 1 + max((depth(parent) for parent in kind.__bases__ if issubclass(parent, Method)), default=0)


def test_methods_have_few_hooks() -> None:
    assert 0 < len(hooks(Method)) <= MAX_HOOKS
    assert asked_of_methods() == hooks(Method) | optional_hooks()
    assert not hooks(Method) & optional_hooks()


def test_the_page_lists_the_hooks() -> None:
    page = (ROOT / "docs" / "writing-a-method.md").read_text()
    assert set(re.findall(r"^\| `(\w+)\(", page, flags=re.MULTILINE)) == hooks(Method) | optional_hooks()


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_a_few_classes_deep(name: str) -> None:
    assert 1 < depth(METHODS[name]) <= MAX_DEPTH


def overrides_forward(node: ast.AST) -> bool:
    """Whether this assigns or deletes an attribute `forward`, in one of the ways that Python has."""
    match node:
        case ast.Attribute(attr="forward") | ast.Subscript(slice=ast.Constant(value="forward"), value=ast.Call()):
            return not isinstance(node.ctx, ast.Load)
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[_, ast.Constant(value="forward"), *_]):
            return True
        case ast.Call(func=ast.Attribute(attr="pop" | "update" | "setdefault", value=ast.Call()), args=[first, *_]):
            return "forward" in ast.unparse(first)
    return False


def overriding_files(sources: dict[str, str]) -> list[str]:
    return [path for path, text in sources.items() if any(map(overrides_forward, ast.walk(ast.parse(text))))]


def test_one_file_overrides_forwards() -> None:
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "src").rglob("*.py")}
    assert overriding_files(sources) == ["src/autosparse/compute/overrides.py"]


@pytest.mark.parametrize(
    ("line", "noticed"),
    [
        ("module.forward = f", True),
        ("a = model.layer.forward = f", True),
        ("del module.forward", True),
        ("setattr(module, 'forward', f)", True),
        ("delattr(module, 'forward')", True),
        ("vars(module)['forward'] = f", True),
        ("vars(module).pop('forward', None)", True),
        ("vars(module).update({'forward': f})", True),
        ("module.forward(x)", False),
        ("f.forward.__signature__ = g", False),
        ("'forward' in vars(module)", False),
        ("times['forward'] = 1", False),
    ],
)
def test_an_override_of_a_forward_is_noticed(line: str, noticed: bool) -> None:
    assert overriding_files({"file": line}) == (["file"] if noticed else [])


def test_no_paths_of_one_machine() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}" for path in project_files() for match in MACHINE_PATH.finditer(path.read_text())
    }
    assert found == set()


def test_the_path_pattern_sees_machine_paths() -> None:
    assert MACHINE_PATH.search("open('/" + "home/someone/data.csv')")
    assert MACHINE_PATH.search("C:" + "\\Users\\someone")
    assert not MACHINE_PATH.search("read /proc/cpuinfo, src/work/x or ../tmp/y")
