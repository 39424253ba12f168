"""`autosparse methods`."""

import json

import pytest

import autosparse
from autosparse import cli


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["methods", *arguments])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_json_describes_every_registered_method(capsys: pytest.CaptureFixture[str]) -> None:
    described = json.loads(shown(capsys, "--json"))
    assert [one["name"] for one in described] == list(autosparse.list_methods())
    for one in described:
        assert set(one) == {*cli.methods.COLUMNS, "doc"}
        assert all(str(value).strip() for value in one.values()), one
        assert 1980 < int(one["year"]) < 2100
        assert one["budget"] in ("learned", "budgeted")


def test_the_table_has_one_unbroken_line_a_method_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys).splitlines()
    for name in autosparse.list_methods():
        assert sum(line.split()[:1] == [name] for line in lines) == 1
    assert lines[0].split()[:2] == ["name", "year"] or lines[1].split()[:2] == ["name", "year"]


def test_the_table_fits_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert max(map(len, shown(capsys).splitlines())) <= 80


def test_one_method_is_described_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "autosparse")
    assert max(map(len, text.splitlines())) <= 80
    for fact in ("2304.06941", "alpha * G", "2 f_S + f_D", "learned budgets, 2023"):
        assert fact in " ".join(text.split())
    assert [one["name"] for one in json.loads(shown(capsys, "rigl", "--json"))] == ["rigl"]


def test_authors_are_whole_names(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys)
    for names in ("Vanderschueren et al.", "Glentis Georgoulakis et al.", "Feather (BMVC 2023)", "Dettmers and Zettlemoyer"):
        assert f" {names}\n" in text
    assert "..." not in text
