#!/usr/bin/env bash
# What a run does about a rank that is stopped and about hosts that are cut off from each other: it ends by itself within the
# time-out, says which ranks are missed, and goes on, when they are there again, to the weights of a run that nothing happened
# to.
#   watchdog_test.sh PROGRAM MPIEXEC stop|cut
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -n "${EVENKEEL_CLUSTER:-}" ] || exec "$here/cluster.sh" 2 "$here/watchdog_test.sh" "$@"
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. "$here/hosts.sh" "$@"
trouble=$3

timeout_seconds=6
steps=100
# The time-out, the grace in which answers are waited for, what mpirun takes, and time for a machine with much else to do.
limit=60

start() { # RUN: by the launcher, in the background, its process in `job`; no test takes longer than its time
    launched 120 trainer.run_dir="$PWD/$1" trainer.steps=$steps parallel.timeout_seconds=$timeout_seconds \
        >"$1.txt" 2>&1 &
    job=$!
}
finish() { # waits for the job; its status in `status`
    status=0
    wait "$job" || status=$?
}
records() { { [ ! -f "$1/metrics.jsonl" ] || cat "$1/metrics.jsonl"; } | wc -l; }
# Inside the cluster's process namespace nobody else has processes.
ranks() { pgrep -f "^$program train" || true; }

say "undisturbed"
alone 2 train --config "$config" --set trainer.run_dir=want --set trainer.steps=$steps \
    --set parallel.tensor_parallel=2 >want.txt 2>&1 || fail "the undisturbed run failed:" want.txt

say "$trouble"
start run
while [ "$(records run)" -lt 20 ]; do
    kill -0 "$job" 2>/dev/null || fail "the run ended before anything happened:" run.txt
    sleep 0.02
done
case $trouble in
    stop) kill -STOP "$(ranks | tail -1)" ;;
    cut) cut_link 2 ;;
    *) fail "no such trouble: $trouble" ;;
esac
began=$SECONDS
[ "$(records run)" -lt $((steps - 10)) ] || fail "the run was over too soon:" run.txt
while kill -0 "$job" 2>/dev/null || [ -n "$(ranks)" ]; do
    [ $((SECONDS - began)) -le $limit ] || fail "not all has ended within $limit s:" run.txt
    sleep 0.1
done
finish
say "ended after $((SECONDS - began)) s with status $status"
# By whichever rank asked first: what one behind the cut has printed does not come here.
report=run/watchdog/report.txt
[ -f "$report" ] || fail "no report:" run.txt
grep -qE "^\[watchdog\] rank [01] has (waited longer than parallel\.timeout_seconds = $timeout_seconds for|failed in an operation with) other ranks" \
    "$report" || fail "the report does not say why:" run.txt "$report"
if [ "$trouble" = stop ]; then
    grep -q "rank [01] gives no answer: process [0-9]* on h[12] is dead, stopped, or cut off from this host" "$report" ||
        fail "no word of the rank that is missed:" run.txt "$report"
fi
grep -q "^\[watchdog\]" run.txt || fail "nothing was printed:" run.txt
[ "$status" != 0 ] || fail "the launcher did not tell that the run has failed:" run.txt

say "and again, when all is well"
[ "$trouble" != cut ] || heal_link 2
# While a host still takes the other for unreachable, the launcher says so and ends; it is started again, as a supervisor does.
for _ in 1 2 3; do
    start run
    finish
    [ "$status" != 0 ] || break
    grep -q "unable to complete a TCP connection" run.txt || break
    sleep 1
done
[ "$status" = 0 ] || fail "the run did not go on: status $status" run.txt
grep -q "resuming from" run.txt || fail "the run did not resume:" run.txt
same_weights want run
say "passed"
