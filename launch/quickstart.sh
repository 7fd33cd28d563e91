#!/usr/bin/env bash
# Trains a small QK-normed transformer on two tensor-parallel ranks on this machine, from nothing:
# installs what is missing, builds, trains on real text, compares with one rank, writes a report.
# Usage: launch/quickstart.sh        (as root, or with sudo, on Debian 12 or Ubuntu)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. launch/packages.sh

ranks=2
cores=$(core_count)
run=runs/quickstart
one_rank=runs/quickstart_one_rank
compare_steps=10
started=$SECONDS

say "1/5  packages"
install_missing "${build_packages[@]}" "${run_packages[@]}"
ready=$SECONDS

say "2/5  build (Release, the evenkeel program only; two to four minutes on two idle cores; follow it in build/log.txt)"
mkdir -p build
generator=(-G Ninja)
[ -f build/CMakeCache.txt ] && generator=()  # keeps the one that an earlier build chose
cmake -S . -B build "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DEVENKEEL_BUILD_TESTS=OFF \
    >build/log.txt 2>&1 || { cat build/log.txt >&2; fail "cmake failed"; }
cmake --build build --target evenkeel --parallel "$cores" >>build/log.txt 2>&1 ||
    { tail -40 build/log.txt >&2; fail "the build failed, see build/log.txt"; }
echo "build/evenkeel after $((SECONDS - ready)) s"

say "3/5  train on $ranks ranks"
launch/fortunes.sh runs/fortunes.txt
rm -rf "$run" "$one_rank"
mpi_environment
OMP_NUM_THREADS=$((cores > ranks ? cores / ranks : 1)) \
    mpirun -np $ranks --bind-to none build/evenkeel train --config configs/quickstart.json --set trainer.run_dir="$run"

say "4/5  the first $compare_steps steps again on one rank"
OMP_NUM_THREADS=$cores build/evenkeel train --config configs/quickstart.json \
    --set parallel.tensor_parallel=1 --set trainer.run_dir="$one_rank" \
    --set trainer.stop_at_step=$compare_steps --set trainer.eval_sequences=1 >build/one_rank.txt 2>&1 ||
    { cat build/one_rank.txt >&2; fail "training on one rank failed"; }
grep '^ranks\|^step' build/one_rank.txt  # the rest is as above

say "5/5  report"
build/evenkeel report "$run" --compare "$one_rank"
echo "done: $((SECONDS - ready)) s after the packages, $((SECONDS - started)) s in all"
