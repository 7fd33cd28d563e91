#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: builds against NVIDIA's own libraries, runs the device tests on the GPU, trains on it
# and compares with the CPU, records what the GPU answers to every instruction (for the emulator's tests), measures, and
# runs the device tests again under compute-sanitizer.
#
#   tests/run_gpu.sh [--seconds N]           N: at most so long, 600 without
#   tests/run_gpu.sh --pack FILE.tar.xz      for a GPU on a machine without packages, compilers or network: builds here, and
#                                            packs; to be unpacked there in the same commit's checkout, before the first form
#
# Every part has its limit in seconds, and one that fails or runs out of time does not
# keep the next from running; what there is no time for is left out. To commit afterwards:
# tests/golden/gpu_instructions.txt and the JSON files in docs/benchmarks/. What each part said is in build-gpu/logs/.
# Exits with 1 if anything failed or was not finished.
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
. "$root/launch/packages.sh"
. "$root/tests/gpu/use_packed.sh"
allowed='' pack=''
while [ $# -gt 0 ]; do
    case $1 in
        --seconds) allowed=${2:-} ;;
        --pack) pack=${2:-} ;;
        *) fail "takes --seconds N or --pack FILE.tar.xz, got: $*" ;;
    esac
    [ -n "${2:-}" ] || fail "$1: wants a value"
    shift 2
done
# Compiling has all the time that it takes where nothing else is done.
allowed=${allowed:-$([ -n "$pack" ] && echo 7200 || echo 600)}
[[ $allowed =~ ^[1-9][0-9]{0,5}$ ]] || fail "--seconds: got $allowed, want a number of seconds"

gpu_name='' gpu_count=0
if [ -z "$pack" ]; then
    # What is wrong with a driver nvidia-smi tells on standard output.
    gpu_names=$("${EVENKEEL_NVIDIA_SMI:-nvidia-smi}" --query-gpu=name --format=csv,noheader 2>/dev/null) || gpu_names=''
    gpu_name=$(head -n 1 <<<"$gpu_names" | tr -cd '[:alnum:] ._()+-')
    gpu_count=$(wc -l <<<"$gpu_names")
    [ -n "$gpu_name" ] || fail "no NVIDIA GPU here (nvidia-smi names none); tests/run.sh runs the tests without one"
else
    [ -d "$(dirname "$pack")" ] || fail "--pack $pack: there is no folder $(dirname "$pack")"
fi

build=$root/build-gpu
logs=$build/logs
# "NVIDIA H200" -> nvidia_h200
short_name=$(tr '[:upper:]' '[:lower:]' <<<"$gpu_name" | tr -cs 'a-z0-9' '_' | sed 's/_*$//')
results=$root/docs/benchmarks/$short_name
mkdir -p "$logs" "$(dirname "$results")"
export OMP_NUM_THREADS=1
parts=() states=() times=() json=''

# Whatever ends this ends what it has started, which timeout keeps out of the terminal's reach.
# shellcheck disable=SC2317
stop() {
    trap - INT TERM HUP
    # shellcheck disable=SC2046
    kill $(jobs -p) 2>/dev/null
    wait
    exit 130
}
trap stop INT TERM HUP

# part NAME SECONDS COMMAND...: runs it within its limit, with its output in a file, and remembers how it went.
part() {
    local limit
    limit=$(granted "$2") || { skip "$1" "no time left"; return 1; }
    printf '%-40s ' "$1"
    run_part "$1" "$limit" "${@:3}" &
    wait $!
    report "$1"
}

# What is left of the time, at most so many seconds; fails where that is nothing.
granted() {
    local left=$((allowed - SECONDS))
    [ "$left" -gt 0 ] && echo $((left < $1 ? left : $1))
}

log_of() { echo "$logs/${1// /_}.log"; }

# Runs a part, in a shell of its own, and leaves its state and its seconds beside the log. With `json` set, what it prints
# goes to that file.
run_part() {
    local name=$1 limit=$2 log began status state took
    shift 2
    log=$(log_of "$name")
    began=$(date +%s)
    : >"$log"
    timeout --kill-after=10 "$limit" "$@" >"${json:-$log}" 2>>"$log" &
    # shellcheck disable=SC2064
    trap "kill $!; exit 143" INT TERM HUP
    wait $!
    status=$? took=$(($(date +%s) - began))
    case $status in
        0) state=passed ;;
        124) state="not finished within $limit s" ;;
        137) state=$([ "$took" -ge "$limit" ] && echo "not finished within $limit s" || echo "killed, by lack of memory as a rule") ;;
        *) state="failed with status $status" ;;
    esac
    printf '%s\n%s\n' "$state" "$took" >"$log.state"
}

report() {
    local lines
    mapfile -t lines <"$(log_of "$1").state"
    note "$1" "${lines[@]}"
    [ "${lines[0]}" = passed ] && return
    tail -n 12 "$(log_of "$1")" | sed 's/^/    /'
    return 1
}

