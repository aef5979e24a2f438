{{- define "patchyard.labels" -}}
app.kubernetes.io/name: patchyard
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "patchyard.image" -}}
{{ .Values.image }}:{{ .Values.imageTag | default .Chart.AppVersion }}
{{- end }}

{{- define "patchyard.secretEnv" -}}
- name: PATCHYARD_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Values.existingSecret }}, key: token}}
- name: PATCHYARD_MODEL_API_KEY
  valueFrom: {secretKeyRef: {name: {{ .Values.existingSecret }}, key: model-api-key}}
{{- end }}
