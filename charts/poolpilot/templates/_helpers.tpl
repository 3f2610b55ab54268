{{/* Names, labels and what several templates share. */}}

{{- define "poolpilot.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{/* Without dots, which a release's name may have and a Service's may not. */}}
{{- define "poolpilot.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | replace "." "-" | trunc 53 | trimSuffix "-" }}
{{- else if contains (include "poolpilot.name" .) .Release.Name }}
{{- .Release.Name | replace "." "-" | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "poolpilot.name" .) | replace "." "-" | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "poolpilot.operator" -}}
{{ include "poolpilot.fullname" . }}-operator
{{- end }}

{{/* What never changes: a Deployment's selector cannot. */}}
{{- define "poolpilot.selector" -}}
{{ include "poolpilot.identity" . }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "poolpilot.identity" -}}
app.kubernetes.io/name: {{ include "poolpilot.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "poolpilot.operatorLabels" -}}
{{ include "poolpilot.selector" . }}
{{ include "poolpilot.origin" . }}
{{- end }}

{{/* Labels of what is not the operator itself. */}}
{{- define "poolpilot.labels" -}}
{{ include "poolpilot.identity" . }}
{{ include "poolpilot.origin" . }}
{{- end }}

{{- define "poolpilot.origin" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "poolpilot.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "poolpilot.operator" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed with serviceAccount.create: false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* "poolpilot.image" (list $ .Values.image) */}}
{{- define "poolpilot.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 }}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default $root.Chart.AppVersion $image.tag }}
{{- end }}
{{- end }}

{{/* JSON: the namespaces that get Roles with scope: namespace. */}}
{{- define "poolpilot.namespaces" -}}
{{- concat (list .Release.Namespace) .Values.watchNamespaces | uniq | toJson }}
{{- end }}

{{/* Value of --watch-namespaces; empty is all. */}}
{{- define "poolpilot.watched" -}}
{{- if eq .Values.scope "namespace" }}
{{- join "," (include "poolpilot.namespaces" . | fromJsonArray) }}
{{- else }}
{{- join "," .Values.watchNamespaces }}
{{- end }}
{{- end }}

{{/* "true" where the cluster gives pods their users, and refuses those that name one of their own. */}}
{{- define "poolpilot.assignedUsers" -}}
{{- if or (eq .Values.assignedUsers "always") (and (eq .Values.assignedUsers "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1")) -}}
true
{{- end }}
{{- end }}

{{/* A mesh's proxy would keep the pod of a finished hook running. */}}
{{- define "poolpilot.noMeshLabels" -}}
sidecar.istio.io/inject: "false"
{{- end }}
{{- define "poolpilot.noMeshAnnotations" -}}
linkerd.io/inject: disabled
{{- end }}

{{- define "poolpilot.podSecurityContext" -}}
runAsNonRoot: true
{{- if not (include "poolpilot.assignedUsers" .) }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "poolpilot.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* What cannot be said in values.schema.json. */}}
{{- define "poolpilot.check" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.leaderElection) }}
{{- fail "replicas: 2 or more operators need leaderElection: true, or all of them write" }}
{{- end }}
{{- $tls := dig "tls" "mode" "SelfSigned" .Values.picker.spec }}
{{- if and (eq .Values.scope "cluster") .Values.watchNamespaces }}
{{- fail "watchNamespaces: is read with scope: namespace; with scope: cluster the operator watches all" }}
{{- end }}
{{- if and .Values.gateways.envoyGateway .Values.picker.create (ne $tls "Disabled") }}
{{- fail (printf "gateways.envoyGateway: Envoy Gateway calls the picker without TLS; set picker.spec.tls.mode: Disabled (it is %s)" $tls) }}
{{- end }}
{{- end }}
