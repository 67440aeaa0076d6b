{{/* The operator's objects are called after the release. */}}
{{- define "tailrace.name" -}}
{{- $name := ternary .Release.Name (printf "%s-tailrace" .Release.Name) (contains "tailrace" .Release.Name) -}}
{{- printf "%s-operator" ($name | trunc 50 | trimSuffix "-") -}}
{{- end }}

{{/* What selects the operator's pods; never changed, as a Deployment's selector can't be. */}}
{{- define "tailrace.selector" -}}
app.kubernetes.io/name: tailrace-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tailrace.labels" -}}
{{ include "tailrace.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "tailrace.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Pod Security "restricted", for every container of the chart. */}}
{{- define "tailrace.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "tailrace.pod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}
