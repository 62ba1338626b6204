{{- define "ipvs-proxier.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "ipvs-proxier.labels" -}}
app.kubernetes.io/name: ipvs-proxier
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Fails if a value is missing that no default can replace. */}}
{{- define "ipvs-proxier.check" -}}
{{- if not (or .Values.apiServer .Values.apiServers) -}}
{{- fail "apiServer is missing: the URL of the API server at an address that needs no Service, such as https://10.0.0.10:6443" -}}
{{- end -}}
{{- $mode := .Values.config.detectLocalMode | default "ClusterCIDR" -}}
{{- if and (eq $mode "ClusterCIDR") (not .Values.config.clusterCIDR) -}}
{{- fail "config.clusterCIDR is missing: the Pods' networks, such as 10.244.0.0/16 (or config.detectLocalMode: NodeCIDR)" -}}
{{- end -}}
{{- end -}}

{{/* The port of an address: `include "ipvs-proxier.port" (dict "address" ADDRESS "default" PORT)`. */}}
{{- define "ipvs-proxier.port" -}}
{{- $port := regexFind ":[0-9]+$" .address | trimPrefix ":" -}}
{{- if and $port (or (contains "." .address) (contains "]" .address)) -}}
{{ $port }}
{{- else -}}
{{ .default }}
{{- end -}}
{{- end -}}

{{/* `host:` of a probe, if the health server listens at one address only; kubelet runs on the same node. */}}
{{- define "ipvs-proxier.probe-host" -}}
{{- $address := .Values.config.healthzBindAddress | default "" -}}
{{- $host := $address -}}
{{- if hasPrefix "[" $address -}}
{{- $host = regexFind "[^\\[\\]]+" $address -}}
{{- else if not (regexMatch ":.*:" $address) -}}
{{- $host = regexReplaceAll ":[0-9]+$" $address "" -}}
{{- end -}}
{{- if not (has $host (list "" "0.0.0.0" "::")) -}}
host: {{ $host | quote }}
{{- end -}}
{{- end -}}

{{/* The configuration file: the values, without empty addresses, which have defaults by family. */}}
{{- define "ipvs-proxier.config" -}}
{{- $file := dict "apiVersion" "kubeproxy.config.k8s.io/v1alpha1" "kind" "KubeProxyConfiguration" -}}
{{- range $field, $value := .Values.config -}}
{{- if not (and (kindIs "string" $value) (empty $value)) -}}
{{- $_ := set $file $field $value -}}
{{- end -}}
{{- end -}}
{{/* The periods of the mode ipvs, which the values have by default, would be a warning in another mode. */}}
{{- if eq .Values.config.mode "nftables" -}}
{{- $_ := unset $file "ipvs" -}}
{{- end -}}
{{- $_ := set $file "clientConnection" (merge (dict "kubeconfig" "/var/lib/kube-proxy/kubeconfig.conf") (.Values.config.clientConnection | default dict)) -}}
{{- toYaml $file -}}
{{- end -}}
