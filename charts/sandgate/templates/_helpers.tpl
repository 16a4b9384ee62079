{{/* Name that all of the release's objects begin with: 40 characters at most, and no dots, which a Service must not have. */}}
{{- define "sandgate.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name)) -}}
{{- $full | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* What every operator of the release is called: Service, ServiceAccount, roles. */}}
{{- define "sandgate.operator" -}}
{{- include "sandgate.fullname" . }}-operator
{{- end -}}

{{/* One shard's objects, its Lease included. Takes (dict "root" $ "shard" "a"). */}}
{{- define "sandgate.shard" -}}
{{- include "sandgate.operator" .root }}{{ with .shard }}-{{ . }}{{ end }}
{{- end -}}

{{- define "sandgate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "sandgate.operator" .) -}}
{{- else -}}
{{- required "serviceAccount.name: needed, because serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Labels that never change, by which the operator's pods are found. Also in its settings: policies of jobs name them. */}}
{{- define "sandgate.selector" -}}
app.kubernetes.io/name: sandgate-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Labels of objects that are not the operator's pods. */}}
{{- define "sandgate.labels" -}}
{{ include "sandgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: sandgate
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}

{{/* An image reference. Takes (dict "root" $ "image" .Values.images.x "registry" "..."). */}}
{{- define "sandgate.image" -}}
{{- with .registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end -}}

{{/* One of our own images. Takes (list $ "gateway"). */}}
{{- define "sandgate.ours" -}}
{{- $root := index . 0 -}}
{{- include "sandgate.image" (dict "root" $root "image" (get $root.Values.images (index . 1)) "registry" $root.Values.images.registry) -}}
{{- end -}}

{{/* Namespaces that are watched, as a JSON list; empty: all. */}}
{{- define "sandgate.namespaces" -}}
{{- if eq .Values.scope "namespace" -}}
{{- .Values.watchNamespaces | default (list .Release.Namespace) | uniq | toJson -}}
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{/* The settings of one shard: sandgate.operator.settings.Settings as JSON. Takes (dict "root" $ "shard" "a"). */}}
{{- define "sandgate.settings" -}}
{{- $root := .root -}}
{{- $jobs := $root.Values.jobs -}}
{{- $settings := dict
  "gateway_image" (include "sandgate.ours" (list $root "gateway"))
  "fetcher_image" (include "sandgate.ours" (list $root "fetcher"))
  "engine_image" (include "sandgate.image" (dict "root" $root "image" $root.Values.images.engine "registry" ""))
  "pull_policy" $root.Values.images.pullPolicy
  "pull_secrets" $root.Values.images.pullSecrets
  "namespaces" (include "sandgate.namespaces" $root | fromJsonArray)
  "shard" .shard
  "cluster_domain" $jobs.clusterDomain
  "models_dir" $jobs.modelsDir
  "runtime_class" $jobs.runtimeClass
  "dns_labels" $jobs.dns.labels
  "dns_namespace" $jobs.dns.namespace
  "dns_cidrs" $jobs.dns.cidrs
  "trainer_labels" $jobs.trainer.labels
  "trainer_namespaces" $jobs.trainer.namespaces
  "gateway_scrapers" $jobs.gateway.metricsFrom
  "engine_scrapers" $jobs.engine.metricsFrom
  "engine_trainer_namespaces" $jobs.engine.trainerNamespaces
  "external_url" ($jobs.gateway.external.url | trimSuffix "/")
  "external_parents" $jobs.gateway.external.parentRefs
  "external_peers" $jobs.gateway.external.from
  "operator_namespace" $root.Release.Namespace
  "operator_labels" (include "sandgate.selector" $root | fromYaml)
  "gateway_resources" $jobs.gateway.resources
  "retire_seconds" (int $jobs.gateway.retireSeconds)
  "trainer_key_seconds" (int $jobs.trainer.keySeconds)
  "sandbox_resources" $jobs.sandbox.resources
  "probe" $jobs.sandbox.probe
  "unreachable_seconds" (int $jobs.sandbox.unreachableSeconds)
  "failed_pods" (int $jobs.sandbox.keepFailed)
  "history" (int $jobs.history)
  "kueue" $root.Values.kueue.enabled
-}}
{{- toPrettyJson $settings -}}
{{- end -}}

{{/* The rules of Pod Security's level "restricted", for a container. */}}
{{- define "sandgate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The same, for a pod. The user is the image's own, so that clusters which assign one (OpenShift) may. */}}
{{- define "sandgate.podSecurity" -}}
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* The user's labels or annotations beside ours, which win. Takes (list "our YAML" theirs). */}}
{{- define "sandgate.beside" -}}
{{- toYaml (mergeOverwrite (deepCopy (index . 1)) (index . 0 | fromYaml)) -}}
{{- end -}}
