#!/bin/sh
# Starts h2o in the foreground, with a configuration and the files that it serves in a folder of its
# own, which is removed when h2o has ended. SIGTERM asks h2o for its graceful end.
set -eu

folder=$(mktemp -d)
chmod 755 "$folder"
server=

end() {
    if [ -n "$server" ]; then
        kill -s TERM "$server" 2>/dev/null || true
    fi
}

trap 'rm -rf "$folder"' EXIT
trap end TERM INT QUIT

mkdir "$folder/root"
printf 'Hello, World!' >"$folder/root/index.txt"
printf 'Hello, World' >"$folder/hello.txt"
printf '{"message":"Hello, World!"}' >"$folder/json.json"
printf '{"status":"ok"}' >"$folder/health.json"
seq -f %09.0f 0 99999 >"$folder/download.bin"

{
    echo "num-threads: ${WORKERS:-1}"
    if [ "$(id -u)" = 0 ]; then
        echo "user: root"
    fi
    echo "listen: {host: 127.0.0.1, port: ${PORT:-8080}}"
    if [ -n "${TLS_CERT:-}" ] && [ -n "${TLS_KEY:-}" ]; then
        echo "listen: {host: 127.0.0.1, port: ${TLS_PORT:-8443}, ssl: {certificate-file: $TLS_CERT, key-file: $TLS_KEY, minimum-version: TLSv1.3}}"
    fi
    cat <<END
hosts:
  default:
    paths:
      /:
        file.dir: $folder/root
        file.index: [index.txt]
      /hello: {file.file: $folder/hello.txt}
      /json: {file.file: $folder/json.json}
      /api/v1/health: {file.file: $folder/health.json}
      /download: {file.file: $folder/download.bin}
END
} >"$folder/h2o.conf"

h2o -c "$folder/h2o.conf" &
server=$!
# A signal that is caught ends a wait early, so this waits until the server has really ended.
status=0
while kill -0 "$server" 2>/dev/null; do
    status=0
    wait "$server" || status=$?
done
exit "$status"
