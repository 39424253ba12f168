"""The paper's tables with ours beside them."""

from __future__ import annotations

from autosparse.experiments.paper import tables
from autosparse.experiments.paper.small import Small
from autosparse.experiments.runner import Outcome

from .parts import result

SCALE = Small(["data.path=here"])


def outcomes(rows: list[tables.TableRow], **facts: float) -> dict[str, Outcome]:
    """Dense runs at 100 %, sparse ones at 97 %."""
    found = {}
    for row in rows:
        found |= {cell.name: Outcome("done", result=result(1.0, 0.0, **facts)) for cell in row.bases}
        found |= {cell.name: Outcome("done", result=result(0.97, 0.8, **facts)) for cell in row.cells}
    return found


def test_ours_and_the_papers_stand_side_by_side() -> None:
    rows = tables.planned("table1", SCALE)
    table = tables.table_of("table1", rows, outcomes(rows), SCALE)
    assert table.headings[:6] == ("method", "setting", "Base", "paper", "Top1(S)", "paper")
    assert len(table.rows) == 16 + 3  # STR's three a second time
    assert table.rows[8] == (
        *("AutoSparse", "alpha0=.75, alpha=0@epoch90", "100.00 ± 0.00", "77.01", "97.00 ± 0.00", "76.77"),
        *("3.00", "0.31", "80.00", "79.67", "0.500", "0.51", "0.200", "0.140"),
    )
    assert table.rows[5][11] == ""  # the paper has no Train F of DST
    assert table.rows[7] == (
        *("STR with our ramp", "target_sparsity; not in the paper", "100.00 ± 0.00", "", "97.00 ± 0.00", ""),
        *("3.00", "", "80.00", "", "0.500", "", "0.200", ""),
    )
    assert table.notes[0] == "cpu scale: digits, small_conv of width 8 (for ResNet-50), 3 seeds"
    assert "Steered to the sparsity that the paper printed for the row: STR with our ramp, AutoSparse." in table.notes


def test_a_drop_that_the_paper_left_out_is_worked_out() -> None:
    rows = tables.planned("table5", SCALE)
    table = tables.table_of("table5", rows, outcomes(rows), SCALE)
    assert table.rows[0][7] == "0.35"  # 100 (77.01 - 76.74) / 77.01
    assert "width 8" in table.notes[0]
    assert "width 4" in table.notes[0]


def test_a_row_that_failed_says_why() -> None:
    rows = tables.planned("table2", SCALE)
    found = outcomes(rows)
    for cell in rows[0].cells:
        found[cell.name] = Outcome("failed", "the loss is nan")
    table = tables.table_of("table2", rows, found, SCALE)
    assert table.rows[0][-1] == "FAILED: the loss is nan"
    assert table.rows[0][4] == ""
    assert table.rows[1][-1] == ""
    assert table.rows[1][4] == "97.00 ± 0.00"


def test_translation_is_judged_by_bleu() -> None:
    rows = tables.planned("table4", SCALE)
    scored = outcomes(rows, bleu=26.0)
    table = tables.table_of("table4", rows, scored, SCALE)
    assert table.headings[4] == "BLEU (S)"
    assert table.rows[0][:2] == ("STR", "s0=-20, decay 0.01")
    assert table.notes[0] == "cpu scale: Multi30k, multi30k-transformer, 8 epochs, 3 seeds"
    assert "multi30k-transformer, 7 epochs" in Small(["data.path=here", "train.epochs=7"]).caption(["wmt14"], 1)
    assert table.rows[0][2:6] == ("26.00 ± 0.00", "27.83", "26.00 ± 0.00", "27.49")
    assert tables.missing_bleu(rows, scored) == []
    unscored = outcomes(rows)
    assert len(tables.missing_bleu(rows, unscored)) == 9
    assert tables.table_of("table4", rows, unscored, SCALE).rows[0][4] == ""
