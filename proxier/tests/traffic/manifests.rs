//! Manifests that the program reads.

/// The node, and a Service on it with TCP and UDP in both families.
pub(crate) const WEB: &str = include_str!("web.yaml");

/// A Service whose endpoint is on another node. Its EndpointSlice is [`remote_slice`].
pub(crate) const REMOTE: &str = "\
apiVersion: v1
kind: Service
metadata:
  name: remote
spec:
  clusterIP: 10.96.1.5
  ports:
  - port: 80
    targetPort: 8080
";

/// [`REMOTE`] as in a half-written file, which is not YAML.
pub(crate) const DAMAGED_REMOTE: &str = "\
apiVersion: v1
kind: Service
metadata:
  name: remote
spec: [
";

/// Returns the EndpointSlice of [`REMOTE`].
pub(crate) fn remote_slice(endpoint: &str) -> String {
    slice(
        "remote",
        &format!("- {{addresses: [{endpoint}], nodeName: node-b}}"),
    )
}

/// Returns a Service with session affinity, and its EndpointSlice.
pub(crate) fn sticky(name: &str, cluster_ip: &str) -> String {
    let slice = slice(
        name,
        "- addresses: [10.244.1.2]\n\
         - addresses: [10.244.1.3]",
    );
    format!(
        "apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: {cluster_ip}
  sessionAffinity: ClientIP
  ports:
  - port: 80
    targetPort: 8080
---
{slice}"
    )
}

fn slice(service: &str, endpoints: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: {service}-v4
  labels:
    kubernetes.io/service-name: {service}
addressType: IPv4
ports:
- name: \"\"
  port: 8080
endpoints:
{endpoints}
"
    )
}
