{{- define "motet.labels" -}}
app.kubernetes.io/name: motet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "motet.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "motet.container" -}}
imagePullPolicy: {{ .Values.images.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* A program without a port touches MOTET_LIVENESS_FILE as it goes on: restarted if that is so many minutes old, thrice. */ -}}
{{- define "motet.liveness" -}}
livenessProbe:
  exec: {command: [sh, -c, 'test -n "$(find /tmp/alive -mmin -{{ . }})"']}
  periodSeconds: 60
  timeoutSeconds: 10
  failureThreshold: 3
{{- end }}

{{- define "motet.postgres.host" -}}
{{- if .Values.postgres.bundled -}}
{{ .Release.Name }}-postgres
{{- else -}}
{{ .Values.postgres.host }}
{{- end -}}
{{- end }}

{{- define "motet.valkey.host" -}}
{{- if .Values.valkey.bundled -}}
{{ .Release.Name }}-valkey
{{- else -}}
{{ .Values.valkey.host }}
{{- end -}}
{{- end }}

{{- define "motet.valkey.scheme" -}}
{{- if .Values.valkey.tls -}}
rediss
{{- else -}}
redis
{{- end -}}
{{- end }}

{{- define "motet.postgres.address" -}}
{{ include "motet.postgres.host" . }}:{{ .Values.postgres.port }}/{{ .Values.postgres.database }}?sslmode={{ .Values.postgres.sslmode }}
{{- end }}

{{- define "motet.service.env" -}}
- {name: HOME, value: /tmp}
- name: POSTGRES_SYSTEM_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.secret }}, key: POSTGRES_SYSTEM_PASSWORD}}
- name: POSTGRES_APP_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.secret }}, key: POSTGRES_APP_PASSWORD}}
- name: VALKEY_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.secret }}, key: VALKEY_PASSWORD}}
- name: MOTET_SECRET_KEY
  valueFrom: {secretKeyRef: {name: {{ .Values.secret }}, key: MOTET_SECRET_KEY}}
- name: MOTET_METRICS_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Values.secret }}, key: MOTET_METRICS_TOKEN}}
- name: MOTET_DATABASE_URL
  value: postgresql+psycopg://motet_system:$(POSTGRES_SYSTEM_PASSWORD)@{{ include "motet.postgres.address" . }}
- name: MOTET_APP_DATABASE_URL
  value: postgresql+psycopg://motet_app:$(POSTGRES_APP_PASSWORD)@{{ include "motet.postgres.address" . }}
