#!/usr/bin/env bash
# Trains on several machines with Open MPI's mpirun, a rank for every slot of a host file. From the root of the repository:
#   launch/mpirun.sh HOSTS CONFIG [path.to.key=value ...]
# HOSTS has a line "NAME slots=N" for each machine, N being its GPUs, or on CPUs the ranks it shall run. What follows the
# configuration are settings (evenkeel train --set). `evenkeel doctor` looks at the machines first, and what it finds wrong
# ends the script. The run goes on from the newest checkpoint, if there is one. SIGUSR1 or SIGTERM to this
# script has the run end after a checkpoint, with status 4.
#
#   NETWORK   network that the machines share, as 10.0.0.0/24; default: Open MPI chooses
#   THREADS   of a rank; default 1
#   EVENKEEL  the program; default build/evenkeel
#   MPIRUN    the command; default mpirun
#   PATIENCE  seconds that mpirun may go on when no rank is left on this machine; default 60
# All variables that begin with NCCL_ or OMP_ are handed on, and LD_LIBRARY_PATH.
set -euo pipefail

[ $# -ge 2 ] || {
    sed -n 's/^#   launch/usage: launch/p' "$0" >&2
    exit 2
}
hosts=$1
config=$2
shift 2
settings=()
for setting in "$@"; do settings+=(--set "$setting"); done

[ -r "$hosts" ] && [ ! -d "$hosts" ] || {
    echo "$hosts: no host file that can be read; want lines such as \"n0 slots=8\"" >&2
    exit 2
}
# What mpirun reads otherwise than is meant here would start another number of ranks without a word.
ranks=$(awk '
{
    line = $0
    sub(/\r$/, "", line)
    sub(/#.*/, "", line)
    gsub(/[[:space:]]*=[[:space:]]*/, "=", line)
    words = split(line, word)
    if (words == 0) next
    slots = 1
    bad = word[1] ~ /=/
    for (i = 2; i <= words; ++i) {
        if (word[i] ~ /^slots=[0-9]+$/) slots = substr(word[i], 7)
        else if (word[i] !~ /^(max_slots|max-slots|slots_max|slots-max)=[0-9]+$/) bad = 1
    }
    if (bad || slots < 1) {
        printf "%s:%d: got \"%s\", want a line such as \"n0 slots=8\"\n", FILENAME, NR, line > "/dev/stderr"
        exit failed = 2
    }
    ranks += slots
}
END {
    if (failed) exit failed
    print ranks + 0
}' "$hosts") || exit 2
[ "$ranks" -gt 0 ] || {
    echo "$hosts: no line such as \"n0 slots=8\"" >&2
    exit 2
}

export OMP_NUM_THREADS=${THREADS:-${OMP_NUM_THREADS:-1}} NCCL_DEBUG=${NCCL_DEBUG:-WARN}
# By default Open MPI binds each of two ranks to one core.
# A daemon that cannot call back from its host ends at once; mpirun learns of it only from a session that is still open, and
# would wait for ever otherwise.
launch=("${MPIRUN:-mpirun}" -np "$ranks" --hostfile "$hosts" --map-by slot --bind-to none --leave-session-attached)
[ -z "${NETWORK:-}" ] ||
    launch+=(--mca btl_tcp_if_include "$NETWORK" --mca oob_tcp_if_include "$NETWORK")
while read -r name; do launch+=(-x "$name"); done \
    < <(compgen -e | grep -E '^(NCCL_|OMP_|LD_LIBRARY_PATH$)')

program=${EVENKEEL:-build/evenkeel}
trap : USR2 # while the doctor works nobody hears it
"${launch[@]}" -q "$program" doctor --config "$config" "${settings[@]}" &
job=$!
end_doctor() {
    kill -s TERM "$job" 2>/dev/null || true
    wait "$job" || true
    echo "ended by SIG$1 before the start" >&2
    exit 4
}
trap 'end_doctor USR1' USR1
trap 'end_doctor TERM' TERM
trap 'end_doctor HUP' HUP
trap 'end_doctor INT' INT
while true; do
    status=0
    wait "$job" || status=$?
    kill -0 "$job" 2>/dev/null || break
done
[ "$status" = 0 ] || exit "$status"
"${launch[@]}" "$program" train --config "$config" --set trainer.resume=true "${settings[@]}" &
job=$!
# mpirun hands SIGUSR1 on to every rank at once. On SIGTERM it would kill them two seconds later, which is too soon for a
# checkpoint, so it gets the other signal instead. A terminal's SIGINT it gets anyway.
asked=0
ask_to_end() { # a second SIGTERM is meant
    asked=$((asked + 1))
    if [ "$1" = TERM ] && [ "$asked" -gt 1 ]; then set -- TERM; else set -- USR1; fi
    kill -s "$1" "$job" 2>/dev/null || true
}
trap 'ask_to_end USR1' USR1
trap 'ask_to_end TERM' TERM
trap 'ask_to_end HUP' HUP
trap 'kill -USR2 "$job" 2>/dev/null || true' USR2
trap : INT

# When a host is cut off, ranks end by themselves on both sides, but mpirun waits for that host's daemon, and for ever. So it
# is ended when it has had ranks on this machine and has none any more.
had_ranks='' gone_for=0 status=''
while kill -0 "$job" 2>/dev/null; do
    sleep 1 &
    wait $! || true  # not for sleep itself, which would hold back signals
    if pgrep -P "$job" -f -- " train --config " >/dev/null; then
        had_ranks=yes gone_for=0
    elif [ -n "$had_ranks" ]; then
        gone_for=$((gone_for + 1))
    fi
    [ "$gone_for" -ge "${PATIENCE:-60}" ] || continue
    echo "no rank is left on this machine, and mpirun still waits for other machines: it is ended" >&2
    kill -KILL "$job" 2>/dev/null || true
    status=3
done
if [ -z "$status" ]; then
    status=0
    wait "$job" || status=$?
fi
# Below what Open MPI says of any status but 0. (mpirun -q would keep that back, but also which rank on which machine a
# signal has ended.)
case $status in
4) echo "status 4: the run was asked to end; the same command goes on" >&2 ;;
5) echo "status 5: an alarm ended the run; the same command goes on" >&2 ;;
esac
exit "$status"
