#!/usr/bin/env bash
# evenkeel across two hosts (cluster.sh): what the doctor says of them, and that training gives the losses of one host.
#   two_hosts_test.sh PROGRAM MPIEXEC
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -n "${EVENKEEL_CLUSTER:-}" ] || exec "$here/cluster.sh" 2 "$here/two_hosts_test.sh" "$@"
# shellcheck source-path=SCRIPTDIR source=hosts.sh
. "$here/hosts.sh" "$@"

say "the doctor finds both hosts and the network between them"
across 1:2,2:2 -np 4 "$program" doctor --config "$config" --set parallel.tensor_parallel=2 >doctor.txt ||
    fail "the doctor found something wrong:" doctor.txt
for words in "4 ranks on 2 hosts" "h1: ranks 0-1; h2: ranks 2-3" "over eth0" "one directory for all ranks"; do
    grep -q "$words" doctor.txt || fail "the doctor did not say: $words" doctor.txt
done

say "the doctor finds a run_dir that is not shared"
mkdir -p own
across 1:1,2:1 -np 1 --wdir "$PWD" "$program" doctor --config "$config" --set trainer.run_dir=here/run : \
    -np 1 --wdir "$PWD/own" "$program" doctor --config "$config" --set trainer.run_dir=here/run >apart.txt 2>&1 &&
    fail "the doctor did not see that run_dir is two directories:" apart.txt
grep -q "rank 1 on h2 does not see" apart.txt || fail "no word of the directory:" apart.txt

say "so does the start of a run, in one sentence"
status=0
across 1:1,2:1 -np 1 --wdir "$PWD" "$program" train --config "$config" --set trainer.run_dir=here/run : \
    -np 1 --wdir "$PWD/own" "$program" train --config "$config" --set trainer.run_dir=here/run >start.txt 2>&1 ||
    status=$?
[ "$status" = 2 ] || fail "status $status, want 2:" start.txt
grep -q "rank 0: \[train\] rank 1 on h2 does not see .*here/run" start.txt || fail "no such sentence:" start.txt

say "the doctor finds a network that is not there"
across 1:1,2:1 -np 2 -x NCCL_SOCKET_IFNAME=ib0 "$program" doctor >network.txt 2>/dev/null &&
    fail "the doctor took ib0 for a network:" network.txt
grep -q "ib0 leaves no interface of h1, which has eth0" network.txt || fail "no word of it:" network.txt

say "two hosts train as one does"
across 1:2,2:2 -np 4 "$program" train --config "$config" --set trainer.run_dir=two --set trainer.steps=6 \
    --set parallel.tensor_parallel=2 >two.txt 2>&1 || fail "training on two hosts failed:" two.txt
alone 4 train --config "$config" --set trainer.run_dir=one --set trainer.steps=6 \
    --set parallel.tensor_parallel=2 >one.txt 2>&1 || fail "training on one host failed:" one.txt
losses two >two.losses
losses one >one.losses
[ "$(wc -l <one.losses)" = 6 ] || fail "want 6 losses:" one.losses
cmp one.losses two.losses || fail "losses differ:" one.losses two.losses
same_weights one two
say "a host that cannot call back ends the launcher"
on 2 ip route add unreachable 10.77.0.1/32
status=0
launched 60 trainer.run_dir="$PWD/unreachable" >unreachable.txt 2>&1 || status=$?
on 2 ip route del unreachable 10.77.0.1/32
[ "$status" != 0 ] || fail "the launcher did not tell:" unreachable.txt
[ "$status" != 124 ] || fail "the launcher did not end within 60 s:" unreachable.txt
grep -q "unable to complete a TCP connection" unreachable.txt || fail "the launcher did not say why:" unreachable.txt
say "passed"
