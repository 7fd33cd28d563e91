#!/usr/bin/env bash
# Starts a training run again whenever it ends before its time, as long as it makes progress:
#
#   launch/supervise.sh [options] RUN_DIR COMMAND...
#   launch/supervise.sh runs/8b mpirun -np 8 evenkeel train --config c.json \
#       --set trainer.run_dir=runs/8b --set trainer.resume=true
#
# COMMAND must go on by itself where there is something to go on from (trainer.resume=true). RUN_DIR is the run's
# directory, whose checkpoints show the progress: as trainer.run_dir where COMMAND sets that. Ends when COMMAND ends with
#   0  the run is done,
#   2  a mistake of usage or configuration,
#   4  a signal asked it to end (it has written a checkpoint),
#   5  an alarm ended it (it has written a checkpoint),
#   1  and no checkpoint was written: the same would fail again,
#   126, 127  the command cannot be started,
# or after so many other failures in a row without a new checkpoint; with COMMAND's status. And where RUN_DIR's checkpoints
# cannot be read, so that nobody could tell progress: with status 1, or COMMAND's. After a failure it waits,
# twice as long each time until there is progress. One line an attempt on standard error.
#
#   --failures N   failures in a row without a new checkpoint until it gives up (3)
#   --wait S       seconds before the second attempt (5)
#   --most S       longest wait (300)
#
# SIGUSR1, SIGTERM, SIGHUP and the first Ctrl-C ask COMMAND to end after a checkpoint, by SIGUSR1, since mpirun kills its
# ranks a second after a SIGTERM; the second SIGTERM or Ctrl-C is handed on as SIGTERM. SIGUSR2 is handed on.
set -euo pipefail
set -m # COMMAND gets a process group of its own: Ctrl-C reaches this script alone

usage() {
    echo "usage: launch/supervise.sh [--failures N] [--wait S] [--most S] RUN_DIR COMMAND..." >&2
    exit 2
}
say() { echo "supervise: $*" >&2; }

failures=3 wait=5 most=300
while [ $# -gt 0 ]; do
    case $1 in
    --failures | --wait | --most)
        [[ ${2-} =~ ^[0-9]{1,6}$ ]] || usage
        printf -v "${1#--}" %d "$((10#$2))"
        shift 2
        ;;
    -h | --help)
        sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
        exit 0
        ;;
    -*) usage ;;
    *) break ;;
    esac
done
if [ $# -lt 2 ] || [ "$failures" -lt 1 ]; then usage; fi
run=$1
shift
trains_in=
for word in "$@"; do
    case $word in
    trainer.run_dir=*) trains_in=${word#*=} ;;
    --set=trainer.run_dir=*) trains_in=${word#*=*=} ;;
    --rewind | --rewind=*)
        say "a command with --rewind would go back at every start: give it once by itself, without supervise.sh"
        exit 2
        ;;
    esac
done
if [ -n "$trains_in" ] && [ "$(realpath -m -- "$trains_in")" != "$(realpath -m -- "$run")" ]; then
    say "RUN_DIR: got $run, but the command trains in trainer.run_dir=$trains_in, whose checkpoints show its progress"
    exit 2
fi

# Sets `seen` to names and times of the run's checkpoints, without those that are unfinished or set aside. Fails, and says
# why, where they cannot be read: they would look like none.
look() {
    local all errors status=0
    all=$(LC_ALL=C find "$run/checkpoints/" -mindepth 1 -maxdepth 1 -name 'step_*' ! -name '*.*' \
        -printf '%f %T@\n' 2>&1) || status=$?
    # There are none yet, or one has just been removed.
    errors=$(grep '^find: ' <<<"$all" | grep -v ': No such file or directory$') || true
    # An error that is none of find's own, as where there is no find.
    if [ "$status" != 0 ] && ! grep -q '^find: ' <<<"$all"; then errors=${all:-find: status $status}; fi
    if [ -n "$errors" ]; then
        say "cannot see whether there is progress: ${errors%%$'\n'*}"
        return 1
    fi
    seen=$(grep -v '^find: ' <<<"$all" | sort) || true
}

command=0 asked=0 interrupted=false
hand_on() { # the signal that came, the one to send
    interrupted=true
    if [ "$command" = 0 ]; then # between two attempts
        say "$1: not started again"
        exit 4
    fi
    kill -s "$2" "$command" 2>/dev/null || true
}
ask_to_end() {
    asked=$((asked + 1))
    if [ "$asked" = 1 ] || [ "$1" = USR1 ]; then hand_on "$1" USR1; else hand_on "$1" TERM; fi
}
trap 'ask_to_end USR1' USR1
trap 'ask_to_end TERM' TERM
trap 'ask_to_end HUP' HUP
trap 'ask_to_end INT' INT
trap '[ "$command" = 0 ] || hand_on USR2 USR2' USR2

attempt=0 failed=0 pause=$wait
while true; do
    attempt=$((attempt + 1))
    look || exit 1
    before=$seen
    start=$SECONDS
    "$@" </dev/null &
    command=$!
    # A signal that is handed on ends wait early; what has been waited for is 127 the second time.
    status=
    while true; do
        interrupted=false now=0
        wait "$command" 2>/dev/null || now=$?  # without bash's own word of what killed it
        if [ "$now" = 127 ] && [ -n "$status" ]; then break; fi
        status=$now
        $interrupted || break
    done
    command=0
    line="attempt $attempt ended with status $status after $((SECONDS - start)) s"
    if look; then
        # The newest one's name, of those that were not there before.
        new=$(comm -13 <(echo "$before") <(echo "$seen"))
        new=${new##*$'\n'}
        new=${new%% *}
        if [ -n "$new" ]; then
            progress=true failed=0 pause=$wait
            line="$line, new checkpoint $new"
        else
            progress=false failed=$((failed + 1))
            line="$line, no new checkpoint"
            [ -d "$run/checkpoints" ] || line="$line and no $run/checkpoints"
        fi
    else
        progress=unknown
    fi
    case $status in
    0) reason="the run is done" ;;
    2) reason="a mistake of usage or configuration" ;;
    4) reason="a signal asked it to end" ;;
    5) reason="an alarm ended it" ;;
    126 | 127) reason="the command cannot be started" ;;
    *)
        if [ "$asked" != 0 ]; then
            reason="it was asked to end"
        elif [ "$progress" = unknown ]; then
            reason="giving up"
        elif [ "$status" = 1 ] && ! $progress; then
            reason="giving up: it would fail in the same way again"
        elif [ "$failed" -ge "$failures" ]; then
            reason="giving up after $failed failures in a row"
        else
            say "$line; starting again in $pause s"
            # In the background, so that a signal need not wait for it.
            sleep "$pause" &
            wait $! || true
            pause=$((pause * 2 > most ? most : pause * 2))
            [ "$pause" -ge "$wait" ] || pause=$wait
            continue
        fi
        ;;
    esac
    say "$line; $reason"
    exit "$status"
done
