"""The page and the files: what is said, what is escaped, what is never overwritten."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autosparse.report import figures, read_run, write_report
from autosparse.report import page as pages
from autosparse.report.page import build_page

Maker = Callable[..., Path]
EVIL = "<script>window.hacked = 1</script>"


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def keys_of(html: str) -> list[str]:
    return re.findall(r'<figure [^>]*data-key="([^"]+)"', html)


def test_one_run(make_run: Maker) -> None:
    folder = make_run(result={"base_accuracy": 0.8})
    page = write_report([read_run(folder)], folder / "report")
    html = text_of(page)
    assert page == folder / "report" / "report.html"
    for shown in (
        "75.00 %",
        "dense 80.00 %: -5.00 points",
        "82.50 %",
        "330 of 400 weights are zero",
        "0.500",
        "0.382",
        "12 s",
    ):
        assert shown in html
    for shown in ("step 3: layer &#x27;b&#x27; keeps 0.5 %", "description: two layers", "a processor", "2030-01-02T03:04:05"):
        assert shown in html
    expected = ["accuracy", "loss", "learning-rate", "sparsity", "alpha", "layer-sparsity-over-time", "thresholds"]
    expected += ["train-flops", "test-flops", "controller", "layer-sparsity", "layer-flops"]
    assert keys_of(html) == expected
    assert {path.stem for path in page.parent.glob("*.png")} == set(expected)
    assert not [path for path in page.parent.iterdir() if path.name.startswith(".")]


def test_several_runs(make_run: Maker) -> None:
    runs = [
        make_run("one", name="one"),
        make_run("two", name="two", method="str"),
        make_run("base", name="base", method="dense"),
    ]
    html = build_page([read_run(run) for run in runs])
    assert "3 runs compared" in html
    for head in ("Base", "Top1(S)", "Drop %", "S %", "Train F", "Test F", "Seconds"):
        assert f">{head}</th>" in html
    assert keys_of(html)[0] == "frontier"
    assert html.count('<details class="run">') == 3


@pytest.mark.parametrize(("threads", "timed", "shown"), [(1, True, True), (2, True, False), (1, False, False)])
def test_accuracy_over_processor_time_is_that_of_runs_of_one_thread(
    make_run: Maker, threads: int, timed: bool, shown: bool
) -> None:
    times = {"processor_seconds": 3.0} if timed else {}
    lines = [{"epoch": epoch, "loss": 1.0, "lr": 0.1, "accuracy": 0.3 * epoch, "seconds": 6.0, **times} for epoch in (1, 2)]
    settings: dict[str, Any] = {"metrics": lines, "recipe": {"train": {"epochs": 2, "threads": threads}}}
    runs = [make_run("one", name="one", **settings), make_run("base", name="base", method="dense", **settings)]
    keys = keys_of(build_page([read_run(run) for run in runs]))
    assert "accuracy-over-seconds" in keys
    assert ("accuracy-over-processor-seconds" in keys) == shown
    assert "accuracy-over-seconds" not in keys_of(build_page([read_run(runs[0])])), "there is nothing to compare with"


def test_texts_are_escaped_everywhere(make_run: Maker) -> None:
    layer = {"name": EVIL, "kind": EVIL, "weights": 4, "zeros": 2, "sparsity": 0.5, "macs": 10}
    hostile = make_run(
        name=EVIL,
        method=EVIL,
        recipe={"description": EVIL, "method": {"name": EVIL, EVIL: EVIL}, EVIL: EVIL},
        info={"machine": {EVIL: EVIL}, "command": [EVIL], "message": EVIL, "started": EVIL},
        result={"events": [EVIL], "notes": [EVIL], "layers": [layer, {**layer, "name": "b"}], "macs": {EVIL: 10}},
    )
    unfinished = make_run("unfinished", name=EVIL, status="failed", info={"message": EVIL})
    for folders in ([hostile], [unfinished], [hostile, unfinished]):
        html = build_page([read_run(folder) for folder in folders])
        assert "<script>window" not in html
        assert html.count("</script>") == html.count("<script>") + html.count('<script type="application/json">')


def test_nothing_is_fetched_from_outside(make_run: Maker) -> None:
    html = build_page([read_run(make_run())], ["loss.png"])
    assert not re.findall(r"https?://|@import|url\((?!#)", html)
    assert {
        link for link in re.findall(r'(?:src|href)="([^"]*)"', html) if not link.endswith(".png") and link[0] != "#"
    } == set()


def test_an_unfinished_run_says_so(make_run: Maker) -> None:
    folder = make_run(status="stopped", epochs=1, info={"message": "stopped by Ctrl-C"})
    html = build_page([read_run(folder)])
    assert "This run is not finished (stopped): 1 of 2 epochs so far" in html
    assert "stopped by Ctrl-C" in html
    assert "layer-flops" not in keys_of(html)


def test_a_run_without_any_epoch_is_still_a_page(make_run: Maker) -> None:
    html = build_page([read_run(make_run(status="running", metrics=[]))])
    assert "0 of 2 epochs so far" in html
    assert keys_of(html) == []


def test_dense_and_translation_runs(make_run: Maker) -> None:
    dense = build_page([read_run(make_run("dense", method="dense"))])
    assert keys_of(dense) == ["accuracy", "loss", "learning-rate"]
    assert "Sparsity</span>" not in dense
    folder = make_run("words", recipe={"data": {"kind": "translation"}}, result={"bleu": 26.71})
    words = build_page([read_run(folder)])
    assert "Token accuracy" in words
    assert "26.71" in words


def test_real_runs_stay_small(trained: dict[str, Path]) -> None:
    runs = [read_run(folder) for folder in trained.values()]
    html = build_page(runs)
    assert len(html) < 500_000
    assert keys_of(html).count("thresholds") == 1  # RigL has none
    assert runs[0].dense is not None


def test_a_report_is_renewed_but_foreign_files_are_not(make_run: Maker, tmp_path: Path) -> None:
    run = read_run(make_run(method="dense"))
    page = write_report([run], tmp_path / "out")
    assert write_report([run], tmp_path / "out") == page
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("my own page")
    with pytest.raises(FileExistsError, match="not a report of ours"):
        write_report([run], tmp_path / "mine")
    assert (tmp_path / "mine" / "report.html").read_text() == "my own page"
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "loss.png").write_text("my own image")
    with pytest.raises(FileExistsError, match=r"loss\.png"):
        write_report([run], tmp_path / "images")
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["loss.png"]
    with pytest.raises(NotADirectoryError, match="is a file"):
        write_report([run], tmp_path / "mine" / "report.html")
    with pytest.raises(ValueError, match="at least one run"):
        write_report([], tmp_path / "none")


def interrupt_after(files: int, patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C once so many files have their real names."""
    move, done = os.replace, iter(range(files))

    def interrupted(source: Path, target: Path) -> None:
        if next(done, None) is None:
            raise KeyboardInterrupt
        move(source, target)

    patch.setattr("autosparse.common.files.os.replace", interrupted)


