#!/usr/bin/env bash
# Collectives between two hosts (cluster.sh) whose link has a limited rate, at three rates: what a fit to some sizes says of
# the others.
#   limited_test.sh PROGRAM MPIEXEC [short]
# Prints a line for each held-out size: measured, predicted, error; and at the end how many are within 15 %, which is the goal
# on a machine with nothing else to do. It fails where a time is shorter than the bytes over the rate let it be, or where the
# fitted bandwidth is far from the limit. `short` is the test's: fewer sizes and rounds.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -n "${EVENKEEL_CLUSTER:-}" ] || exec "$here/cluster.sh" 2 "$here/limited_test.sh" "$@"
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. "$here/hosts.sh" "$@"

if [ "${3:-}" = short ]; then
    rates=(32 64 128)
    options=(--from 64K --to 1M --rounds 1 --seconds 0.02)
else
    rates=(50 200 800)
    options=(--from 8K --to 4M --rounds 9 --seconds 0.1)
fi
burst=8192 # bytes: with more, what is sent after a pause would not be limited at all
# Above btl_tcp_eager_limit, 64 KiB, Open MPI asks the receiver first, and its answer waits behind what the receiver itself is
# sending: where both directions are full, such messages take up to 1.9 times as long as the link does, now and then.
eager=()
for limit in eager_limit rndv_eager_limit max_send_size; do eager+=(--mca "btl_tcp_$limit" $((8 << 20))); done
slow_link 2 "${rates[0]}mbit" $burst 2>tc.txt || {
    echo "skipped: links may not be slowed down here: $(cat tc.txt)"
    exit 77
}

# Of a table: "OPERATION BYTES US PREDICTED_US" for each size, with "held" behind those that are held out.
points() {
    awk '/^[a-z]+, [a-z_]+:/ { operation = $2; sub(/:/, "", operation) }
         /^ *[0-9]+ +[0-9.]+ / { print operation, $1, $2, $8, /held out/ ? "held" : "" }' "$1"
}

errors=all.errors
: >"$errors"
last=0
for rate in "${rates[@]}"; do
    slow_link 2 "${rate}mbit" $burst
    table=rate_$rate.txt
    say "$rate Mbit/s"
    across 1:1,2:1 -np 2 "${eager[@]}" "$program" scale measure "${options[@]}" >"$table" 2>&1 ||
        fail "measuring failed:" "$table"
    points "$table" >"$table.points"
    [ -s "$table.points" ] || fail "no table:" "$table"
    # Between two ranks an all-reduce sends all bytes each way, the others half of them, a broadcast all one way. The
    # limiter lets a burst through after a pause.
    awk -v rate="$rate" -v burst=$burst '
        { bytes = $2 * ($1 == "all_reduce" || $1 == "broadcast" ? 1 : 0.5)
          least = (bytes - 2 * burst) * 8 / rate
          if ($3 < least) { printf "%s of %d bytes took %s us, and cannot take less than %s\n", $1, $2, $3, least; bad = 1 } }
        END { exit bad }' "$table.points" >bound.txt || fail "faster than the link:" bound.txt "$table"
    # "fit us" of those that were held out.
    awk -v rate="$rate" '
        $5 == "held" { error = 100 * ($4 / $3 - 1)
            printf "%5d Mbit/s  %-15s %9d bytes  %10.1f us  predicted %10.1f us  %+6.1f %%\n", rate, $1, $2, $3, $4, error }' \
        "$table.points" | tee -a "$errors"
    bandwidth=$(awk '$1 == "between" && $2 == "nodes" && $3 == "alpha" { print $6 * 8000 }' "$table")
    [ -n "$bandwidth" ] || fail "no network was fitted:" "$table"
    echo "fitted bandwidth $bandwidth Mbit/s of $rate"
    awk -v got="$bandwidth" -v limit="$rate" -v last="$last" \
        'BEGIN { exit !(got > 0.3 * limit && got < 1.25 * limit && got > last) }' ||
        fail "the fitted bandwidth, $bandwidth Mbit/s, does not follow the limit, $rate:" "$table"
    last=$bandwidth
done
[ -s "$errors" ] || fail "no size was held out:" "$table"
awk '{ error = $(NF - 1); if (error < 0) error = -error; if (error > most) most = error; within += error <= 15; ++all }
     END { printf "%d of %d held-out points within 15 %%, the largest error %.1f %%\n", within, all, most }' "$errors"
say "passed"