# job NAME COMMAND...: of those that `together` runs.
job_names=() job_lines=()
job() {
    job_names+=("$1")
    job_lines+=("$(printf '%q ' "${@:2}")")
}
# together SECONDS: the jobs so far at once, each as a part within that limit. They wait for the CPU more than for the GPU.
together() {
    local limit i
    if limit=$(granted "$1"); then
        for i in "${!job_names[@]}"; do
            eval "run_part \"\${job_names[i]}\" $limit ${job_lines[i]}" &
        done
        wait
    fi
    for i in "${!job_names[@]}"; do
        if [ -z "$limit" ]; then
            skip "${job_names[i]}" "no time left"
        else
            printf '%-40s ' "${job_names[i]}"
            report "${job_names[i]}"
        fi
    done
    job_names=() job_lines=()
}

note() {
    parts+=("$1") states+=("$2") times+=("$3")
    printf '%s (%s s)\n' "$2" "$3"
}

skip() {
    printf '%-40s ' "$1"
    note "$1" "not run: $2" 0
}

# Programs with device tests; in those that test the CPU too, the GPU's have it in their names.
test_programs=(attention/attention_test framework/framework_test framework/framework_cuda_test
               launch/launch_cuda_test model/model_test parallel/parallel_test)
filter_of() {
    case $1 in
        *_cuda_test) echo '--gtest_filter=*' ;;
        *) echo '--gtest_filter=*cuda*:*Cuda*' ;;
    esac
}
# device_tests NAME FILTER COMMAND...: a job for each program, with the command before it; attention's, which are most, in
# shares.
device_tests() {
    local name=$1 left_out=$2 program share
    shift 2
    for program in "${test_programs[@]}"; do
        local shares=1
        [ "$program" != attention/attention_test ] || shares=4
        for share in $(seq 0 $((shares - 1))); do
            job "$name${program#*/}$([ "$shares" = 1 ] || echo " $((share + 1)) of $shares")" \
                env GTEST_TOTAL_SHARDS="$shares" GTEST_SHARD_INDEX="$share" "$@" \
                "$build/tests/$program" "$(filter_of "$program")$left_out"
        done
    done
}

say "build"
if [ -z "$pack" ] && [ -e "$build/packed/root" ]; then
    echo "packed on another machine"
    use_packed "$build" "$root"
else
    command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
    command -v nvcc >/dev/null || fail "no nvcc here; install the CUDA toolkit"
    install_missing "${build_packages[@]}" "${test_packages[@]}"
    options=(-DCMAKE_BUILD_TYPE=Release -DEVENKEEL_BUILD_TESTS=ON -DEVENKEEL_CUDA=ON -DEVENKEEL_TEST_GPU=ON)
    [ -f "$build/CMakeCache.txt" ] || options+=(-G Ninja)
    programs=(evenkeel tests/distributed/cuda_training_test tests/gpu_emulator/instructions/instructions_test
              tests/gpu_emulator/instructions/record_instructions "${test_programs[@]/#/tests/}")
    part configure 60 cmake -S "$root" -B "$build" "${options[@]}" || fail "see $logs/configure.log"
    part build "$([ -n "$pack" ] && echo "$allowed" || echo 300)" \
        cmake --build "$build" --parallel "$(core_count)" --target "${programs[@]##*/}" || fail "see $logs/build.log"
    if [ -n "$pack" ]; then
        "$root/tests/gpu/pack.sh" "$build" "$pack" "${programs[@]}"
        exit
    fi
fi
evenkeel=$build/evenkeel

say "device tests on $gpu_name"
device_tests "" ""
together 100
mpi_environment
part "cuda_training_test" 40 mpirun -np 2 "$build/tests/distributed/cuda_training_test"
part "instructions_test" 60 "$build/tests/gpu_emulator/instructions/instructions_test"

say "training, against the CPU"
trained=$build/training
rm -rf "$trained"
mkdir -p "$trained"
# The project's own words and code: 1.7 MB.
find "$root/README.md" "$root/docs" "$root/attention" "$root/framework" "$root/model" "$root/parallel" \
    \( -name '*.md' -o -name '*.cpp' -o -name '*.cu' \) -print0 | LC_ALL=C sort -z | xargs -0 cat >"$trained/text"
# Heads that the CUDA kernels have; 20 steps of 16 sequences, in two micro-batches.
training=(train --config "$root/configs/quickstart.json" --set data.path="$trained/text" --set trainer.steps=20
          --set trainer.eval_interval=0 --set schedule.warmup_steps=5 --set schedule.peak_lr=1e-3
          --set model.attention.num_heads=4 --set model.attention.num_kv_heads=2 --set model.attention.head_dim=64
          --set parallel.tensor_parallel=1)
# bf16 keeps 8 bits of each number, 0.4 %, and each device rounds its products in its own order; a loss is a mean over
# 4096 tokens, in which that averages out. (One rank and two on the CPU are 0.0025 % apart.) The loss itself falls by
# almost half.
readonly tolerance=0.005
curves=()