def test_a_report_interrupted_after_any_file_is_written_again(make_run: Maker, tmp_path: Path) -> None:
    run = read_run(make_run(method="dense"))
    whole = {path.name: path.read_bytes() for path in write_report([run], tmp_path / "whole").parent.iterdir()}
    assert len(whole) > 2
    for files in range(len(whole)):
        out = tmp_path / f"after-{files}"
        with pytest.MonkeyPatch.context() as patch:
            interrupt_after(files, patch)
            with pytest.raises(KeyboardInterrupt):
                write_report([run], out)
        assert len(list(out.iterdir())) == files
        write_report([run], out)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == whole


def test_a_report_written_by_another_process_meanwhile_is_renewed(make_run: Maker, tmp_path: Path) -> None:
    run, png = read_run(make_run(method="dense")), figures.png
    with pytest.MonkeyPatch.context() as patch:

        def after_another(chart: figures.Chart) -> bytes:
            patch.setattr(figures, "png", png)
            write_report([run], tmp_path / "r")
            return png(chart)

        patch.setattr(figures, "png", after_another)
        assert write_report([run], tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("dense", "value", "words"), [(15.0, "1.50x", "10 ms per step"), (8.0, "0.80x", "dense would have been faster")]
)
def test_the_speed_tile_shows_when_dense_was_faster(make_run: Maker, dense: float, value: str, words: str) -> None:
    speed = {"milliseconds": 10.0, "dense_milliseconds": dense, "skipping": 1, "layers": 2, "reasons": {"too small": 1}}
    layer = {"name": "a", "kind": "Linear", "weights": 10, "zeros": 5, "sparsity": 0.5, "computed": "dense: too small"}
    page = build_page([read_run(make_run(result={"speed": speed, "layers": [layer]}))])
    assert value in page
    assert words in page
    assert "1 of 2 layers skip zeros" in page
    assert "dense: too small" in page
    assert "Speed" not in build_page([read_run(make_run("older"))]), "runs of earlier versions have not measured it"


def test_the_header_shows_what_is_no_default() -> None:
    stored = {"name": "autosparse", "target_sparsity": 0.8, "beta": 1.0, "rescale": False, "alpha": 0.75}
    words = pages._method_words(SimpleNamespace(method="autosparse", recipe={"method": stored}))
    assert words == "<b>autosparse</b> <span>target_sparsity: 0.8, alpha: 0.75</span>"
    foreign = SimpleNamespace(method="theirs", recipe={"method": {"name": "theirs", "beta": 1.0}})
    assert "beta: 1.0" in pages._method_words(foreign)
