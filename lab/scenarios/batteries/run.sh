#!/usr/bin/env bash
# What each battery costs: three frameworks with and without it, in paired slices. Some 12 minutes, with the programs built. The
# table in docs/performance.md has the medians of what comes out:
#
#   lab/scenarios/batteries/run.sh runs/batteries
#   lab pack runs/batteries --out docs/results/batteries
#
# LAB is the lab's command, and further arguments are its own, for each run. BLOCKS=4 with `--tolerate-noise` is a look.
set -euo pipefail

mkdir -p "${1:?the folder for the runs}"
out=$(cd "$1" && pwd)
shift
lab=${LAB:-lab}
# Run files tell the command, which is to be the same wherever the repository lies.
cd "$(dirname "$0")/../../.."

# The three frameworks without a battery, then with each of those that are named; what a framework has not is left out.
contenders() {
    local list=batteries-peregrine,batteries-axum,batteries-actix-web battery framework
    for battery in "$@"; do
        for framework in peregrine axum actix-web; do
            if grep --quiet "^$battery = " "lab/contenders/batteries-$framework/contender.toml"; then
                list+=",batteries-$framework-$battery"
            fi
        done
    done
    echo "$list"
}

run() {
    local scenario=$1 contenders=$2 blocks=${BLOCKS:-$3}
    shift 3
    "$lab" run "lab/scenarios/batteries/$scenario.toml" --contenders "$contenders" --out "$out" --seed 51 \
        --blocks "$blocks" "$@"
}

run battery-json "$(contenders request-id cors security-headers signed-cookie session bearer rate-limit access-log trace timeout \
    catch-panic gzip etag)" 24 --duration 80ms "$@"
run battery-session-cookie "batteries-peregrine,batteries-actix-web,batteries-peregrine-session-cookie,batteries-actix-web-session-cookie" \
    24 --duration 80ms "$@"
run battery-post "$(contenders validate body-limit)" 24 --duration 80ms "$@"
run battery-gzip "$(contenders gzip)" 24 --duration 80ms "$@"
run battery-file "$(contenders)" 24 --duration 80ms "$@"
run battery-form "$(contenders)" 20 --duration 300ms "$@"