# on_gpu NAME RANKS COMMUNICATION: trains on this many ranks, then compares with the run on the CPU.
on_gpu() {
    local name=$1 ranks=$2 run=$trained/${1// /_} launcher=() json
    [ "$ranks" = 1 ] || launcher=(mpirun -np "$ranks")
    part "train: $name" 60 "${launcher[@]}" "$evenkeel" "${training[@]}" --set device=cuda \
        --set parallel.tensor_parallel="$ranks" --set parallel.communication="$3" --set trainer.run_dir="$run" || return
    json=$run/curve.json
    part "losses: $name" 10 "$root/tests/compare_losses.sh" "$run" "$trained/cpu" "$tolerance"
    [ -s "$json" ] || echo null >"$json"
    curves+=("{\"run\": \"$name\", \"state\": \"${states[-1]}\", \"curve\": $(cat "$json")}")
}
if OMP_NUM_THREADS=$(core_count) part "train: CPU" 90 "$evenkeel" "${training[@]}" --set trainer.run_dir="$trained/cpu"; then
    on_gpu "one rank" 1 nccl
    on_gpu "two ranks, staged" 2 staged
    if [ "$gpu_count" -ge 2 ]; then
        on_gpu "two ranks, NCCL" 2 nccl
    else
        skip "train: two ranks, NCCL" "only one GPU here"
    fi
    {
        printf '{\n  "gpu": "%s",\n  "tolerance": %s,\n  "runs": [\n' "$gpu_name" "$tolerance"
        for i in "${!curves[@]}"; do
            printf '    %s%s\n' "${curves[i]}" "$([ "$((i + 1))" = ${#curves[@]} ] || echo ,)"
        done
        printf '  ]\n}\n'
    } >"${results}_training.json"
fi

say "what the GPU answers to every instruction"
recorded=$logs/gpu_instructions.txt
rm -f "$recorded"
part "recorder" 60 "$build/tests/gpu_emulator/instructions/record_instructions" "$recorded"
[ -s "$recorded" ] && cp "$recorded" "$root/tests/golden/gpu_instructions.txt"

# measured PART SECONDS FILE COMMAND...: keeps what the command prints if it is JSON.
measured() {
    local name=$1 limit=$2 file=$3 json
    shift 3
    json=$logs/${name// /_}.json
    part "$name" "$limit" "$@" || return
    if ! command -v python3 >/dev/null || system_python -m json.tool "$json" >/dev/null 2>&1; then
        cp "$json" "$file"
    else
        states[-1]="failed: what it printed is not JSON"
        printf '    %s\n' "${states[-1]}"
    fi
}

say "measurements"
measured "benchmark" 100 "$results.json" "$evenkeel" bench --device cuda --json
benchmark=${states[-1]}
# Eight layers of a billion parameters' model, 32768 tokens a step.
measured "training step" 60 "${results}_step.json" "$evenkeel" bench step --config "$root/configs/1b.json" --json \
    --set device=cuda --set model.num_layers=8 --set parallel.tensor_parallel=1 --set trainer.batch_size=16 \
    --set trainer.micro_batch_size=4 --seconds 10
if system_python -c "import torch; assert torch.cuda.is_available()" 2>/dev/null; then
    ours=()
    [ "$benchmark" != passed ] || ours=("$results.json")
    measured "PyTorch for comparison" 120 "${results}_pytorch.json" \
        env -u LD_LIBRARY_PATH python3 "$root/tests/gpu/compare_pytorch.py" "${ours[@]}" &&
        grep ' times as fast$' "$logs/PyTorch_for_comparison.log"
else
    skip "PyTorch for comparison" "python3 has no torch that sees a GPU"
fi

say "the device tests under compute-sanitizer"
sanitizer=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer)
# Errors of calls are what some tests are about, and tensors of many gigabytes what a tool cannot follow in time. Two tools
# at once, the more telling ones first.
for tools in "memcheck racecheck" "synccheck initcheck"; do
    for tool in $tools; do
        if [ -z "$sanitizer" ]; then
            skip "$tool" "no compute-sanitizer here"
            continue
        fi
        options=(--tool "$tool" --error-exitcode 3 --print-limit 20)
        [ "$tool" != memcheck ] || options+=(--report-api-errors no)
        device_tests "$tool of " "-*FarStrides*" "$sanitizer" "${options[@]}"
    done
    together 150
done

say "summary"
unfinished=0
{
    printf '{\n  "gpu": "%s",\n  "commit": "%s",\n  "parts": [\n' "$gpu_name" \
        "$(git -C "$root" rev-parse --short HEAD 2>/dev/null)"
    for i in "${!parts[@]}"; do
        printf '    {"part": "%s", "state": "%s", "seconds": %s}%s\n' "${parts[i]}" "${states[i]}" "${times[i]}" \
            "$([ "$((i + 1))" = ${#parts[@]} ] || echo ,)"
    done
    printf '  ]\n}\n'
} >"${results}_checks.json"
for i in "${!parts[@]}"; do
    case ${states[i]} in
        passed | "not run: no compute"* | "not run: python3"* | "not run: only one GPU"*) ;;
        *)
            unfinished=1
            printf '%s: %s\n' "${parts[i]}" "${states[i]}"
            ;;
    esac
done
[ "$unfinished" = 0 ] && echo "everything passed"
echo "results: ${results#"$root"/}*.json, tests/golden/gpu_instructions.txt; logs: ${logs#"$root"/}"
exit "$unfinished"
