#!/usr/bin/env bash
# launch/slurm.sbatch and launch/mpirun.sh with stand-ins for what they call, which write down how they were called:
#   launchers_test.sh SOURCE_DIRECTORY
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
export PATH=$work/bin:$PATH CALLS=$work/calls STATUS=0 DOCTOR=0 EVENKEEL=the/program STATUS_FILE=$work/77.status

fail() {
    echo "FAILED: $*"
    cat "$CALLS" "$work/output" 2>/dev/null
    exit 1
}

# srun and mpirun: the status that the test asks for, of the doctor or of the run.
for name in srun mpirun; do
    cat >"$work/bin/$name" <<'FAKE'
#!/usr/bin/env bash
echo "${0##*/} $*" >>"$CALLS"
echo "threads $OMP_NUM_THREADS" >>"$CALLS"
case " $* " in *" doctor "*) exit "$DOCTOR" ;; esac
# What ranks say of themselves before they are killed.
[ -z "${OWN:-}" ] || printf 'process %s on n0: exit status %s\n' 3 "$OWN" 0 "$OWN" >>"$EVENKEEL_STATUS_FILE"
exit "$STATUS"
FAKE
done
cat >"$work/bin/scontrol" <<'FAKE'
#!/usr/bin/env bash
echo "scontrol $*" >>"$CALLS"
FAKE
# sbatch: reads the script's options as Slurm does, then runs it as a job of the options on its own command line.
cat >"$work/bin/sbatch" <<'FAKE'
#!/usr/bin/env bash
options=()
while [[ $1 == --* ]]; do options+=("$1"); shift; done
script=$1
shift
while read -r line; do
    [[ $line == "#"* || -z $line ]] || break  # Slurm stops at the first command
    [[ $line != "#SBATCH "* ]] || options+=("${line#\#SBATCH }")
