//! The fields of Kubernetes' messages, by their names in JSON.
//!
//! The numbers are those of the `generated.proto` files of `k8s.io/api` and `k8s.io/apimachinery`.

/// A message: its fields in order of their numbers.
pub(crate) type Schema = &'static [(u32, &'static str, Type)];

/// The type of a field. A JSON array is a repeated field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Type {
    /// A string, a number or a boolean, as it is in JSON.
    Scalar,
    /// A point of time, in JSON as text.
    Time,
    /// A map of strings.
    Map,
    /// `FieldsV1`, which holds JSON.
    Json,
    /// `IntOrString`.
    IntOrString,
    /// A message.
    Message(Schema),
}

use Type::{IntOrString, Json, Map, Message, Scalar, Time};

/// Returns the schema of a kind, by its plural.
pub(crate) fn of_plural(plural: &str) -> Schema {
    match plural {
        "services" => SERVICE,
        "endpointslices" => ENDPOINT_SLICE,
        "nodes" => NODE,
        "servicecidrs" => SERVICE_CIDR,
        _ => PARTIAL,
    }
}

/// `meta.k8s.io/v1` `PartialObjectMetadata`.
pub(crate) const PARTIAL: Schema = &[(1, "metadata", Message(METADATA))];

/// `meta.k8s.io/v1` `ListMeta`.
pub(crate) const LIST_METADATA: Schema = &[
    (2, "resourceVersion", Scalar),
    (3, "continue", Scalar),
    (4, "remainingItemCount", Scalar),
];

/// `meta.k8s.io/v1` `Status`.
pub(crate) const STATUS: Schema = &[
    (1, "metadata", Message(LIST_METADATA)),
    (2, "status", Scalar),
    (3, "message", Scalar),
    (4, "reason", Scalar),
    (5, "details", Message(STATUS_DETAILS)),
    (6, "code", Scalar),
];

const STATUS_DETAILS: Schema = &[
    (4, "causes", Message(STATUS_CAUSE)),
    (5, "retryAfterSeconds", Scalar),
];

const STATUS_CAUSE: Schema = &[(1, "reason", Scalar), (2, "message", Scalar)];

const METADATA: Schema = &[
    (1, "name", Scalar),
    (2, "generateName", Scalar),
    (3, "namespace", Scalar),
    (5, "uid", Scalar),
    (6, "resourceVersion", Scalar),
    (7, "generation", Scalar),
    (8, "creationTimestamp", Time),
    (9, "deletionTimestamp", Time),
    (10, "deletionGracePeriodSeconds", Scalar),
    (11, "labels", Map),
    (12, "annotations", Map),
    (13, "ownerReferences", Message(OWNER)),
    (14, "finalizers", Scalar),
    (17, "managedFields", Message(MANAGED_FIELDS)),
];

const OWNER: Schema = &[
    (1, "kind", Scalar),
    (3, "name", Scalar),
    (4, "uid", Scalar),
    (5, "apiVersion", Scalar),
    (6, "controller", Scalar),
    (7, "blockOwnerDeletion", Scalar),
];

const MANAGED_FIELDS: Schema = &[
    (1, "manager", Scalar),
    (2, "operation", Scalar),
    (3, "apiVersion", Scalar),
    (4, "time", Time),
    (6, "fieldsType", Scalar),
    (7, "fieldsV1", Json),
    (8, "subresource", Scalar),
];

const SERVICE: Schema = &[
    (1, "metadata", Message(METADATA)),
    (2, "spec", Message(SERVICE_SPEC)),
    (3, "status", Message(SERVICE_STATUS)),
];

const SERVICE_SPEC: Schema = &[
    (1, "ports", Message(SERVICE_PORT)),
    (2, "selector", Map),
    (3, "clusterIP", Scalar),
    (4, "type", Scalar),
    (5, "externalIPs", Scalar),
    (7, "sessionAffinity", Scalar),
    (8, "loadBalancerIP", Scalar),
    (9, "loadBalancerSourceRanges", Scalar),
    (10, "externalName", Scalar),
    (11, "externalTrafficPolicy", Scalar),
    (12, "healthCheckNodePort", Scalar),
    (13, "publishNotReadyAddresses", Scalar),
    (14, "sessionAffinityConfig", Message(AFFINITY)),
    (17, "ipFamilyPolicy", Scalar),
    (18, "clusterIPs", Scalar),
    (19, "ipFamilies", Scalar),
    (20, "allocateLoadBalancerNodePorts", Scalar),
    (21, "loadBalancerClass", Scalar),
    (22, "internalTrafficPolicy", Scalar),
    (23, "trafficDistribution", Scalar),
];

const SERVICE_PORT: Schema = &[
    (1, "name", Scalar),
    (2, "protocol", Scalar),
    (3, "port", Scalar),
    (4, "targetPort", IntOrString),
    (5, "nodePort", Scalar),
    (6, "appProtocol", Scalar),
];

const AFFINITY: Schema = &[(1, "clientIP", Message(&[(1, "timeoutSeconds", Scalar)]))];

const SERVICE_STATUS: Schema = &[(
    1,
    "loadBalancer",
    Message(&[(1, "ingress", Message(INGRESS))]),
)];

const INGRESS: Schema = &[
    (1, "ip", Scalar),
    (2, "hostname", Scalar),
    (3, "ipMode", Scalar),
];

const ENDPOINT_SLICE: Schema = &[
    (1, "metadata", Message(METADATA)),
    (2, "endpoints", Message(ENDPOINT)),
    (3, "ports", Message(ENDPOINT_PORT)),
    (4, "addressType", Scalar),
];

const ENDPOINT: Schema = &[
    (1, "addresses", Scalar),
    (2, "conditions", Message(CONDITIONS)),
    (3, "hostname", Scalar),
    (4, "targetRef", Message(REFERENCE)),
    (5, "deprecatedTopology", Map),
    (6, "nodeName", Scalar),
    (7, "zone", Scalar),
    (8, "hints", Message(HINTS)),
];

const CONDITIONS: Schema = &[
    (1, "ready", Scalar),
    (2, "serving", Scalar),
    (3, "terminating", Scalar),
];

const REFERENCE: Schema = &[
    (1, "kind", Scalar),
    (2, "namespace", Scalar),
    (3, "name", Scalar),
    (4, "uid", Scalar),
];

const HINTS: Schema = &[
    (1, "forZones", Message(&[(1, "name", Scalar)])),
    (2, "forNodes", Message(&[(1, "name", Scalar)])),
];

const ENDPOINT_PORT: Schema = &[
    (1, "name", Scalar),
    (2, "protocol", Scalar),
    (3, "port", Scalar),
    (4, "appProtocol", Scalar),
];

const NODE: Schema = &[
    (1, "metadata", Message(METADATA)),
    (2, "spec", Message(NODE_SPEC)),
    (3, "status", Message(NODE_STATUS)),
];

const NODE_SPEC: Schema = &[
    (1, "podCIDR", Scalar),
    (3, "providerID", Scalar),
    (4, "unschedulable", Scalar),
    (5, "taints", Message(TAINT)),
    (7, "podCIDRs", Scalar),
];

const TAINT: Schema = &[
    (1, "key", Scalar),
    (2, "value", Scalar),
    (3, "effect", Scalar),
];

const NODE_STATUS: Schema = &[(5, "addresses", Message(NODE_ADDRESS))];

const NODE_ADDRESS: Schema = &[(1, "type", Scalar), (2, "address", Scalar)];

const SERVICE_CIDR: Schema = &[
    (1, "metadata", Message(METADATA)),
    (2, "spec", Message(&[(1, "cidrs", Scalar)])),
];
