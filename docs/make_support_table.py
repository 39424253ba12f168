"""Writes docs/supported.md from what the tests assert for every method: python docs/make_support_table.py"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from autosparse.methods import METHODS, list_methods

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "supported.md"

# Methods whose sharded runs that test covers (SHARDED in tests/robustness/distributed_worker.py); a new one must join them.
SHARDED_HERE = ("autosparse", "str", "st3", "st3+ga", "feather", "feather+ga")
# column: the test that proves a "yes"; [] at its end means that it has a case for every method that it covers
TESTS = {
    "AMP": "tests/every_method/test_training.py::test_steps_in_bfloat16_autocast[]",
    "compile": "tests/every_method/test_compile.py::test_a_compiled_step_equals_the_eager_one[]",
    "DDP": "tests/every_method/test_processes.py::test_two_ranks_stay_bit_identical",
    "FSDP2": "tests/robustness/test_distributed.py::test_fsdp2_equals_one_process",
    "accumulation": "tests/test_docs.py::test_accumulated_batches_equal_the_whole_batch[]",
    "resume": "tests/every_method/test_processes.py::test_resume_in_a_new_process_is_bit_exact",
    "other devices": "tests/devices/test_every_method.py::test_trains_as_on_the_cpu[]",
    "kernels": "tests/compute/test_compute.py::test_sparse_compute_trains_like_dense[]",
}
HEAD = """# Supported combinations

Written by `docs/make_support_table.py` from the tests: a "yes" means that a test runs this method in this combination.
Nothing here was run on CUDA, MPS or other real hardware. "Other devices" were tried on a pretended one: tensors
with a device type of their own, which refuse to mix with CPU tensors, count what the host reads and compute on the CPU inside.

| method | AMP | compile | DDP | FSDP2 | accumulation | resume | other devices | kernels |
|---|---|---|---|---|---|---|---|---|
"""
TAIL = """
What a "yes" means:

| | the test asserts |
|---|---|
| AMP | steps under bfloat16 autocast, weights kept in float32; skipped steps of a GradScaler with AutoSparse and STR |
| compile | one graph without breaks (`fullgraph=True`), a step equal to the eager one; a convolutional net and a Transformer |
| DDP | two gloo processes, bit-identical weights, masks, thresholds and reports, although the ranks see different images |
| FSDP2 | two gloo processes, equal to one process with the whole batch |
| accumulation | two half batches per step equal the whole batch |
| other devices | a run on the pretended device: losses as on the CPU, exact resume, one read per step unless masks change |
| kernels | every gradient of a few steps on the sparse kernels equals dense torch's to rounding |
| resume | a run that is stopped and resumed in a new process ends bit for bit like an uninterrupted one |

What a "no" means:

- FSDP2: methods that rank, mask or score whole weights are refused at `bind`, since a rank holds only a part of each: use DDP.
- SWAT keeps the largest activations of a batch, so half batches choose differently from the whole batch: it trains, but
  with other results.
- Kernels: `sp.compute` takes any method; only those marked were compared with dense torch by a test.

The integrations refuse what they cannot do: FSDP and DeepSpeed in the Hugging Face Trainer and in Lightning
([integrations](integrations.md)).
"""


def collected() -> set[str]:
    """The ids of all tests behind the columns, as pytest finds them."""
    files = sorted({test.partition("::")[0] for test in TESTS.values()})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *files]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        raise RuntimeError(f"pytest could not collect the tests:\n{found.stdout[-2000:]}{found.stderr[-2000:]}")
    return {line.strip() for line in found.stdout.splitlines() if "::" in line}


def is_tested(column: str, name: str, ids: set[str]) -> bool:
    test = TESTS[column]
    if not test.endswith("[]"):
        return any(each.partition("[")[0] == test for each in ids)
    case = re.compile(re.escape(test[:-2]) + r"\[" + re.escape(name) + r"(-[^\]]*)?\]")
    return any(case.fullmatch(each) for each in ids)


def cell(column: str, name: str, ids: set[str]) -> str:
    if column == "FSDP2" and name not in SHARDED_HERE:
        return "not tested" if METHODS[name]().traits.shardable else "no: refused"
    if column == "accumulation" and name == "swat":
        return "no: per batch"
    return "yes" if is_tested(column, name, ids) else "not tested"


def page(ids: set[str]) -> str:
    rows = [
        f"| [{name}](methods/{name}.md) | " + " | ".join(cell(column, name, ids) for column in TESTS) + " |"
        for name in list_methods()
    ]
    return HEAD + "\n".join(rows) + "\n" + TAIL


if __name__ == "__main__":
    PAGE.write_text(page(collected()), encoding="utf-8")
