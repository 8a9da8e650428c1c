#!/usr/bin/env bash
# What each battery costs: three frameworks with and without it, in paired slices. Some 15 minutes, with the programs built. The
# table is made of what comes out:
#
#   lab/scenarios/batteries/run.sh runs/batteries
#   lab pack runs/batteries --out docs/results/batteries
#   cargo tidy batteries && cargo tidy figures
#
# LAB is the lab's command, and further arguments are its own, for each run: `--blocks 4 --tolerate-noise` for a look.
set -euo pipefail

out=${1:?the folder for the runs}
shift
here=$(cd "$(dirname "$0")" && pwd)
lab=${LAB:-lab}

# The three frameworks without a battery, then with each of those that are named; what a framework has not is left out.
contenders() {
    local list=batteries-peregrine,batteries-axum,batteries-actix-web battery framework
    for battery in "$@"; do
        for framework in peregrine axum actix-web; do
            if grep --quiet "^$battery = " "$here/../../contenders/batteries-$framework/contender.toml"; then
                list+=",batteries-$framework-$battery"
            fi
        done
    done
    echo "$list"
}

run() {
    local scenario=$1 contenders=$2
    shift 2
    "$lab" run "$here/$scenario.toml" --contenders "$contenders" --out "$out" --seed 51 "$@"
}

run battery-json "$(contenders request-id cors security-headers signed-cookie session bearer rate-limit access-log trace timeout \
    catch-panic gzip etag)" --blocks 36 "$@"
run battery-session-cookie "batteries-peregrine,batteries-actix-web,batteries-peregrine-session-cookie,batteries-actix-web-session-cookie" \
    --blocks 36 "$@"
run battery-post "$(contenders validate body-limit)" --blocks 36 "$@"
run battery-gzip "$(contenders gzip)" --blocks 24 --duration 80ms "$@"
run battery-file "$(contenders)" --blocks 36 "$@"
run battery-form "$(contenders)" --blocks 24 --duration 300ms "$@"
