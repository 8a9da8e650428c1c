#!/usr/bin/env bash
# Does each battery do what it is there for? The scenarios' replies are the same with and without a battery, or the two could
# not be compared, so what it adds to them is looked at here. Starts each built program with each battery, and asks it by curl.
#
#   lab contenders --build batteries-peregrine batteries-axum batteries-actix-web
#   lab/scenarios/batteries/check.sh target/contenders
set -euo pipefail

target=$(cd "${1:?the folder where contenders are built}" && pwd)
cd "$(dirname "$0")"
failed=0
server=
trap '[ -z "$server" ] || kill "$server"' EXIT

# The request of battery-json, and what a test adds to it.
ask() {
    local scenario=$1 path=$2
    shift 2
    local arguments=() line
    while IFS= read -r line; do
        arguments+=(-H "$line")
    done < <(sed -n '/^\[request/,/^\[reply/p' "$scenario.toml" |
        sed -nE 's/^fields = \{ *(.*) \}$/\1/p; s/^((Accept|Accept-Encoding|Authorization|Cookie|Origin) = .*)$/\1/p' |
        sed -E 's/ = "/: /; s/"$//')
    curl --silent --show-error --include --max-time 5 "${arguments[@]}" "$@" "http://127.0.0.1:$port$path" | tr -d '\0\r'
}

# A request with nothing but what is named here.
bare() {
    curl --silent --show-error --include --max-time 5 "${@:2}" "http://127.0.0.1:$port$1" | tr -d '\0\r'
}

# framework, battery, what has to be in the reply (a pattern), and the request
expect() {
    local framework=$1 battery=$2 pattern=$3
    shift 3
    port=$((20000 + RANDOM % 10000))
    BATTERY=$battery PORT=$port WORKERS=1 "$target/release/lab-contender-batteries-$framework" >/dev/null 2>&1 &
    server=$!
    for _ in $(seq 100); do
        curl --silent --output /dev/null "http://127.0.0.1:$port/" && break
        sleep 0.05
    done
    local reply
    reply=$("$@" || true)
    kill "$server" && wait "$server" 2>/dev/null || true
    server=
    if grep --quiet --text --ignore-case --extended-regexp "$pattern" <<<"$reply"; then
        echo "ok      $framework $battery"
    else
        echo "FAILED  $framework $battery: no $pattern in"
        head -c 800 <<<"$reply"
        failed=1
    fi
}

for framework in ${FRAMEWORKS:-peregrine axum actix-web}; do
    expect "$framework" request-id '^x-request-id: [0-9a-f-]{32,36}$' ask battery-json /json
    expect "$framework" cors '^access-control-allow-origin: https://app.example.com$' ask battery-json /json
    expect "$framework" security-headers '^content-security-policy: base-uri' ask battery-json /json
    expect "$framework" signed-cookie '^set-cookie: (shade|theme)=' ask battery-json /json
    expect "$framework" bearer ' 200 ' ask battery-json /json
    expect "$framework" bearer ' 401 ' bare /json -H 'Authorization: Bearer other'
    expect "$framework" rate-limit '^(ratelimit|x-ratelimit-limit):' ask battery-json /json
    expect "$framework" catch-panic ' 200 ' ask battery-json /json
    expect "$framework" gzip '^content-encoding: gzip$' ask battery-gzip /items
    expect "$framework" validate ' 422 ' ask battery-post /people -d '{"userName":"a b","age":7,"mail":"x"}'
    expect "$framework" body-limit ' 413 ' ask battery-post /people -d "[$(printf '%070000d' 0)]"
    expect "$framework" none '^last-modified: ' ask battery-file /files/lines.txt
    case $framework in
    peregrine)
        expect peregrine session ' 200 ' ask battery-json /json
        expect peregrine session ' 403 ' bare /json -H 'Cookie: session=CwAAAAAAAAAAAAAAAAAAAA'
        expect peregrine session-cookie ' 200 ' ask battery-session-cookie /json
        expect peregrine etag '^etag: ' ask battery-json /json
        ;;
    axum)
        expect axum session ' 200 ' ask battery-json /json
        expect axum session ' 403 ' bare /json -H 'Cookie: session=CwAAAAAAAAAAAAAAAAAAAA'
        ;;
    actix-web)
        expect actix-web session-cookie ' 200 ' ask battery-session-cookie /json
        expect actix-web session-cookie ' 403 ' bare /json -H 'Cookie: id=x'
        ;;
    esac
done
exit $failed
