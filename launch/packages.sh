# shellcheck shell=bash disable=SC2034
# Sourced by launch/quickstart.sh and tests/run.sh: what Debian and Ubuntu packages the project needs, and how
# to get those that are missing.

# Compiling, running and plotting. oneDNN's CMake files look for OpenCL.
build_packages=(g++ cmake ninja-build libopenmpi-dev openmpi-bin libdnnl-dev ocl-icd-opencl-dev
                opencl-c-headers nlohmann-json3-dev libcli11-dev libsentencepiece-dev)
run_packages=(libjs-vega fortunes)
test_packages=(libgtest-dev iproute2)

say() { printf '\n== %s\n' "$*"; }
fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# install_missing PACKAGE...: nothing happens when all are there.
install_missing() {
    local missing=() package
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        command -v mpirun >/dev/null ||
            fail "mpirun is missing and there is no apt-get; install Open MPI, and what else of this" \
                 "is missing: $*"
        echo "no apt-get here; taking for granted: $*"
        return
    fi
    for package in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
            missing+=("$package")
    done
    if [ ${#missing[@]} = 0 ]; then
        echo "all $# packages are installed"
        return
    fi
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null ||
            fail "these packages are missing, run as root or install sudo: ${missing[*]}"
        as_root=(sudo)
    fi
    echo "installing ${missing[*]} (a minute or two)"
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
    # The package lists may be there already, and current.
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1 && return
    "${apt[@]}" update >/dev/null || fail "apt-get update failed"
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null ||
        fail "apt-get could not install: ${missing[*]}"
}

# Cores that this process may use. nproc alone answers with OMP_NUM_THREADS where that is set.
core_count() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# Open MPI refuses root, and more ranks than cores, unless told. It binds each of two ranks to one core,
# whatever number of threads they have; and containers often forbid its way of copying between processes.
mpi_environment() {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
    export OMPI_MCA_btl_vader_single_copy_mechanism=none
}
