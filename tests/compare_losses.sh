#!/usr/bin/env bash
# Compares the loss curves of two runs: prints {"steps": .., "first_loss": .., "last_loss": .., "largest_relative_difference": ..}
# and fails unless both have the same steps, the first run's loss falls, and no step differs by more than the tolerance.
# Usage: tests/compare_losses.sh RUN REFERENCE_RUN TOLERANCE
set -euo pipefail
[ $# = 3 ] || { echo "usage: ${0##*/} RUN REFERENCE_RUN TOLERANCE" >&2; exit 2; }
for run in "$1" "$2"; do
    [ -s "$run/metrics.jsonl" ] || { echo "${0##*/}: no $run/metrics.jsonl" >&2; exit 1; }
done

# Lines of "STEP LOSS".
losses() { sed -nE 's/.*"step":([0-9]+),.*"loss":([^,}]+).*/\1 \2/p' "$1/metrics.jsonl"; }

awk -v tolerance="$3" '
    $2 !~ /^[-+.0-9eE]+$/ { print "step " $1 ": loss " $2 > "/dev/stderr"; bad = 1; next }
    FNR == NR { want[$1] = $2; steps++; next }
    {
        if (!($1 in want)) { print "step " $1 " is in one run only" > "/dev/stderr"; bad = 1; next }
        difference = ($2 - want[$1]) / want[$1]
        if (difference < 0) difference = -difference
        if (difference > tolerance) {
            print "step " $1 ": loss " $2 ", want " want[$1] " to " tolerance > "/dev/stderr"; bad = 1
        }
        if (difference > largest) largest = difference
        if (++count == 1) first = $2
        last = $2
    }
    END {
        if (count == 0 || count != steps) { print count + 0 " steps, want " steps > "/dev/stderr"; bad = 1 }
        if (!(last < first)) { print "the loss does not fall: " first " to " last > "/dev/stderr"; bad = 1 }
        printf "{\"steps\": %d, \"first_loss\": %s, \"last_loss\": %s, \"largest_relative_difference\": %.3g}\n",
            count, first == "" ? "null" : first, last == "" ? "null" : last, largest
        exit bad
    }' <(losses "$2") <(losses "$1")
