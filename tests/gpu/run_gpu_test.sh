#!/usr/bin/env bash
# tests/run_gpu.sh in a checkout of stand-ins: programs that were packed elsewhere, and a GPU that nvidia-smi makes up.
#   run_gpu_test.sh SOURCE_DIRECTORY
# shellcheck disable=SC2016
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root="$work/a checkout" build="$work/a checkout/build-gpu"
mkdir -p "$work/bin" "$root/tests/gpu" "$root/launch" "$root/docs" "$root/attention" "$root/framework" "$root/model" \
    "$root/parallel" "$root/configs" "$root/tests/golden" "$build/packed/bin"
cp "$source/tests/run_gpu.sh" "$source/tests/compare_losses.sh" "$root/tests"
cp "$source/tests/gpu/use_packed.sh" "$root/tests/gpu"
cp "$source/launch/packages.sh" "$root/launch"
echo text >"$root/README.md"
echo "$root" >"$build/packed/root"
echo abc >"$build/packed/commit"
echo 'export FROM_THE_PACK=1' >"$build/packed/environment"

fail() {
    echo "FAILED: $*"
    cat "$work/output" 2>/dev/null
    exit 1
}

# program PATH SCRIPT: one that notes how it was called.
program() {
    mkdir -p "$(dirname "$1")"
    printf '#!/usr/bin/env bash\necho "${0##*/} $*" >>"%s/calls"\n%s\n' "$work" "$2" >"$1"
    chmod +x "$1"
}
tests="attention/attention_test framework/framework_test framework/framework_cuda_test launch/launch_cuda_test
       model/model_test parallel/parallel_test distributed/cuda_training_test gpu_emulator/instructions/instructions_test"
for test in $tests; do program "$build/tests/$test" 'true'; done
program "$build/tests/gpu_emulator/instructions/record_instructions" 'echo recorded >"$1"'
# Trains: losses of three steps into the run's directory.
program "$build/evenkeel" '
[ "$1" = bench ] && { echo "{\"norm\": [], \"attention\": []}"; exit; }
[ -n "${FROM_THE_PACK:-}" ] || exit 9
for argument; do case $argument in trainer.run_dir=*) run=${argument#*=} ;; esac; done
mkdir -p "$run"
for step in 1 2 3; do echo "{\"step\":$step,\"loss\":$((9 - step)).0}"; done >"$run/metrics.jsonl"'
program "$build/packed/bin/mpirun" 'shift 2; exec "$@"'
program "$work/bin/nvidia-smi" 'echo "NVIDIA H999"'
program "$work/bin/compute-sanitizer" 'while [ "${1#--}" != "$1" ]; do [ "$1" = --report-api-errors ] && echo memcheck >"'"$work"'/quiet"; shift 2; done; exec "$@"'
program "$work/bin/python3" '[ "$2" = json.tool ] && [ -s "$3" ]' # without PyTorch
export PATH=$work/bin:$PATH
unset EVENKEEL_NVIDIA_SMI

run() {
    rm -f "$work/calls"
    status=0
    "$root/tests/run_gpu.sh" "$@" >"$work/output" 2>&1 || status=$?
}
says() { grep -q -- "$1" "$work/output" || fail "does not say: $1"; }

run
[ "$status" = 0 ] || fail "status $status"
says "packed on another machine"
says "everything passed"
says "train: two ranks, NCCL .*not run: only one GPU here"
says "PyTorch for comparison .*not run: python3 has no torch"
results=$root/docs/benchmarks/nvidia_h999
for file in "$results.json" "${results}_step.json" "${results}_training.json" "${results}_checks.json" "$root/tests/golden/gpu_instructions.txt"; do
    [ -s "$file" ] || fail "no $file"
done
grep -q '"gpu": "NVIDIA H999"' "${results}_checks.json" || fail "the checks do not name the GPU"
grep -q '"largest_relative_difference": 0' "${results}_training.json" || fail "losses are not compared"
# Attention's tests in four shares, once by themselves and once under each of four tools.
[ "$(grep -c '^attention_test ' "$work/calls")" = 20 ] || fail "attention_test was not run 20 times"
grep -q '^attention_test --gtest_filter=\*cuda\*:\*Cuda\*-\*FarStrides\*$' "$work/calls" || fail "the tools run far strides"
[ -e "$work/quiet" ] || fail "memcheck reports errors of calls that tests provoke"

# A checkout at another commit than the programs'.
grep -q WARNING "$work/output" && fail "a folder that is no repository is said to be at a commit"
mkdir "$root/.git"
program "$work/bin/git" 'echo 0123456789'
run
says "WARNING: they were packed at commit abc, and $root is at 012345678$"
rm -r "$root/.git" "$work/bin/git"

# A test that fails, and one that hangs: both are named, the rest goes on, and the end is in time.
program "$build/tests/model/model_test" 'echo "what went wrong"; exit 3'
program "$build/tests/parallel/parallel_test" 'sleep 60'
program "$build/tests/launch/launch_cuda_test" 'kill -9 $$'
SECONDS=0
run --seconds 4
[ "$SECONDS" -le 20 ] || fail "took $SECONDS s of 4"
[ "$status" = 1 ] || fail "status $status"
says "model_test .*failed with status 3"
says "what went wrong"
says "launch_cuda_test .*killed"
says "parallel_test .*not finished within [1-4] s"
says "not run: no time left"
grep -q '"part": "model_test", "state": "failed with status 3"' "${results}_checks.json" || fail "the checks do not say what failed"

# What is not there is named.
# A driver that has no GPU to name says so in place of a name.
program "$work/bin/nvidia-smi" 'echo "NVIDIA-SMI has failed"; exit 9'
run
[ "$status $(wc -l <"$work/output")" = "1 1" ] || fail "status $status of a failed driver"
program "$work/bin/nvidia-smi" 'echo "NVIDIA H999"'

# Ended, it ends what it has started, several at once or one.
for test in parallel/parallel_test distributed/cuda_training_test; do
    for other in $tests; do program "$build/tests/$other" 'true'; done
    rm -f "$work/pid"
    program "$build/tests/$test" "echo \$\$ >'$work/pid'; exec sleep 60"
    setsid "$root/tests/run_gpu.sh" >"$work/output" 2>&1 &
    for _ in $(seq 50); do [ -s "$work/pid" ] && break; sleep 0.1; done
    sleeping=$(cat "$work/pid") || fail "$test was not begun"
    kill $!
    wait $! && fail "status 0 where it was ended"
    for _ in $(seq 50); do kill -0 "$sleeping" 2>/dev/null || break; sleep 0.1; done
    ! kill -0 "$sleeping" 2>/dev/null || fail "$test goes on after the script"
done

mv "$root" "$work/moved"
mkdir "$root"
root=$work/moved run
[ "$status" = 1 ] || fail "status $status"
says "which is none"
for wrong in "--seconds" "--seconds x" "--pack" "now"; do
    # shellcheck disable=SC2086
    root=$work/moved run $wrong
    [ "$status $(wc -l <"$work/output")" = "1 1" ] || fail "$wrong: status $status, or more than a line"
done
echo "passed"
