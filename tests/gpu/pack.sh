#!/usr/bin/env bash
# Packs what tests/run_gpu.sh has built, with the libraries and the mpirun that it needs, for a machine with a GPU and the same
# kind of processor that has none of them: a compute node without packages, compilers or network. The CUDA libraries stay
# where they are, with the driver; tests/run_gpu.sh finds them there.
# Usage: tests/gpu/pack.sh BUILD FILE.tar.xz PROGRAM...
#
# BUILD is a folder of the checkout, in which the programs are named. The archive is to be unpacked in a checkout.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/launch/packages.sh"
. "$root/tests/gpu/use_packed.sh"
[ $# -ge 3 ] || fail "usage: BUILD FILE.tar.xz PROGRAM..."
build=$(cd "$1" && pwd) file=$2
shift 2
[ -d "$(dirname "$file")" ] || fail "there is no folder $(dirname "$file")"
[ "${build#"$root"/}" != "$build" ] || fail "$build is not in the checkout $root"
command -v ompi_info >/dev/null || fail "no ompi_info: only Open MPI's mpirun can be packed"

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
there=$stage/${build#"$root"/}
packed=$there/packed
mkdir -p "$packed/lib" "$packed/bin" "$packed/openmpi/modules" "$packed/openmpi/data"

# Open MPI, which looks for its parts where `environment` says. Modules for networks and schedulers load libraries of their
# own; one machine does without.
directory_of() { ompi_info --path "$1" --parsable | sed -n 's/^path:[a-z]*://p'; }
modules=()
for module in "$(directory_of pkglibdir)"/mca_*.so; do
    case ${module##*_} in
        ucx.so | ofi.so | verbs.so | openib.so | usnic.so | psm*.so | portals4.so | tm.so | lsf.so) ;;
        *) modules+=("$module") ;;
    esac
done
cp -L "${modules[@]}" "$packed/openmpi/modules"
cp -rL "$(directory_of pkgdatadir)/." "$packed/openmpi/data"
mpirun=$(readlink -f "$(command -v mpirun)")
cp "$mpirun" "$packed/openmpi/orterun"
cat >"$packed/environment" <<'ENVIRONMENT'
export LD_LIBRARY_PATH=$packed/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export OPAL_PREFIX=$packed/openmpi OPAL_LIBDIR=$packed/lib OPAL_PKGLIBDIR=$packed/openmpi/modules
export OPAL_DATADIR=$packed/openmpi OPAL_PKGDATADIR=$packed/openmpi/data
# mpirun wants a way to other machines, though it needs none, and speaks of a module that it can do without.
export OMPI_MCA_plm_rsh_agent=sh PMIX_MCA_pcompress_base_silence_warning=1
ENVIRONMENT
cat >"$packed/bin/mpirun" <<'MPIRUN'
#!/usr/bin/env bash
packed=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$packed/environment"
exec "$packed/openmpi/orterun" "$@"
MPIRUN
chmod +x "$packed/bin/mpirun"

# Programs, and the libraries of all: not the C library, which goes with the system, nor those of CUDA.
programs=()
for program in "$@"; do
    programs+=("$build/$program")
    mkdir -p "$there/$(dirname "$program")"
    strip -o "$there/$program" "$build/$program"
done
ldd "${programs[@]}" "${modules[@]}" "$mpirun" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/lib(c|m|dl|rt|pthread|resolv|util|cuda|cudart|cublas|cublasLt|nccl)\.so' |
    xargs -I{} cp -L {} "$packed/lib"

# Tests read the project's files where they were when they were compiled.
echo "$root" >"$packed/root"
commit_of "$root" >"$packed/commit"
# One dictionary for all programs: they hold the same kernels.
tar -C "$stage" -c "${build#"$root"/}" | xz --threads=0 --lzma2=preset=6,dict=192MiB >"$file"
printf '%s: %s\n' "$file" "$(du -h "$file" | cut -f 1)"
