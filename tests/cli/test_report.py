"""`autosparse report`."""

import json
import webbrowser
from pathlib import Path

import pytest

from autosparse import cli


def write_run(folder: Path, status: str = "done") -> Path:
    folder.mkdir()
    facts = {"format": "autosparse run", "version": 1, "status": status, "name": folder.name, "method": "dense", "seed": 0}
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "recipe.yaml").write_text(f"name: {folder.name}\nmethod: {{name: dense}}\ntrain: {{epochs: 2}}\n")
    (folder / "metrics.jsonl").write_text(
        '{"epoch": 1, "loss": 1.0, "accuracy": 0.5}\n{"epoch": 2, "loss": 0.5, "accuracy": 0.75}\n'
    )
    if status == "done":
        (folder / "result.json").write_text('{"accuracy": 0.75, "seconds": 3.5}')
    return folder


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["report", *arguments])
    out, err = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, out, err


def test_one_run_gets_its_report_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "first")
    code, out, _ = call(capsys, str(run))
    assert code == 0
    assert f"report: {run / 'report' / 'report.html'}" in out
    assert "figures: 2 PNG files" in out
    assert "not finished" not in out
    assert "75.00 %" in (run / "report" / "report.html").read_text()


def test_several_runs_need_a_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write_run(tmp_path / name)) for name in ("first", "second")]
    code, _, err = call(capsys, *runs)
    assert code == 2
    assert err == "error: 2 runs were given, so say where their common report goes: --out DIR\n"
    code, _, _ = call(capsys, *runs, "--out", str(tmp_path / "both"))
    assert code == 0
    assert "2 runs compared" in (tmp_path / "both" / "report.html").read_text()
    assert not (tmp_path / "first" / "report").exists()


def test_an_unfinished_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, str(write_run(tmp_path / "open", status="stopped")))
    assert code == 0
    assert out.startswith(f"not finished yet: {tmp_path / 'open'}")


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, str(tmp_path))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {tmp_path} is not a run")
    assert err.count("\n") == 1


def test_open_shows_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    run = write_run(tmp_path / "first")
    assert call(capsys, str(run), "--open")[0] == 0
    assert opened == [(run / "report" / "report.html").resolve().as_uri()]


def test_the_folder_of_a_comparison_is_one_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "compared"
    folder.mkdir()
    for name in ("a", "b", "c"):
        write_run(folder / name)
    (folder / "logs").mkdir()
    (folder / "table.json").write_text('{"runs": {"c": {}, "a": {}}}')
    code, out, _ = call(capsys, str(folder))
    assert code == 0
    assert f"report: {folder / 'report' / 'report.html'}" in out
    text = (folder / "report" / "report.html").read_text()
    assert "3 runs compared" in text
    assert [text.index(f'<th scope="row">{name}</th>') for name in "cab"] == sorted(
        text.index(f'<th scope="row">{name}</th>') for name in "abc"
    )
