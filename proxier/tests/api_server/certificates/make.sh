#!/bin/sh
# Replaces the certificates of the test server: an authority, servers at 127.0.0.1, clients.
# Their private keys are in the repository on purpose: they protect only tests.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

key() { # FILE CURVE
    openssl genpkey -quiet -algorithm EC -pkeyopt "ec_paramgen_curve:$2" -out "$1"
}

key "$work/authority.key" P-256
openssl req -x509 -new -key "$work/authority.key" -days 36500 -subj "/CN=test authority" \
    -addext "keyUsage=critical,keyCertSign" -out authority.pem

certificate() { # NAME CURVE EXTENSION...
    name=$1
    key "$name.key" "$2"
    shift 2
    printf 'basicConstraints=CA:FALSE\n' >"$work/extensions"
    printf '%s\n' "$@" >>"$work/extensions"
    openssl req -new -key "$name.key" -subj "/CN=test $name" |
        openssl x509 -req -CA authority.pem -CAkey "$work/authority.key" -days 36500 \
            -extfile "$work/extensions" -out "$name.pem"
}

certificate server P-256 "subjectAltName=IP:127.0.0.1" "extendedKeyUsage=serverAuth"
certificate server-p521 P-521 "subjectAltName=IP:127.0.0.1" "extendedKeyUsage=serverAuth"
certificate client P-256 "extendedKeyUsage=clientAuth"
certificate client-p521 P-521 "extendedKeyUsage=clientAuth"

# Without extensions, it has version 1.
openssl req -new -key client.key -subj "/CN=test client" |
    openssl x509 -req -CA authority.pem -CAkey "$work/authority.key" -days 36500 -out client-v1.pem

# Its own authority, which is what this command makes by default.
key server-self-signed.key P-521
openssl req -x509 -new -key server-self-signed.key -days 36500 -subj "/CN=test server" \
    -addext "subjectAltName=IP:127.0.0.1" -out server-self-signed.pem
