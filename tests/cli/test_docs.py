"""`autosparse docs`, and that help texts point to pages which a pip user can reach with it."""

import re
from pathlib import Path

import pytest

from autosparse import cli
from autosparse.cli.docs import docs_folder

SOURCES = Path(cli.__file__).parents[1]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["docs", *arguments])
    captured = capsys.readouterr()
    assert stopped.value.code == code, captured.err
    return captured.err if code else captured.out


def test_the_pages_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = shown(capsys).splitlines()
    assert max(map(len, listed)) <= 80
    assert any(line.split()[:1] == ["get-started"] for line in listed)
    text = (docs_folder() / "get-started.md").read_text(encoding="utf-8")
    assert shown(capsys, "get-started") == shown(capsys, "docs/get-started.md") == text
    assert shown(capsys, "methods/rigl").startswith("# ")


def test_a_page_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'recipes'" in shown(capsys, "recipe", code=2)


def test_messages_point_to_pages_that_exist() -> None:
    named = {
        (path.name, page)
        for path in SOURCES.rglob("*.py")
        for page in re.findall(r"`?autosparse docs ([a-z][\w./-]*)", path.read_text(encoding="utf-8"))
    }
    assert len(named) >= 4
    for file, page in named - {("docs.py", "faq")}:
        assert (docs_folder() / f"{page}.md").is_file(), (file, page)
    # paths of a checkout mean nothing to who installed the package
    messages = [path for path in SOURCES.rglob("*.py") if re.search(r'[^"]docs/[\w-]+\.md', path.read_text(encoding="utf-8"))]
    assert [path.name for path in messages if path.parent.name != "export" or path.name != "format.py"] == []
