"""The command itself: help, version, and how errors reach the user."""

import subprocess
import sys
from importlib import metadata

import pytest

from autosparse import cli


@pytest.fixture(autouse=True)
def no_debug_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOSPARSE_DEBUG", raising=False)


def run(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    return stopped.value.code


def test_help_lists_the_verbs_and_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in ("env", "flops", "methods", "--version", "--debug"))


@pytest.mark.parametrize("verb", ["env", "flops", "methods"])
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(verb, "--help") == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("verb", [*cli.VERBS, *(f"bench {name}" for name in cli.bench.BENCHMARKS)])
def test_examples_of_the_help_are_lines_to_copy(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = cli.bench.BENCHMARKS[verb.split()[1]] if " " in verb else cli.VERBS[verb]
    assert run(*verb.split(), "--help") == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    commands = [" ".join(line.split()) for line in shown.replace("\\\n", "").splitlines()]
    for example in (line.strip() for line in (module.__doc__ or "").splitlines() if line.startswith("  ")):
        assert example in commands


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"autosparse {metadata.version('autosparse')}\n"


def test_help_does_not_wait_for_heavy_imports() -> None:
    program = (
        "import sys\n"
        "from autosparse.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'rich', 'pydantic', 'yaml'} & set(sys.modules)\n"
        "sys.exit(f'imported for --help: {heavy}' if heavy else 0)\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_python_m_autosparse_is_the_command() -> None:
    finished = subprocess.run([sys.executable, "-m", "autosparse", "no-such-verb"], capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert "no-such-verb" in finished.stderr
    assert len(finished.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["flops"], ["flops", "resnet20", "--no-such-option"], ["env", "surplus"]])
def test_usage_errors_are_one_line_and_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [ValueError("alpha is 2;\n  allowed: [0, 1]"), TypeError("a"), RuntimeError("b"), OSError("c"), ImportError("d")],
)
def test_errors_of_users_are_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(error, monkeypatch)
    assert run("env") == 2
    assert capsys.readouterr().err == f"error: {' '.join(str(error).split())}\n"


def test_an_error_without_a_message_still_says_what_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(RuntimeError(), monkeypatch)
    assert run("env") == 2
    assert capsys.readouterr().err == "error: RuntimeError\n"


def test_our_own_defects_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(AssertionError("broken"), monkeypatch)
    with pytest.raises(AssertionError, match="broken"):
        cli.main(["env"])


@pytest.mark.parametrize("arguments", [["--debug", "env"], ["env", "--debug"]])
def test_debug_shows_the_traceback_from_any_place(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(ValueError("bad"), monkeypatch)
    with pytest.raises(ValueError, match="bad"):
        cli.main(arguments)


@pytest.mark.parametrize(("value", "traceback"), [("1", True), ("0", False), ("", False)])
def test_debug_by_environment(value: str, traceback: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOSPARSE_DEBUG", value)
    fail_with(ValueError("bad"), monkeypatch)
    with pytest.raises(ValueError if traceback else SystemExit):
        cli.main(["env"])


def fail_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the env verb raise `error`, as the library would in the middle of a verb."""

    def fail() -> None:
        raise error

    monkeypatch.setattr(cli.env, "environment", fail)
