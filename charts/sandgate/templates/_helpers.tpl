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
  "log_level" $root.Values.operator.logLevel
  "log_format" $root.Values.operator.logFormat
  "gateway_log_level" $jobs.gateway.logLevel
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
  "fetcher_resources" $jobs.sandbox.fetcher.resources
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

{{/* The operator's environment, which nothing of the user's may change. */}}
{{- define "sandgate.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_IP # its family is that of jobs' pods
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end -}}

{{/* Where its settings are, and what it may write. */}}
{{- define "sandgate.mounts" -}}
- name: settings
  mountPath: /etc/sandgate
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- end -}}

{{/* Takes a shard's name. */}}
{{- define "sandgate.volumes" -}}
- name: settings
  configMap:
    name: {{ . }}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- end -}}

{{/*
Ours, and operator.extraEnv. Refused: our names; those by which the kubelet tells where the API server is; those that the
image sets, as without them its Python is not found.
*/}}
{{- define "sandgate.allEnv" -}}
{{- $env := include "sandgate.env" . | fromYamlArray -}}
{{- $taken := dict "PATH" "the image" "HOME" "the image" "PYTHONHOME" "the image" "PYTHONPATH" "the image" -}}
{{- $_ := set $taken "KUBERNETES_SERVICE_HOST" "Kubernetes" -}}
{{- $_ := set $taken "KUBERNETES_SERVICE_PORT" "Kubernetes" -}}
{{- range $env }}{{ $_ := set $taken .name "the chart" }}{{ end -}}
{{- range $one := .Values.operator.extraEnv -}}
{{- with get $taken $one.name -}}
{{- fail (printf "operator.extraEnv: %s is set by %s itself: take it out" $one.name .) -}}
{{- end -}}
{{- $_ := set $taken $one.name "an earlier entry" -}}
{{- $env = append $env $one -}}
{{- end -}}
{{- toYaml $env -}}
{{- end -}}

{{/* Ours, and operator.extraVolumes. Takes (list $ "shard's name"). */}}
{{- define "sandgate.allVolumes" -}}
{{- $volumes := include "sandgate.volumes" (index . 1) | fromYamlArray -}}
{{- $taken := dict -}}
{{- range $volumes }}{{ $_ := set $taken .name "the chart itself" }}{{ end -}}
{{- range $volume := (index . 0).Values.operator.extraVolumes -}}
{{- with get $taken $volume.name -}}
{{- fail (printf "operator.extraVolumes: the name %s is taken by %s: choose another" $volume.name .) -}}
{{- end -}}
{{- $_ := set $taken $volume.name "an earlier entry" -}}
{{- $volumes = append $volumes $volume -}}
{{- end -}}
{{- toYaml $volumes -}}
{{- end -}}

{{/*
Ours, and operator.extraVolumeMounts. Refused: a place that is one of ours, or has one of ours below it: the settings,
/tmp, the token, the program; and one below the settings, which cannot be made there.
*/}}
{{- define "sandgate.allMounts" -}}
{{- $mounts := include "sandgate.mounts" . | fromYamlArray -}}
{{- $named := list -}}
{{- range .Values.operator.extraVolumes }}{{ $named = append $named .name }}{{ end -}}
{{- $ours := list "/opt/sandgate" "/opt/room" "/var/run/secrets/kubernetes.io/serviceaccount" "/run/secrets/kubernetes.io/serviceaccount" -}}
{{- range $mounts }}{{ $ours = append $ours .mountPath }}{{ end -}}
{{- $taken := dict -}}
{{- range $mount := .Values.operator.extraVolumeMounts -}}
{{- $path := clean $mount.mountPath -}}
{{- if not (has $mount.name $named) -}}
{{- fail (printf "operator.extraVolumeMounts: %s is no volume of operator.extraVolumes" $mount.name) -}}
{{- end -}}
{{- range $ours -}}
{{- if or (eq $path .) (hasPrefix (printf "%s/" (trimSuffix "/" $path)) .) -}}
{{- fail (printf "operator.extraVolumeMounts: %s would hide %s, which the operator needs: choose another mountPath" $mount.mountPath .) -}}
{{- end -}}
{{- end -}}
{{- if hasPrefix "/etc/sandgate/" $path -}}
{{- fail (printf "operator.extraVolumeMounts: %s is below the operator's settings, where nothing can be mounted: choose another mountPath" $mount.mountPath) -}}
{{- end -}}
{{- if hasKey $taken $path -}}
{{- fail (printf "operator.extraVolumeMounts: the mountPath %s stands there twice" $mount.mountPath) -}}
{{- end -}}
{{- $_ := set $taken $path true -}}
{{- $mounts = append $mounts $mount -}}
{{- end -}}
{{- toYaml $mounts -}}
{{- end -}}
