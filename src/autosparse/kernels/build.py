"""`python -m autosparse.kernels.build`: compile the native library and put it beside the package."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from autosparse.common.files import whole_file
from autosparse.kernels.library import FILE_NAME

SOURCES = Path(__file__).parent / "native"
PARTS = ("training", "inference")
COMPILERS = ("c++", "g++", "clang++")
# as in CMakeLists.txt, for machines without cmake
COMMON_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fopenmp",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-ffp-contract=fast",
)
AVX2_FLAGS = ("-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mpopcnt")
AVX512_FLAGS = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
X86_FLAGS = {"avx2": AVX2_FLAGS, "avx512": (*AVX2_FLAGS, *AVX512_FLAGS)}


def build(folder: Path | None = None, sanitize: str = "") -> Path:
    """Compile with cmake if it is there, else with the C++ compiler alone; the finished library is moved into place at once."""
    target = (folder or Path(__file__).parent) / FILE_NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        if shutil.which("cmake"):
            _with_cmake(work, sanitize)
        else:
            _with_compiler(work, sanitize)
        # a running process keeps the old library, a starting one gets the new
        with whole_file(target) as beside:
            shutil.copyfile(work / FILE_NAME, beside)
    return target


def _with_cmake(work: Path, sanitize: str) -> None:
    _run(["cmake", "-S", str(SOURCES), "-B", str(work), "-DCMAKE_BUILD_TYPE=Release", f"-DAUTOSPARSE_SANITIZE={sanitize}"])
    _run(["cmake", "--build", str(work), "--parallel", "2"])


def _with_compiler(work: Path, sanitize: str) -> None:
    compiler = os.environ.get("CXX") or next((name for name in COMPILERS if shutil.which(name)), None)
    if compiler is None:
        raise RuntimeError(f"no C++ compiler found; looked for cmake, $CXX, {', '.join(COMPILERS)}")
    extra = ["-g", f"-fsanitize={sanitize}", "-fno-sanitize-recover=all"] if sanitize else []
    sets = {"portable": (), **(X86_FLAGS if platform.machine().lower() in ("x86_64", "amd64") else {})}
    flags = {"dispatch": (), **{f"{part}/{name}": sets[name] for part in PARTS for name in sets}}
    flags |= {f"training/{name}_bfloat16": sets[name] for name in sets if name != "portable"}
    if "avx512" in sets:
        flags["training/avx512_paired"] = (*sets["avx512"], "-mavx512bf16")
    objects = {name: str(work / f"{name.replace('/', '_')}.o") for name in flags}
    for name, target in objects.items():
        _run([compiler, *COMMON_FLAGS, *flags[name], *extra, f"-I{SOURCES}", "-c", f"{SOURCES / name}.cpp", "-o", target])
    _run([compiler, "-shared", "-fopenmp", *extra, *objects.values(), "-o", str(work / FILE_NAME)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m autosparse.kernels.build", description=__doc__)
    parser.add_argument("--into", type=Path, default=None, help="folder for the library; the package's own by default")
    parser.add_argument("--sanitize", default="", help="sanitizers to build with, such as address,undefined")
    options = parser.parse_args()
    try:
        print(f"built {build(options.into, options.sanitize)}")
    except (RuntimeError, OSError) as error:
        print(f"the native kernels were not built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
