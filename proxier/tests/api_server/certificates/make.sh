#!/bin/sh
# Replaces the certificates of the test server: an authority, a server at 127.0.0.1, a client.
# Their private keys are in the repository on purpose: they protect only tests.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

key "$work/authority.key"
openssl req -x509 -new -key "$work/authority.key" -days 36500 -subj "/CN=test authority" \
    -addext "keyUsage=critical,keyCertSign" -out authority.pem

certificate() { # NAME EXTENSION...
    name=$1
    shift
    key "$name.key"
    printf 'basicConstraints=CA:FALSE\n' >"$work/extensions"
    printf '%s\n' "$@" >>"$work/extensions"
    openssl req -new -key "$name.key" -subj "/CN=test $name" |
        openssl x509 -req -CA authority.pem -CAkey "$work/authority.key" -days 36500 \
            -extfile "$work/extensions" -out "$name.pem"
}

certificate server "subjectAltName=IP:127.0.0.1" "extendedKeyUsage=serverAuth"
certificate client "extendedKeyUsage=clientAuth"
