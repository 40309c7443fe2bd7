{{/*
A spool beside your application. Copy this file into your chart's templates/, the block `spool` of values.yaml into
yours, and use both templates in a StatefulSet:

  spec.template.spec.initContainers:  - {{ include "dledger-spool.container" .Values.spool | nindent 10 | trim }}
  spec.volumeClaimTemplates:          - {{ include "dledger-spool.claim" .Values.spool | nindent 6 | trim }}

The pod's securityContext needs an fsGroup, and the application the address 127.0.0.1:8081 in place of the group's.
*/}}

{{- define "dledger-spool.container" -}}
name: dledger-spool
image: {{ required "spool.image: the image of node and operator" .image }}
restartPolicy: Always
args:
  - spool
  - run
  - --listen=127.0.0.1:8081
  {{- range required "spool.upstream: client ports of the group" .upstream }}
  - --upstream={{ . }}
  {{- end }}
  - --dir=/var/spool/dledger/{{ required "spool.name: of its directory" .name }}
  {{- range .topics }}
  - --topic={{ . }}
  {{- end }}
  - --max-bytes={{ int64 .maxBytes }}
  - --metrics=0.0.0.0:8090
ports:
  - {name: spool-metrics, containerPort: 8090, protocol: TCP}
startupProbe:
  httpGet: {path: /metrics, port: spool-metrics}
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 600
readinessProbe:
  httpGet: {path: /metrics, port: spool-metrics}
  periodSeconds: 10
  timeoutSeconds: 5
resources: {{- toYaml .resources | nindent 2 }}
securityContext:
  runAsUser: 10001
  runAsGroup: 10001
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  readOnlyRootFilesystem: true
volumeMounts:
  - {name: spool, mountPath: /var/spool/dledger}
{{- end -}}

{{- define "dledger-spool.claim" -}}
metadata:
  name: spool
spec:
  accessModes: [ReadWriteOnce]
  {{- with .storageClassName }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests: {storage: {{ .storage }}}
{{- end -}}
