#!/usr/bin/env bash
# The compiled core with GCC's sanitizers of addresses and undefined behaviour, under tests that reach it on small
# samples.
#
#     tests/support/sanitized.sh FOLDER [arguments of pytest]
#
# FOLDER, which is made, gets the build. PYTHON is the interpreter, which has pip, kcalib's dependencies, pytest and
# pytest-xdist (default: python3), CXX the compiler (c++). Ends with 1 where a test fails or a sanitizer finds something,
# which it says on standard error, with 0 where it finds nothing or is not installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mkdir -p "$1" && cd "$1" && pwd)
shift
python=${PYTHON:-python3}

runtimes=
for name in libasan.so libubsan.so libstdc++.so; do
  path=$("${CXX:-c++}" -print-file-name=$name)
  [ "$path" != $name ] || { echo "the compiler has no $name: sanitizers are left out"; exit 0; }
  runtimes="$runtimes $path"
done

# Code that is optimised less compiles faster, and few samples are to have threads, too.
CXXFLAGS="-O1 -g1 -DKCALIB_WORTH_A_THREAD=1 ${CXXFLAGS:-}" "$python" -m pip install -q --no-deps --upgrade \
  --target "$folder/site" . -Cbuild-dir="$folder/build" -Csetup-args=-Dbuildtype=debugoptimized \
  -Csetup-args=-Db_sanitize=address,undefined -Csetup-args=-Db_lundef=false

export PYTHONPATH=$folder/site PYTHONMALLOC=malloc OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1
# Reports go to files: what a process that ends at once has written lies in pytest's own.
rm -f "$folder"/report*
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:log_path=$folder/report
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:log_path=$folder/report
export LD_PRELOAD=$runtimes
"$python" -P - "$folder" <<'EOF'
import sys
from pathlib import Path

from kcalib import _native

path = Path(_native.__file__)
assert path.is_relative_to(sys.argv[1]), f"{path} is not what was built"
assert all(name in path.read_bytes() for name in (b"__asan_report_load8", b"__ubsan_handle")), "built without sanitizers"
EOF
if [ $# = 0 ]; then
  set -- tests/pairs/test_{backends,line,feature_sums,mixtures,staircases}.py tests/estimators/test_{skce,ece_mmce,scores}.py \
    tests/backend/test_{alignment,changing_arrays,exact_sums,resampling}.py tests/input/test_rows.py tests/streaming/test_{state,score_sums}.py
fi
# Left out: compilers and other processes, which would have the sanitizers, too; phases of 1e9 turns, whose last digits
# depend on which operations are fused.
found=0
"$python" -P -m pytest -q -n auto -p no:cacheprovider \
  -k 'not emulated and not cuda and not fork and not processes and not interrupt and not large_phases' "$@" || found=1
unset LD_PRELOAD
for report in "$folder"/report*; do
  [ ! -e "$report" ] || { found=1; cat "$report" >&2; }
done
exit $found
