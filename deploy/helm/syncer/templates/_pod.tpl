{{- define "syncer.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What every pod has; `settings` and `secret` are names. */}}
{{- define "syncer.pod" -}}
automountServiceAccountToken: false
securityContext: {runAsNonRoot: true, runAsUser: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
volumes:
  - {name: settings, configMap: {name: {{ .settings }}}}
  - {name: ca, configMap: {name: {{ .root.Values.authority }}}}
  - {name: secrets, secret: {secretName: {{ .secret }}, defaultMode: 0440}}
{{- end }}

{{/* What every container has. */}}
{{- define "syncer.container" -}}
image: {{ include "syncer.image" . }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: settings, mountPath: /etc/syncer/syncer.yaml, subPath: syncer.yaml, readOnly: true}
  - {name: ca, mountPath: /etc/ssl/syncer, readOnly: true}
  - {name: secrets, mountPath: /run/secrets/syncer, readOnly: true}
{{- end }}

{{- define "syncer.environment" -}}
- {name: SYNCER_POSTGRES_DSN_FILE, value: /run/secrets/syncer/postgres-dsn}
- {name: SYNCER_ELASTICSEARCH_API_KEY_FILE, value: /run/secrets/syncer/elasticsearch-api-key}
{{- end }}

{{- define "syncer.kafka" -}}
{{- with .Values.kafka }}
- {name: SYNCER_KAFKA_BOOTSTRAP_SERVERS, value: {{ . | quote }}}
- {name: SYNCER_KAFKA_PROPERTIES_FILE, value: /run/secrets/syncer/kafka-properties}
{{- end }}
{{- end }}
