#!/usr/bin/env bash
# Builds everything and runs all tests; the last line is ctest's. Usage: tests/run.sh [ctest options]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/launch/packages.sh"

say "1/3  packages"
install_missing "${build_packages[@]}" "${run_packages[@]}" "${test_packages[@]}"

say "2/3  build"
generator=(-G Ninja)
[ -f "$root/build/CMakeCache.txt" ] && generator=()
cmake -S "$root" -B "$root/build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DEVENKEEL_BUILD_TESTS=ON
cmake --build "$root/build" --parallel "$(core_count)"

say "3/3  tests"
mpi_environment
# Tests that start ranks declare how many cores they fill.
export OMP_NUM_THREADS=1
ctest --test-dir "$root/build" --output-on-failure --parallel "$(core_count)" "$@" || failed=1
exit "${failed:-0}"
