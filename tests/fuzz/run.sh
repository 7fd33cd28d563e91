#!/usr/bin/env bash
# Builds the libFuzzer programs with clang and runs one after the other, each for that many executions from its corpus
# on. What they find that is new goes into build-fuzz/corpus, findings into build-fuzz/findings; tests/fuzz/corpus
# stays as it is. Usage: tests/fuzz/run.sh [EXECUTIONS [TARGET ...]]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${EVENKEEL_FUZZ_BUILD:-$root/build-fuzz}
executions=${1:-1000000}
[ $# -eq 0 ] || shift

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for source in "$here"/*_fuzz.cpp; do targets+=("$(basename "$source" _fuzz.cpp)"); done
fi
mkdir -p "$build"
{
    cmake -S "$root" -B "$build" -G Ninja -DEVENKEEL_FUZZ=ON -DCMAKE_CXX_COMPILER="${CXX:-clang++}" &&
        cmake --build "$build" --target "${targets[@]/%/_fuzz}"
} >"$build/build.log" 2>&1 || { tail -n 40 "$build/build.log"; exit 1; }

export UBSAN_OPTIONS=print_stacktrace=1
row='%-20s %11s %8s %8s %14s %9s\n'
printf "$row" target executions seconds edges "corpus files" findings
failed=0
for target in "${targets[@]}"; do
    new="$build/corpus/$target" findings="$build/findings/$target" log="$build/$target.log"
    mkdir -p "$new" "$findings"
    case $target in # no longer than what is read
        *_config | run_state | state_shards) longest=2048 ;;
        token_stream) longest=1280 ;;
        *) longest=1024 ;;
    esac
    options=(-runs="$executions" -max_len=$longest -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512
        -print_final_stats=1 -artifact_prefix="$findings/")
    [ -f "$here/dictionaries/$target.dict" ] && options+=(-dict="$here/dictionaries/$target.dict")
    begin=$(date +%s)
    "$build/tests/fuzz/${target}_fuzz" "${options[@]}" "$new" "$here/corpus/$target" >"$log" 2>&1 || failed=1
    seconds=$(($(date +%s) - begin))
    count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    printf "$row" "$target" "${count:-?}" "$seconds" "${edges:-?}" \
        "$(find "$here/corpus/$target" -type f | wc -l) + $(find "$new" -type f | wc -l)" \
        "$(find "$findings" -type f | wc -l)"
done
exit $failed
