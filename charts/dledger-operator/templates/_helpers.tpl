{{- define "operator.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The name is fixed: the NetworkPolicies of groups let pods with it reach their peer port. */}}
{{- define "operator.selector" -}}
app.kubernetes.io/name: dledger-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "operator.labels" -}}
{{ include "operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "operator.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "operator.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "operator.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "operator.nodeImage" -}}
{{- .Values.nodeImage | default (include "operator.image" .) -}}
{{- end -}}

{{/* A Role in each of the namespaces that are watched, or one ClusterRole where all are. */}}
{{- define "operator.driverRoleKind" -}}
{{- ternary "Role" "ClusterRole" (gt (len .Values.watchNamespaces) 0) -}}
{{- end -}}

{{- define "operator.driverRole" -}}
{{- include "operator.fullname" . }}-drivers
{{- end -}}

{{- define "operator.sparkNodeSelector" -}}
{{- $pairs := list -}}
{{- range $key, $value := .Values.sparkNodeSelector }}{{ $pairs = append $pairs (printf "%s=%s" $key $value) }}{{ end -}}
{{- join "," $pairs -}}
{{- end -}}

{{- define "operator.sparkImage" -}}
{{- .Values.sparkImage | default (printf "%s-spark:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion)) -}}
{{- end -}}

{{/*
What the operator may do where there are groups. It deletes nothing but the finished BrokerBackups of
schedules, its records of older specs, a StatefulSet without its pods to make it again with larger
volumes, and a pod of a group to restart it: children go with their owner.
It makes no pod and runs nothing in a pod. Only with peerTls it has Secrets to do with, each by its
name. "create" and "patch" are what server-side
apply needs. The last rule lets it give the drivers' Role, and no other, to the Spark drivers of backups,
without having itself what that one allows.
*/}}
{{- define "operator.rules" -}}
- apiGroups: [dledger.io]
  resources: [brokergroups]
  verbs: [list, watch]
- apiGroups: [dledger.io]
  resources: [brokerbackups]
  verbs: [get, list, watch, create, delete]
- apiGroups: [dledger.io]
  resources: [brokeroperations]
  verbs: [get, list, watch, create, delete]
- apiGroups: [dledger.io]
  resources: [brokergroups/status, brokerbackups/status, brokeroperations/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [configmaps, persistentvolumeclaims, serviceaccounts, services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims, services]
  verbs: [delete]
{{- if .Values.peerTls }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
{{- end }}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, watch, create, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [{{ lower (include "operator.driverRoleKind" .) }}s]
  resourceNames: [{{ include "operator.driverRole" . }}]
  verbs: [bind]
{{- end -}}

{{/* What a Spark driver does with its executors. Nothing but pods: docs/adr/0007. */}}
{{- define "operator.driverRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete, deletecollection]
{{- end -}}
