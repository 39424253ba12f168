#!/usr/bin/env bash
# Builds the kernels with AddressSanitizer and UndefinedBehaviorSanitizer and runs their tests on them.
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${PYTHON:-python}"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"$python" -m autosparse.kernels.build --into "$folder" --sanitize address,undefined

# Python itself is not instrumented: the runtime must come first, and what Python leaves allocated at exit is not ours.
export LD_PRELOAD="$(g++ -print-file-name=libasan.so):$(g++ -print-file-name=libubsan.so)"
export ASAN_OPTIONS=detect_leaks=0
export UBSAN_OPTIONS=print_stacktrace=1
export AUTOSPARSE_KERNELS_DIR="$folder"
export OMP_NUM_THREADS=2
"$python" -m pytest -q --capture=sys -p no:cacheprovider -m "not slow" \
  tests/kernels/test_linear.py tests/kernels/test_convolution.py tests/kernels/test_compressed.py tests/kernels/test_fused.py tests/kernels/test_threshold.py tests/kernels/test_bfloat16.py \
  tests/kernels/test_inference_library.py tests/serving/test_program.py tests/serving/test_byte_program.py tests/serving/test_int8.py tests/serving/test_decoder_native.py "$@"
