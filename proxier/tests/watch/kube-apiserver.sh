#!/bin/bash
# Builds etcd and kube-apiserver from Debian packages, for machines that cannot reach dl.k8s.io.
#
#   proxier/tests/watch/kube-apiserver.sh DIRECTORY
#
# Debian's newest complete source of Kubernetes is 1.20.2, in bookworm; later packages contain only
# kubectl. The proxy needs two later features, which this script adds: EndpointSlices of version v1
# (1.21), stored as v1beta1, and the field selector spec.clusterIP of Services (1.23). All other code
# is unchanged: storage, watch cache, authentication, allocation of cluster IPs. Runs on bookworm
# without root. Needs 4 GB of disk, and 20 minutes on two cores.
set -euo pipefail

assets=$(mkdir -p "$1" && realpath "$1")
work=${WORK:-$(mktemp -d)}
mirror=http://deb.debian.org/debian/pool/main
version=1.20.5+really1.20.2
checksum=b83c0780efb182d928dc63d46488a847f161f04e40a94b96bf5247dd671ecdfc
mkdir -p "$work/debs" "$work/go/src/k8s.io"

cd "$work/debs"
apt-get download etcd-server golang-1.19-go golang-1.19-src
for package in *.deb; do
    dpkg -x "$package" "$work/root"
done
curl -fsSO "$mirror/k/kubernetes/kubernetes_$version.orig.tar.gz"
echo "$checksum  kubernetes_$version.orig.tar.gz" | sha256sum --check --quiet
tree=$work/go/src/k8s.io/kubernetes
rm -rf "$tree"
mkdir "$tree"
tar xzf "kubernetes_$version.orig.tar.gz" -C "$tree" --strip-components 1
cd "$tree"

# Edits a file in place. Fails if the expression changes nothing: then the source has changed.
edit() {
    local file=$1 before
    before=$(sha256sum "$file")
    sed -i -E "$2" "$file"
    [ "$before" != "$(sha256sum "$file")" ] || { echo "$file: nothing to edit" >&2; exit 1; }
}

