#!/usr/bin/env bash
# SIGKILL of a random rank at a random moment, again and again: every restart goes on from the newest checkpoint, which is
# whole, and a run that comes to its end has the weights and moments of one that nobody disturbed, bit for bit.
#   kill_test.sh PROGRAM MPIEXEC [KILLS [SEED]]
# Every other kill waits for a checkpoint that is being written. A run that comes to its end before all kills are done is
# followed by another one. Ends only the processes that it has started.
set -euo pipefail
program=$(realpath "$1")
mpiexec=$2
kills=${3:-3}
RANDOM=${4:-7}  # seeds it
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none

# In memory where there is room: what a kill leaves behind does not depend on the disk, and a checkpoint a step is hard on it.
place=${TMPDIR:-/tmp}
[ -n "${TMPDIR:-}" ] || [ ! -w /dev/shm ] || [ "$(df --output=avail /dev/shm | tail -1)" -lt 500000 ] || place=/dev/shm
work=$(mktemp -d -p "$place")
job=
trap '[ -z "$job" ] || kill -KILL "$job" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
seq -f "Evenkeel reads line %.0f." 1 600 >text.txt
cat >config.json <<'JSON'
{"model": {"num_layers": 2, "width": 64, "feed_forward_width": 128, "max_seq_len": 64,
           "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32}},
 "data": {"path": "text.txt"},
 "parallel": {"tensor_parallel": 2},
 "trainer": {"steps": 40, "batch_size": 8, "micro_batch_size": 4, "seq_len": 64, "eval_sequences": 4,
             "checkpoint_interval": 1}}
JSON

fail() {
    echo "FAILED: $*"
    cat log 2>/dev/null || true
    exit 1
}
start() {  # RUN: in the background, its process in `job`
    "$mpiexec" -np 2 "$program" train --config config.json --set trainer.run_dir="$1" \
        --set trainer.resume=true >log 2>&1 &
    job=$!
}
finish() {  # waits for the job; its status in `status`
    status=0
    wait "$job" || status=$?
    job=
}
newest() {  # RUN: the name of its newest checkpoint that was committed
    local found=("$1"/checkpoints/step_????????)
    [ ! -d "${found[-1]}" ] || echo "${found[-1]##*/}"
}
hashes() { (cd "$1/checkpoints/$(newest "$1")" && sha256sum ./*.safetensors); }
pause() { sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"; }  # milliseconds
random() { echo $(((RANDOM << 15 | RANDOM) % $1)); }

began=$(date +%s%3N)
start undisturbed
finish
[ "$status" = 0 ] || fail "the undisturbed run: status $status"
span=$(($(date +%s%3N) - began))
hashes undisturbed >want
echo "the undisturbed run took $span ms"

# Whether a checkpoint is being written.
is_writing() { compgen -G "$1/checkpoints/*.tmp" >/dev/null; }

run=0 killed=0 resumed=0 writing=0 finished=0
while [ "$killed" -lt "$kills" ]; do
    before=$(newest "run$run")
    start "run$run"
    if [ $((killed % 2)) = 0 ]; then
        pause "$(random "$span")"
    else
        pause "$(random $((span / 2)))"
        while kill -0 "$job" 2>/dev/null && ! is_writing "run$run"; do sleep 0.002; done
        pause "$(random 20)"
    fi
    # The ranks are mpirun's children; before it has started both there is nobody to kill.
    ranks=()
    while kill -0 "$job" 2>/dev/null; do
        mapfile -t ranks < <(pgrep -P "$job" -f train || true)
        [ ${#ranks[@]} -lt 2 ] || break
        sleep 0.01
    done
    victim=$(random 2)
    if [ ${#ranks[@]} = 2 ] && kill -KILL "${ranks[$victim]}" 2>/dev/null; then
        hit=1
    else
        hit=0
    fi
    finish
    # Only what a rank has died in the middle of is left behind.
    torn=0
    [ "$status" = 0 ] || ! is_writing "run$run" || torn=1
    if [ -n "$before" ]; then
        grep -q "resuming from .*$before" log || [ "$status" != 0 ] || fail "did not resume from $before"
        if grep -q "resuming from " log; then
            grep -q "resuming from .*$before" log || fail "did not resume from the newest, $before"
            resumed=$((resumed + 1))
        fi
    fi
    ! grep -qE "not as it was written|damaged|no checkpoint" log || fail "a checkpoint is not whole"
    if [ "$status" = 0 ]; then
        hashes "run$run" | cmp -s - want || fail "run $run: other weights than the undisturbed run"
        finished=$((finished + 1))
        rm -rf "run$run"
        run=$((run + 1))
    elif [ "$hit" = 1 ]; then
        killed=$((killed + 1))
        writing=$((writing + torn))
        echo "kill $killed: rank $victim, status $status, run $run from ${before:-its start} to $(newest "run$run")$([ $torn = 0 ] || echo ", one being written")"
    else
        fail "status $status of a run that nobody disturbed"
    fi
done

before=$(newest "run$run")
start "run$run"
finish
[ "$status" = 0 ] || fail "the last restart: status $status"
[ -z "$before" ] || grep -q "resuming from .*$before" log || fail "did not resume from $before"
hashes "run$run" | cmp -s - want || fail "run $run: other weights than the undisturbed run"
echo "passed: $killed kills, $writing of them while a checkpoint was written, $resumed restarts resumed;" \
    "$((finished + 1)) runs ended with the bits of the undisturbed one"
