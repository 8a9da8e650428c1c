#!/bin/sh
# Starts nginx in the foreground, with a configuration and temporary folders in a folder of its
# own, which is removed when nginx has ended. SIGTERM and SIGINT ask nginx for its graceful end.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
# Its workers have fewer rights than whoever starts it.
chmod 755 "$folder"
server=
is_ending=

remove() {
    rm -rf "$folder"
}

end() {
    is_ending=yes
    if [ -n "$server" ]; then
        kill -s QUIT "$server" 2>/dev/null || true
    fi
}

trap remove EXIT
trap end TERM INT QUIT

tls=
if [ -n "${TLS_CERT:-}" ] && [ -n "${TLS_KEY:-}" ]; then
    tls="listen 127.0.0.1:${TLS_PORT:-8443} ssl http2;"
    tls="$tls ssl_certificate $TLS_CERT; ssl_certificate_key $TLS_KEY; ssl_protocols TLSv1.3;"
fi

# Before 1.25 nginx speaks one protocol on a port without TLS.
plain=
if [ -n "${H2C:-}" ]; then
    plain=" http2"
fi

seq -f %09.0f 0 99999 >"$folder/download.bin"
mkdir "$folder/files"
seq -f %09.0f 0 99 >"$folder/files/1k.bin"
seq -f %09.0f 0 29999 >"$folder/files/300k.bin"
seq -f %09.0f 0 999999 >"$folder/files/10m.bin"

sed -e "s|@WORKERS@|${WORKERS:-auto}|" \
    -e "s|@PORT@|${PORT:-8080}|" \
    -e "s|@PLAIN@|$plain|" \
    -e "s|@TLS@|$tls|" \
    -e "s|@FOLDER@|$folder|" \
    "$here/nginx.conf.template" >"$folder/nginx.conf"

nginx -p "$folder" -e stderr -c "$folder/nginx.conf" -g "daemon off;" &
server=$!
# A signal may have come before there was anybody to tell.
if [ -n "$is_ending" ]; then
    end
fi

# A signal that is caught ends a wait early, so this waits until the server has really ended.
status=0
while kill -0 "$server" 2>/dev/null; do
    status=0
    wait "$server" || status=$?
done
if [ -n "$is_ending" ]; then
    exit 0
fi
exit "$status"
