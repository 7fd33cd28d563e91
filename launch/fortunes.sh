#!/usr/bin/env bash
# Writes the text that quickstart and the studies train on: the package fortunes, dealt in turn over 20 piles, so that
# the held-out end of the text has some of every topic.
# Usage: launch/fortunes.sh FILE
set -euo pipefail
[ $# = 1 ] || { echo "usage: ${0##*/} FILE" >&2; exit 2; }
[ -d /usr/share/games/fortunes ] ||
    { echo "${0##*/}: /usr/share/games/fortunes is missing; run: apt-get install fortunes" >&2; exit 1; }
mkdir -p "$(dirname "$1")"
find /usr/share/games/fortunes -type f ! -name '*.dat' | LC_ALL=C sort | xargs cat |
    awk 'BEGIN { RS = "\n%\n"; ORS = "\n%\n" } { pile[NR % 20] = pile[NR % 20] $0 ORS }
         END { ORS = ""; for (i = 0; i < 20; i++) print pile[i] }' >"$1"
echo "text: $1, $(wc -c <"$1") bytes of the package fortunes"