# discovery.k8s.io/v1 is a copy of v1beta1 with the field zone, which is stored in the topology.
outside=staging/src/k8s.io/api/discovery
inside=pkg/apis/discovery
cp -r $outside/v1beta1 $outside/v1
cp -r $inside/v1beta1 $inside/v1
rm $outside/v1/zz_generated.prerelease-lifecycle.go $inside/v1/zz_generated.* $inside/v1/*_test.go
sed -i 's/v1beta1/v1/g' $outside/v1/*.go $inside/v1/*.go
edit $outside/v1/doc.go '/prerelease-lifecycle-gen/d'
edit $outside/v1/types.go 's/json:"topology,/json:"deprecatedTopology,/'
edit $outside/v1/types.go '/^\tNodeName /a\	// +optional\n\tZone *string `json:"zone,omitempty" protobuf:"bytes,7,opt,name=zone"`'
cat > $inside/v1/conversion.go <<'GO'
package v1

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/kubernetes/pkg/apis/discovery"
)

// Convert_v1_Endpoint_To_discovery_Endpoint keeps the zone as a part of the topology.
func Convert_v1_Endpoint_To_discovery_Endpoint(in *discoveryv1.Endpoint, out *discovery.Endpoint, s conversion.Scope) error {
	if err := autoConvert_v1_Endpoint_To_discovery_Endpoint(in, out, s); err != nil {
		return err
	}
	if in.Zone != nil {
		topology := map[string]string{corev1.LabelTopologyZone: *in.Zone}
		for key, value := range in.Topology {
			topology[key] = value
		}
		out.Topology = topology
	}
	return nil
}

// Convert_discovery_Endpoint_To_v1_Endpoint takes the zone out of the topology.
func Convert_discovery_Endpoint_To_v1_Endpoint(in *discovery.Endpoint, out *discoveryv1.Endpoint, s conversion.Scope) error {
	if err := autoConvert_discovery_Endpoint_To_v1_Endpoint(in, out, s); err != nil {
		return err
	}
	out.Topology = nil
	for key, value := range in.Topology {
		if key == corev1.LabelTopologyZone {
			zone := value
			out.Zone = &zone
			continue
		}
		if out.Topology == nil {
			out.Topology = map[string]string{}
		}
		out.Topology[key] = value
	}
	return nil
}
GO
edit $inside/install/install.go 's,^(.*apis/discovery/)v1beta1"$,&\n\1v1",
    s/^\tutilruntime.Must\(v1beta1\.(.*)$/&\n\tutilruntime.Must(v1.\1/
    s/v1beta1.SchemeGroupVersion, v1alpha1/v1beta1.SchemeGroupVersion, v1.SchemeGroupVersion, v1alpha1/'
edit pkg/registry/discovery/rest/storage_discovery.go \
    's,^\tdiscoveryv1beta1 "k8s.io/api/discovery/v1beta1"$,&\n\tdiscoveryv1 "k8s.io/api/discovery/v1",
    s/^\treturn apiGroupInfo, true, nil$/\tif apiResourceConfigSource.VersionEnabled(discoveryv1.SchemeGroupVersion) {\n\t\tstorageMap, err := p.v1beta1Storage(apiResourceConfigSource, restOptionsGetter)\n\t\tif err != nil {\n\t\t\treturn genericapiserver.APIGroupInfo{}, false, err\n\t\t}\n\t\tapiGroupInfo.VersionedResourcesStorageMap["v1"] = storageMap\n\t}\n&/'
edit pkg/controlplane/instance.go \
    's,^\tdiscoveryv1beta1 "k8s.io/api/discovery/v1beta1"$,&\n\tdiscoveryv1 "k8s.io/api/discovery/v1",
    s/^\t\tdiscoveryv1beta1\.SchemeGroupVersion,$/&\n\t\tdiscoveryv1.SchemeGroupVersion,/'
edit cmd/kube-apiserver/app/aggregator.go \
    's/^(.*"discovery.k8s.io", Version: )"v1beta1"(.*)version: 12(.*)$/&\n\1"v1"\2version: 15\3/'
edit hack/lib/init.sh 's,^discovery.k8s.io/v1beta1 .$,discovery.k8s.io/v1 \\\n&,'

# The field selector spec.clusterIP of Services.
edit pkg/apis/core/v1/conversion.go \
    's/^\tif err := AddFieldLabelConversionsForSecret.*$/\tif err := addFieldLabelConversionsForService(scheme); err != nil {\n\t\treturn err\n\t}\n&/'
cat >> pkg/apis/core/v1/conversion.go <<'GO'

func addFieldLabelConversionsForService(scheme *runtime.Scheme) error {
	return scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind("Service"),
		func(label, value string) (string, string, error) {
			switch label {
			case "metadata.namespace", "metadata.name", "spec.clusterIP", "spec.type":
				return label, value, nil
			default:
				return "", "", fmt.Errorf("field label not supported: %s", label)
			}
		})
}
GO
cat > pkg/registry/core/service/fields.go <<'GO'
package service

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// GetAttrs returns what a Service can be selected by.
func GetAttrs(object runtime.Object) (labels.Set, fields.Set, error) {
	service, ok := object.(*api.Service)
	if !ok {
		return nil, nil, fmt.Errorf("not a Service")
	}
	own := generic.ObjectMetaFieldsSet(&service.ObjectMeta, true)
	own["spec.clusterIP"] = service.Spec.ClusterIP
	own["spec.type"] = string(service.Spec.Type)
	return service.Labels, own, nil
}

// Matcher selects Services.
func Matcher(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: GetAttrs}
}
GO
edit pkg/registry/core/service/storage/storage.go \
    's/^\toptions := &generic.StoreOptions\{RESTOptions: optsGetter\}$/\tstore.PredicateFunc = registry.Matcher\n\toptions := \&generic.StoreOptions{RESTOptions: optsGetter, AttrFunc: registry.GetAttrs}/'

# The source is in a GOPATH, because its go.mod is too old for this compiler. Its makefile would
# generate all code; this generates only the missing parts, which takes fewer steps.
export GOROOT=$work/root/usr/lib/go-1.19 GOPATH=$work/go GOCACHE=$work/cache
export PATH=$GOROOT/bin:$PATH GO111MODULE=off GOPROXY=off GOFLAGS= CGO_ENABLED=0
k8s=k8s.io/kubernetes
header=hack/boilerplate/boilerplate.generatego.txt
generate() {
    go build -o "$work/generator" "./vendor/k8s.io/$1"
    "$work/generator" --go-header-file "$header" "${@:2}"
}
generate code-generator/cmd/deepcopy-gen -O zz_generated.deepcopy -i $k8s/vendor/k8s.io/api/discovery/v1 \
    --bounding-dirs $k8s,k8s.io/api
generate code-generator/cmd/defaulter-gen -O zz_generated.defaults -i $k8s/$inside/v1 \
    --extra-peer-dirs $k8s/$inside/v1
generate code-generator/cmd/conversion-gen -O zz_generated.conversion -i $k8s/$inside/v1 \
    --extra-peer-dirs $k8s/pkg/apis/core,$k8s/pkg/apis/core/v1,k8s.io/api/core/v1
described=$(grep -rl --include='*.go' '^// +k8s:openapi-gen=true' staging/src/k8s.io/{api,apimachinery,apiextensions-apiserver,kube-aggregator} |
    xargs -n1 dirname | sort -u | sed "s,^staging/src,$k8s/vendor," | paste -sd,)
generate kube-openapi/cmd/openapi-gen -O zz_generated.openapi -i "$described" \
    -p $k8s/pkg/generated/openapi -r "$work/violations"
base=k8s.io/component-base/version
go build -p "$(nproc)" -o "$work/kube-apiserver" -ldflags "-s -w
    -X $k8s/vendor/$base.gitVersion=v1.20.2 -X $k8s/vendor/$base.gitMajor=1
    -X $k8s/vendor/$base.gitMinor=20" ./cmd/kube-apiserver
install "$work/kube-apiserver" "$work/root/usr/bin/etcd" "$assets"
"$assets/kube-apiserver" --version
"$assets/etcd" --version
