{{/* Made from the rights that the programs state, by `make charts`; change them there. */}}

{{- define "poolpilot.rules.operator" -}}
# the endpoints of its pools
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# which pools it serves, and on which port each
- apiGroups: [""]
  resources: [services]
  verbs: [list, watch]
# selector and target ports of its pools
- apiGroups: ["inference.networking.k8s.io"]
  resources: [inferencepools]
  verbs: [list, watch]
# priorities and rewritten models
- apiGroups: ["llm-d.ai"]
  resources: [inferenceobjectives, inferencemodelrewrites]
  verbs: [list, watch]
# the same in their older group
- apiGroups: ["inference.networking.x-k8s.io"]
  resources: [inferenceobjectives, inferencemodelrewrites]
  verbs: [list, watch]
# what is wanted
- apiGroups: ["poolpilot.dev"]
  resources: [pickers, loraadapters]
  verbs: [list, watch]
# what came of it
- apiGroups: ["poolpilot.dev"]
  resources: [pickers/status, loraadapters/status]
  verbs: [patch]
# whether one is being deleted, before anything is made there
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
# one for each served pool
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
# which picker pods serve a pool
- apiGroups: ["discovery.k8s.io"]
  resources: [endpointslices]
  verbs: [get, list, watch, create, patch, delete]
# the picker pods
- apiGroups: ["apps"]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
# who the pickers are, and their configuration
- apiGroups: [""]
  resources: [serviceaccounts, configmaps]
  verbs: [get, list, watch, create, patch, delete]
# the pickers' rights where they serve
- apiGroups: ["rbac.authorization.k8s.io"]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
# no drain of nodes takes all pickers
- apiGroups: ["policy"]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# spec.autoscaling of a Picker
- apiGroups: ["autoscaling"]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
# nothing but its ports is reached on a picker
- apiGroups: ["networking.k8s.io"]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# certificates of pickers; credentials, by their name
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch, delete]
# what a person should know
- apiGroups: [""]
  resources: [events]
  verbs: [create]
# metrics of pickers, where the kind exists
- apiGroups: ["monitoring.coreos.com"]
  resources: [servicemonitors]
  verbs: [get, create, patch, delete]
# tls.mode: CertManager
- apiGroups: ["cert-manager.io"]
  resources: [certificates]
  verbs: [get, create, patch, delete]
{{- end }}

{{- define "poolpilot.rules.home" -}}
# one operator writes at a time
- apiGroups: ["coordination.k8s.io"]
  resources: [leases]
  verbs: [get, create, update]
{{- end }}

{{- define "poolpilot.rules.cluster" -}}
# rights of a Picker that may serve every namespace
- apiGroups: ["rbac.authorization.k8s.io"]
  resources: [clusterroles, clusterrolebindings]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}

{{- define "poolpilot.rules.doctor" -}}
- apiGroups: [""]
  resources: [pods, services]
  verbs: [list]
- apiGroups: ["discovery.k8s.io"]
  resources: [endpointslices]
  verbs: [list]
- apiGroups: ["inference.networking.k8s.io"]
  resources: [inferencepools]
  verbs: [list]
- apiGroups: ["poolpilot.dev"]
  resources: [pickers, loraadapters]
  verbs: [list]
- apiGroups: ["gateway.networking.k8s.io"]
  resources: [httproutes]
  verbs: [list]
- apiGroups: ["gateway.envoyproxy.io"]
  resources: [envoyextensionpolicies, backendtrafficpolicies, clienttrafficpolicies]
  verbs: [list]
- apiGroups: ["networking.istio.io"]
  resources: [destinationrules]
  verbs: [list]
{{- end }}

{{- define "poolpilot.rules.doctorCluster" -}}
- apiGroups: ["apiextensions.k8s.io"]
  resources: [customresourcedefinitions]
  verbs: [list]
{{- end }}

{{- define "poolpilot.rules.cleanup" -}}
- apiGroups: [""]
  resources: [services]
  verbs: [list, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, delete]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [list, delete]
- apiGroups: ["discovery.k8s.io"]
  resources: [endpointslices]
  verbs: [list, delete]
- apiGroups: ["apps"]
  resources: [deployments]
  verbs: [list, delete]
- apiGroups: ["policy"]
  resources: [poddisruptionbudgets]
  verbs: [list, delete]
- apiGroups: ["autoscaling"]
  resources: [horizontalpodautoscalers]
  verbs: [list, delete]
- apiGroups: ["networking.k8s.io"]
  resources: [networkpolicies]
  verbs: [list, delete]
- apiGroups: ["rbac.authorization.k8s.io"]
  resources: [rolebindings]
  verbs: [list, delete]
- apiGroups: ["rbac.authorization.k8s.io"]
  resources: [roles]
  verbs: [list, delete]
- apiGroups: ["monitoring.coreos.com"]
  resources: [servicemonitors]
  verbs: [list, delete]
- apiGroups: ["cert-manager.io"]
  resources: [certificates]
  verbs: [list, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, delete]
{{- end }}

{{- define "poolpilot.rules.cleanupCluster" -}}
- apiGroups: ["rbac.authorization.k8s.io"]
  resources: [clusterrolebindings]
  verbs: [list, delete]
- apiGroups: ["rbac.authorization.k8s.io"]
  resources: [clusterroles]
  verbs: [list, delete]
{{- end }}
