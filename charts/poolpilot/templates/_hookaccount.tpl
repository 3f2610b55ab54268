{{/*
A ServiceAccount for a hook, with rights in the namespaces that the operator watches; all of it goes with the hook.
"poolpilot.hookAccount" (dict "root" $ "name" NAME "hook" HOOK "rules" TEXT "clusterRules" TEXT)
*/}}
{{- define "poolpilot.hookAccount" -}}
{{- $root := .root }}
{{- $labels := include "poolpilot.labels" $root }}
{{- $annotations := dict "helm.sh/hook" .hook "helm.sh/hook-weight" "-1" "helm.sh/hook-delete-policy" "before-hook-creation,hook-succeeded" | toYaml }}
{{- $role := printf "%s-%s" .name $root.Release.Namespace }}
{{- $subjects := list (dict "kind" "ServiceAccount" "name" .name "namespace" $root.Release.Namespace) | toYaml }}
{{- $cluster := eq $root.Values.scope "cluster" }}
{{- $rules := $cluster | ternary (printf "%s\n%s" .rules .clusterRules) .rules }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- $labels | nindent 4 }}
  annotations:
    {{- $annotations | nindent 4 }}
{{- range $namespace := $cluster | ternary (list "") (include "poolpilot.namespaces" $root | fromJsonArray) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $cluster | ternary "ClusterRole" "Role" }}
metadata:
  name: {{ $role }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- $labels | nindent 4 }}
  annotations:
    {{- $annotations | nindent 4 }}
rules:
{{ $rules }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $cluster | ternary "ClusterRoleBinding" "RoleBinding" }}
metadata:
  name: {{ $role }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- $labels | nindent 4 }}
  annotations:
    {{- $annotations | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $cluster | ternary "ClusterRole" "Role" }}
  name: {{ $role }}
subjects:
{{ $subjects }}
{{- end }}
{{- end }}