- name: MOTET_REDIS_URL
  value: {{ include "motet.valkey.scheme" . }}://service:$(VALKEY_PASSWORD)@{{ include "motet.valkey.host" . }}:{{ .Values.valkey.port }}/0
{{- if .Values.storage.url }}
- {name: MOTET_STORAGE_URL, value: {{ .Values.storage.url | quote }}}
{{- with .Values.storage.endpoint }}
- {name: MOTET_STORAGE_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- with .Values.storage.publicEndpoint }}
- {name: MOTET_STORAGE_PUBLIC_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- with .Values.storage.region }}
- {name: MOTET_STORAGE_REGION, value: {{ . | quote }}}
{{- end }}
{{- with .Values.storage.encryption }}
- {name: MOTET_STORAGE_ENCRYPTION, value: {{ . | quote }}}
{{- end }}
{{- with .Values.storage.kmsKey }}
- {name: MOTET_STORAGE_KMS_KEY, value: {{ . | quote }}}
{{- end }}
{{- with .Values.storage.credentialsSecret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ . }}, key: AWS_ACCESS_KEY_ID}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: AWS_SECRET_ACCESS_KEY}}
{{- end }}
{{- else }}
- {name: MOTET_STORAGE_DIR, value: /var/lib/motet/storage}
{{- if .Values.storage.transfers }}
- {name: MOTET_TRANSFER_PORT, value: "8323"}
{{- if .Values.storage.transferUrl }}
- {name: MOTET_TRANSFER_URL, value: {{ .Values.storage.transferUrl | quote }}}
{{- else }}
{{- if .Values.api.ingress.enabled }}
- {name: MOTET_TRANSFER_URL, value: {{ printf "https://%s" .Values.api.ingress.host | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.oidc.issuer }}
- {name: MOTET_OIDC_ISSUER, value: {{ . | quote }}}
- {name: MOTET_OIDC_CLIENT_ID, value: {{ $.Values.oidc.clientId | quote }}}
{{- with $.Values.oidc.clientSecret }}
- name: MOTET_OIDC_CLIENT_SECRET
  valueFrom: {secretKeyRef: {name: {{ . }}, key: MOTET_OIDC_CLIENT_SECRET}}
{{- end }}
{{- with $.Values.oidc.name }}
- {name: MOTET_OIDC_NAME, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- with .Values.oidc.publicUrl }}
- {name: MOTET_PUBLIC_URL, value: {{ . | quote }}}
{{- end }}
{{- with .Values.smtp.secret }}
- name: MOTET_SMTP_URL
  valueFrom: {secretKeyRef: {name: {{ . }}, key: MOTET_SMTP_URL}}
{{- with $.Values.smtp.from }}
- {name: MOTET_SMTP_FROM, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- with .Values.tracing.endpoint }}
- {name: MOTET_OTLP_ENDPOINT, value: {{ . | quote }}}
{{- with $.Values.tracing.headersSecret }}
- name: MOTET_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ . }}, key: MOTET_OTLP_HEADERS}}
{{- end }}
{{- end }}
{{- with .Values.nodeAutoscaling.url }}
- {name: MOTET_AUTOSCALING_URL, value: {{ . | quote }}}
{{- with $.Values.nodeAutoscaling.secret }}
- name: MOTET_AUTOSCALING_SECRETS
  valueFrom: {secretKeyRef: {name: {{ . }}, key: MOTET_AUTOSCALING_SECRETS}}
{{- end }}
{{- end }}
{{- with .Values.secretKeysBefore }}
- name: MOTET_SECRET_KEYS_BEFORE
  valueFrom: {secretKeyRef: {name: {{ . }}, key: MOTET_SECRET_KEYS_BEFORE}}
{{- end }}
- {name: MOTET_STATE_DIR, value: /var/lib/motet/state}
- {name: MOTET_HOST, value: 0.0.0.0}
- {name: MOTET_PORT, value: "8321"}
- {name: MOTET_INTERNAL_PORT, value: "8322"}
- {name: MOTET_TRUSTED_PROXIES, value: {{ .Values.api.trustedProxies | quote }}}
- {name: MOTET_API_PROCESSES, value: {{ .Values.api.processes | quote }}}
{{- range $name, $value := .Values.env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "motet.hub.env" -}}
{{- with .Values.hub.endpoint }}
- {name: HF_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- with .Values.hub.tokenSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: HF_TOKEN}}
{{- end }}
{{- end -}}

{{/* Not empty where the API's pods have a transfer port. */}}
{{- define "motet.transfers" -}}
{{- if .Values.storage.url }}
{{- else }}
{{- if .Values.storage.transfers }}true{{- end }}
{{- end }}
{{- end }}

{{- define "motet.service.mounts" -}}
- {name: storage, mountPath: /var/lib/motet}
{{- if .Values.models.existingClaim }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "motet.storage.claim" -}}
{{ .Values.storage.existingClaim | default (printf "%s-storage" .Release.Name) }}
{{- end }}

{{- define "motet.service.volumes" -}}
- name: storage
{{- if .Values.storage.url }}
  emptyDir: {}
{{- else }}
  persistentVolumeClaim: {claimName: {{ include "motet.storage.claim" . }}}
{{- end }}
{{ include "motet.other.volumes" . }}
{{- end }}

{{- define "motet.bootstrap.volumes" -}}
- name: storage
  persistentVolumeClaim: {claimName: {{ include "motet.storage.claim" . }}}
{{ include "motet.other.volumes" . }}
{{- end }}

{{- define "motet.other.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if .Values.models.existingClaim }}
- name: models
  persistentVolumeClaim: {claimName: {{ .Values.models.existingClaim }}, readOnly: true}
{{- end }}
{{- end }}
