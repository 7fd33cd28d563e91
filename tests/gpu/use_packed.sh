# shellcheck shell=bash disable=SC1091
# Sourced by tests/run_gpu.sh where the programs were packed on another machine (pack.sh): what they expect of this one.

# The commit that a checkout is at; nothing of a folder that is no repository, or where there is no git.
commit_of() { if [ -e "$1/.git" ] && command -v git >/dev/null; then git -C "$1" rev-parse HEAD; fi; }

# use_packed BUILD ROOT
use_packed() {
    local build=$1 root=$2 packed=$1/packed built_in checkout library found places here there
    built_in=$(cat "$packed/root")
    if [ ! -e "$built_in" ] && ! { mkdir -p "$(dirname "$built_in")" && ln -s "$root" "$built_in"; }; then
        fail "the packed programs read the checkout's files in $built_in; make that a link to $root"
    fi
    [ -e "$built_in/tests/run_gpu.sh" ] ||
        fail "the packed programs read a checkout's files in $built_in, which is none"
    there=$(cat "$packed/commit")
    for checkout in "$root" "$built_in"; do
        here=$(commit_of "$checkout")
        [ -z "$here" ] || [ "$here" = "$there" ] ||
            echo "WARNING: they were packed at commit ${there:0:9}, and $checkout is at ${here:0:9}"
    done
    # The toolkit's libraries, where the loader does not find them by itself, or else those of Python's packages.
    places=(${CUDA_HOME:+"$CUDA_HOME/lib64"} /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib)
    mapfile -t -O ${#places[@]} places < <(
        system_python -c 'import sys; print("\n".join(path for path in sys.path if path.endswith("-packages")))' 2>/dev/null)
    PATH=$packed/bin:$PATH
    . "$packed/environment"
    for library in $(ldd "$build/evenkeel" | awk '/not found/ { print $1 }'); do
        found=$(find -L "${places[@]}" -name stubs -prune -o -name "$library" -print 2>/dev/null | head -n 1)
        [ -n "$found" ] ||
            fail "the packed programs need $library, which is neither in LD_LIBRARY_PATH, CUDA_HOME and /usr/local/cuda nor among Python's packages"
        ln -sf "$found" "$packed/lib/$library"
        echo "$library: $found"
    done
}

# Python without the libraries that were packed: its packages may want newer ones.
system_python() { env -u LD_LIBRARY_PATH python3 "$@"; }
