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

{{/* The configuration file: the values, without empty addresses, which have defaults by family. */}}
{{- define "ipvs-proxier.config" -}}
{{- $file := dict "apiVersion" "kubeproxy.config.k8s.io/v1alpha1" "kind" "KubeProxyConfiguration" -}}
{{- range $field, $value := .Values.config -}}
{{- if not (and (kindIs "string" $value) (empty $value)) -}}
{{- $_ := set $file $field $value -}}
{{- end -}}
{{- end -}}
{{- $_ := set $file "clientConnection" (merge (dict "kubeconfig" "/var/lib/kube-proxy/kubeconfig.conf") (.Values.config.clientConnection | default dict)) -}}
{{- toYaml $file -}}
{{- end -}}
