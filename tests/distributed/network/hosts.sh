# shellcheck shell=bash
# Sourced with PROGRAM MPIEXEC by what runs in a cluster (cluster.sh): its hosts, and a small run in its directory, which
# becomes the current one.
program=$1
export EVENKEEL_MPIEXEC=$2
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_btl_vader_single_copy_mechanism=none
# Interfaces and parameters of the machine are none of the cluster's.
unset OMPI_MCA_btl OMPI_MCA_pml NCCL_SOCKET_IFNAME

# Inside the cluster's own directory, which goes with it.
cd "$EVENKEEL_CLUSTER" || exit 1
seq -f "Evenkeel reads line %.0f." 1 600 >text.txt
config=$PWD/config.json
cat >"$config" <<JSON
{"model": {"type": "fp32", "num_layers": 2, "width": 32, "feed_forward_width": 64, "max_seq_len": 32,
           "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32}},
 "data": {"path": "$PWD/text.txt"},
 "trainer": {"steps": 60, "batch_size": 4, "micro_batch_size": 2, "seq_len": 32, "eval_sequences": 4,
             "checkpoint_interval": 5, "run_dir": "$PWD/run"}}
JSON

# on HOST COMMAND ..: runs it there.
on() { "$EVENKEEL_CLUSTER/agent" "10.77.0.$1" "$(printf '%q ' "${@:2}")"; }
# cut HOST, heal HOST: its cable.
cut_link() { ip link set "v$1" down; }
heal_link() { ip link set "v$1" up; }
# slow_link HOST RATE [BURST]: what it sends and gets, such as 10mbit; BURST goes faster after a pause. slow_link HOST "": as
# fast as can be.
slow_link() {
    tc qdisc del dev "v$1" root 2>/dev/null || true
    on "$1" tc qdisc del dev eth0 root 2>/dev/null || true
    [ -n "$2" ] || return 0
    tc qdisc add dev "v$1" root tbf rate "$2" burst "${3:-64kb}" latency 200ms
    on "$1" tc qdisc add dev eth0 root tbf rate "$2" burst "${3:-64kb}" latency 200ms
}
# across HOST:SLOTS,HOST:SLOTS MPIRUN ARGUMENTS ..: mpirun, started on h1, between hosts.
across() {
    local addresses="10.77.0.${1//,/,10.77.0.}"
    on 1 "${EVENKEEL_MPIEXEC:-mpirun}" --mca plm_rsh_agent "$EVENKEEL_CLUSTER/agent" \
        --mca plm_rsh_no_tree_spawn 1 --mca btl self,tcp,vader \
        --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_if_include 10.77.0.0/24 \
        --host "$addresses" "${@:2}"
}
# launched SECONDS SETTINGS ..: the launcher's script, started on h1, with a rank on each of two hosts; status 124 if it has
# not ended by then.
launched() {
    printf '10.77.0.1 slots=1\n10.77.0.2 slots=1\n' >hosts
    on 1 env OMPI_MCA_plm_rsh_agent="$EVENKEEL_CLUSTER/agent" OMPI_MCA_plm_rsh_no_tree_spawn=1 \
        NETWORK=10.77.0.0/24 PATIENCE=4 EVENKEEL="$program" MPIRUN="$EVENKEEL_MPIEXEC" \
        timeout -k 10 "$1" "$(dirname "${BASH_SOURCE[0]}")/../../../launch/mpirun.sh" hosts "$config" \
        parallel.tensor_parallel=2 "${@:2}"
}
say() { echo "== $*"; }
# fail WORDS FILE ..: the words, what the files hold, status 1.
fail() {
    echo "FAILED: $1"
    shift
    for file in "$@"; do sed "s/^/$file: /" "$file"; done
    exit 1
}
# alone RANKS ARGUMENTS ..: the program on this host alone.
alone() { "$EVENKEEL_MPIEXEC" --mca btl self,vader -np "$1" "$program" "${@:2}"; }
# losses RUN: "STEP LOSS" of every record.
losses() { sed -n 's/.*"step":\([0-9]*\).*"loss":\([^,}]*\).*/\1 \2/p' "$1/metrics.jsonl"; }
# weights RUN: hashes of the tensors' files of its newest checkpoint.
weights() {
    local newest=("$1"/checkpoints/step_*)
    (cd "${newest[-1]}" && sha256sum ./*.safetensors)
}
same_weights() {
    weights "$1" >a.weights
    weights "$2" >b.weights
    cmp -s a.weights b.weights || fail "weights of $1 and $2 differ" a.weights b.weights
}
