{{/* Names, labels and what several templates share. */}}

{{- define "standalone.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{/* Without dots, which a release's name may have and a Service's may not. */}}
{{- define "standalone.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | replace "." "-" | trunc 53 | trimSuffix "-" }}
{{- else if contains (include "standalone.name" .) .Release.Name }}
{{- .Release.Name | replace "." "-" | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "standalone.name" .) | replace "." "-" | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* What never changes: a Deployment's selector cannot. */}}
{{- define "standalone.selector" -}}
app.kubernetes.io/name: {{ include "standalone.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "standalone.labels" -}}
{{ include "standalone.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "standalone.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "standalone.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed with serviceAccount.create: false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* "standalone.image" (list $ .Values.picker.image) */}}
{{- define "standalone.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 }}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default $root.Chart.AppVersion $image.tag }}
{{- end }}
{{- end }}

{{/* "true" where the cluster gives pods their users, and refuses those that name one of their own. */}}
{{- define "standalone.assignedUsers" -}}
{{- if or (eq .Values.assignedUsers "always") (and (eq .Values.assignedUsers "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1")) -}}
true
{{- end }}
{{- end }}

{{- define "standalone.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* As the API takes it in labelSelector. */}}
{{- define "standalone.labelSelector" -}}
{{- $parts := list }}
{{- range $key, $value := .Values.selector }}{{ $parts = append $parts (printf "%s=%s" $key $value) }}{{ end }}
{{- join "," $parts }}
{{- end }}

{{/* What cannot be said in values.schema.json. */}}
{{- define "standalone.check" -}}
{{- if and .Values.endpoints .Values.selector }}
{{- fail "endpoints and selector exclude each other: give the model servers' addresses, or the labels of their pods" }}
{{- end }}
{{- if not (or .Values.endpoints .Values.selector) }}
{{- fail "give endpoints (addresses of the model servers) or selector (labels of their pods), for example --set selector.app=vllm" }}
{{- end }}
{{- end }}
