#!/usr/bin/env bash
# Hosts in network namespaces of this machine, on one bridge, for as long as a command runs:
#   cluster.sh HOSTS COMMAND [ARGUMENT ...]
# The command finds EVENKEEL_CLUSTER, a directory that goes with the cluster, and sources hosts.sh. Everything is inside a
# network and a process namespace of the cluster's own: nothing of it can be seen on the machine, and when this script ends,
# even by SIGKILL, the kernel ends all processes inside, stopped ones too, and takes the links away. Status 77 where
# namespaces may not be made.
#
# Host N is called hN and has the address 10.77.0.N on eth0.

set -euo pipefail

if [ "${1:-}" != --inside ]; then
    flags=(--net --pid --fork --kill-child --mount-proc)
    [ "$(id -u)" = 0 ] || flags+=(--user --map-root-user)
    for tool in unshare nsenter ip; do
        command -v "$tool" >/dev/null || { echo "skipped: no $tool here"; exit 77; }
    done
    unshare "${flags[@]}" ip link add br0 type bridge 2>/dev/null || {
        echo "skipped: network namespaces and bridges may not be made here"
        exit 77
    }
    exec unshare "${flags[@]}" "$0" --inside "$@"
fi

hosts=$2
shift 2
# Process ids begin again inside. Open MPI names its files after host and process, so they must not lie where those of other
# clusters, and of what ran before, do.
EVENKEEL_CLUSTER=$(mktemp -d)
export EVENKEEL_CLUSTER TMPDIR=$EVENKEEL_CLUSTER
mount -t tmpfs tmpfs /dev/shm || { echo "skipped: /dev/shm may not be mounted here"; exit 77; }
trap 'rm -rf "$EVENKEEL_CLUSTER"' EXIT

# What mpirun calls in place of ssh: agent ADDRESS COMMAND ...
cat >"$EVENKEEL_CLUSTER/agent" <<'AGENT'
#!/usr/bin/env bash
process=$(cat "$(dirname "$0")/h${1##*.}")
shift
# As ssh does it, the words are a line for a shell.
exec nsenter --target "$process" --net --uts bash -c "$*"
AGENT
chmod +x "$EVENKEEL_CLUSTER/agent"

ip link set lo up
ip link add br0 type bridge
ip addr add 10.77.0.254/24 dev br0
ip link set br0 up
for ((host = 1; host <= hosts; ++host)); do
    # A process holds the namespaces; it says when it is there.
    mkfifo "$EVENKEEL_CLUSTER/ready"
    unshare --net --uts bash -c "hostname h$host; ip link set lo up; echo >$EVENKEEL_CLUSTER/ready; exec sleep infinity" &
    echo $! >"$EVENKEEL_CLUSTER/h$host"
    read -r <"$EVENKEEL_CLUSTER/ready"
    rm "$EVENKEEL_CLUSTER/ready"
    ip link add "v$host" type veth peer name eth0 netns "$!"
    ip link set "v$host" master br0 up
    nsenter --target "$!" --net ip addr add "10.77.0.$host/24" dev eth0
    nsenter --target "$!" --net ip link set eth0 up
done

status=0
"$@" || status=$?
exit "$status"