done <"$script"
printf 'option %s\n' "${options[@]}" >>"$CALLS"
SLURM_JOB_ID=77 SLURM_CPUS_PER_TASK=8 bash "$script" "$@"
FAKE
chmod +x "$work"/bin/*

# job STATUS ARGUMENTS ..: submits, wants that status.
job() {
    local status=0
    rm -f "$CALLS"
    sbatch --nodes=4 "$source/launch/slurm.sbatch" "${@:2}" >"$work/output" 2>&1 || status=$?
    [ "$status" = "$1" ] || fail "slurm.sbatch: status $status, want $1"
}
called() { grep -qF -- "$1" "$CALLS" || fail "no call: $1"; }
not_called() { ! grep -qF -- "$1" "$CALLS" || fail "called: $1"; }

job 0 configs/a.json data.path=TEXT "trainer.run_dir=runs/a b"
called "option --signal=USR1@300"
called "option --requeue"
called "option --open-mode=append"
called "srun --mpi=pmix --kill-on-bad-exit=1 --wait=60 --cpu-bind=cores the/program doctor --config configs/a.json"
called "the/program train --config configs/a.json --set trainer.resume=true --set data.path=TEXT --set trainer.run_dir=runs/a b"
called "threads 8"
not_called scontrol

# What the doctor finds wrong ends the job before the run; after a restart it is not asked again.
DOCTOR=1 job 1 configs/a.json
not_called " train "
DOCTOR=1 SLURM_RESTART_COUNT=1 job 0 configs/a.json
called " train "

# Ended by a signal, a lost rank, a killed one: once more. Failed or misused: not.
for status in 3 4 137 143; do
    STATUS=$status job 0 configs/a.json
    called "scontrol requeue 77"
done
for status in 1 2; do
    STATUS=$status job $status configs/a.json
    not_called scontrol
done
# srun's 137 of ranks that it had to kill after another one had failed by itself.
for own in 1 2 5; do
    OWN=$own STATUS=137 job $own configs/a.json
    not_called scontrol
    [ ! -e "$work/77.status" ] || fail "the file of statuses stays"
done
for own in 3 4; do
    OWN=$own STATUS=137 job 0 configs/a.json
    called "scontrol requeue 77"
done
# Of an earlier start, which was killed before it could remove it.
echo "process 7 on n0: exit status 1" >"$work/77.status"
STATUS=137 job 0 configs/a.json
called "scontrol requeue 77"

STATUS=4 SLURM_RESTART_COUNT=20 job 4 configs/a.json
not_called scontrol
STATUS=4 SLURM_RESTART_COUNT=20 RESTARTS=21 job 0 configs/a.json
called "scontrol requeue 77"
status=0
sbatch "$source/launch/slurm.sbatch" >"$work/output" 2>&1 || status=$?
[ "$status" = 2 ] || fail "slurm.sbatch without arguments: status $status"
grep -q "^usage: sbatch" "$work/output" || fail "slurm.sbatch does not tell how to use it"

# mpirun.sh HOSTS ..
start() {
    local status=0
    rm -f "$CALLS"
    "$source/launch/mpirun.sh" "${@:2}" >"$work/output" 2>&1 || status=$?
    [ "$status" = "$1" ] || fail "mpirun.sh: status $status, want $1"
}
printf '# two of them\nn0 slots=8\n\nn1 slots=6 max_slots=8\nn2\n' >"$work/hosts"
NETWORK=10.0.0.0/24 THREADS=3 NCCL_SOCKET_IFNAME="=eth0" start 0 "$work/hosts" configs/a.json data.path=TEXT
called "mpirun -np 15 --hostfile $work/hosts --map-by slot --bind-to none"
called "--mca btl_tcp_if_include 10.0.0.0/24 --mca oob_tcp_if_include 10.0.0.0/24"
called "-x NCCL_SOCKET_IFNAME"
called "-x OMP_NUM_THREADS"
called "the/program doctor --config configs/a.json --set data.path=TEXT"
called "the/program train --config configs/a.json --set trainer.resume=true --set data.path=TEXT"
called "threads 3"
start 0 "$work/hosts" configs/a.json
not_called if_include
DOCTOR=1 start 1 "$work/hosts" configs/a.json
not_called " train "
STATUS=4 start 4 "$work/hosts" configs/a.json
[ "$(tail -n 1 "$work/output")" = "status 4: the run was asked to end; the same command goes on" ] ||
    fail "mpirun.sh does not say last how the run has ended"
# As mpirun reads them.
printf 'n0 slots = 2 # of four\r\nn1 slots= 3 max-slots =4\r\n\r\n' >"$work/hosts"
start 0 "$work/hosts" configs/a.json
called "mpirun -np 5 --hostfile"
for line in 'n1 slots=two' 'n1 slots=0' 'n1 slots' 'n1 n2' 'n1 slotz=2' 'slots=2'; do
    printf 'n0 slots=8\n%s\n' "$line" >"$work/hosts"
    start 2 "$work/hosts" configs/a.json
    [ ! -e "$CALLS" ] || fail "mpirun is called for $line"
    grep -q "hosts:2: got \"$line\", want a line such as" "$work/output" || fail "$line: not refused by its number"
done
for none in "$work/nohosts" "$work"; do
    start 2 "$none" configs/a.json
    grep -q "^$none: no host file that can be read; want lines" "$work/output" || fail "$none: not told as no host file"
    ! grep -q awk "$work/output" || fail "$none: awk speaks"
done
printf 'n0 slots=8\n' >"$work/hosts"

# SIGTERM reaches mpirun as SIGUSR1, and its status is the script's.
cat >"$work/bin/mpirun" <<'FAKE'
#!/usr/bin/env bash
case " $* " in *" doctor "*) exit 0 ;; esac
trap 'exit 4' USR1
trap 'exit 9' TERM
touch "$CALLS.started"
for ((i = 0; i < 300; ++i)); do sleep 0.1; done
FAKE
"$source/launch/mpirun.sh" "$work/hosts" configs/a.json >"$work/output" 2>&1 &
script=$!
while [ ! -e "$CALLS.started" ]; do sleep 0.1; done
kill -TERM "$script"
status=0
wait "$script" || status=$?
[ "$status" = 4 ] || fail "mpirun.sh after SIGTERM: status $status, want 4"

# A signal while the doctor works ends it, too.
cat >"$work/bin/mpirun" <<'FAKE'
#!/usr/bin/env bash
case " $* " in *" train "*) touch "$CALLS.trains"; exit 0 ;; esac
trap 'touch "$CALLS.ended"; exit 1' TERM
touch "$CALLS.works"
for ((i = 0; i < 300; ++i)); do sleep 0.1; done
FAKE
"$source/launch/mpirun.sh" "$work/hosts" configs/a.json >"$work/output" 2>&1 &
script=$!
while [ ! -e "$CALLS.works" ]; do sleep 0.1; done
kill -TERM "$script"
status=0
wait "$script" || status=$?
[ "$status" = 4 ] || fail "mpirun.sh after SIGTERM to its doctor: status $status, want 4"
[ -e "$CALLS.ended" ] || fail "the doctor goes on without its script"
[ ! -e "$CALLS.trains" ] || fail "training starts after SIGTERM"

: >"$work/hosts"
start 2 "$work/hosts" configs/a.json
start 2 "$work/hosts"
grep -q "^usage: launch/mpirun.sh HOSTS" "$work/output" || fail "mpirun.sh does not tell how to use it"
echo passed
