//! The rules of Kubernetes' documentation that an audit checks.

/// A rule, and where it is written.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DocumentedRule {
    /// Its identifier in the output, stable across versions.
    pub(crate) id: &'static str,
    /// The demand of the documentation, as a clause.
    pub(crate) demand: &'static str,
    /// Pages of the documentation and enhancement proposals (KEP) that demand it.
    pub(crate) sources: &'static [&'static str],
    /// Known departures of kube-proxy: issues and pull requests of kubernetes/kubernetes.
    pub(crate) known: &'static [&'static str],
}

const VIRTUAL_IPS: &str = "https://kubernetes.io/docs/reference/networking/virtual-ips/";
const EXTERNAL_POLICY: &str =
    "https://kubernetes.io/docs/reference/networking/virtual-ips/#external-traffic-policy";
const SERVICE_API: &str =
    "https://kubernetes.io/docs/reference/kubernetes-api/service-resources/service-v1/#ServiceSpec";
const CONDITIONS: &str =
    "https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#conditions";

pub(crate) const EXTERNAL_LOCAL: DocumentedRule = DocumentedRule {
    id: "external-traffic-policy-local",
    demand: "with externalTrafficPolicy Local, clients outside the cluster reach endpoints on this node \
             only; without one, nothing is forwarded",
    sources: &[EXTERNAL_POLICY, SERVICE_API],
    known: &[
        "https://github.com/kubernetes/kubernetes/pull/97081",
        "https://github.com/kubernetes/kubernetes/issues/125167",
    ],
};

pub(crate) const INTERNAL_LOCAL: DocumentedRule = DocumentedRule {
    id: "internal-traffic-policy-local",
    demand: "with internalTrafficPolicy Local, clients of the cluster IP reach endpoints on this node only; \
             without one, packets are dropped",
    sources: &[
        "https://kubernetes.io/docs/reference/networking/virtual-ips/#internal-traffic-policy",
        "https://kep.k8s.io/2086",
    ],
    known: &["https://github.com/kubernetes/kubernetes/pull/97081"],
};

pub(crate) const INSIDE_CLIENTS: DocumentedRule = DocumentedRule {
    id: "cluster-clients-of-external-addresses",
    demand: "traffic from inside the cluster to an external IP or load-balancer address has Cluster \
             semantics: it reaches the endpoints of all nodes, whatever externalTrafficPolicy says",
    sources: &[SERVICE_API],
    known: &["https://github.com/kubernetes/kubernetes/issues/93456"],
};

pub(crate) const READY_ONLY: DocumentedRule = DocumentedRule {
    id: "ready-endpoints-only",
    demand: "new connections go to ready endpoints; to terminating ones only if none is ready",
    sources: &[CONDITIONS, "https://kep.k8s.io/1669"],
    known: &[],
};

pub(crate) const READY_ALL: DocumentedRule = DocumentedRule {
    id: "ready-endpoints-serve",
    demand: "each ready endpoint that the traffic policy permits gets new connections; if none is ready, \
             each that is terminating but still serves",
    sources: &[CONDITIONS, "https://kep.k8s.io/1669"],
    known: &[],
};

pub(crate) const HINTS: DocumentedRule = DocumentedRule {
    id: "topology-hints",
    demand: "if all ready endpoints have hints, this node uses those that are meant for its name or zone",
    sources: &[
        "https://kubernetes.io/docs/concepts/services-networking/topology-aware-routing/",
        "https://kep.k8s.io/2433",
    ],
    known: &[],
};

pub(crate) const FRONTENDS: DocumentedRule = DocumentedRule {
    id: "every-frontend-is-served",
    demand: "every node serves each cluster IP, external IP, load-balancer address of mode VIP and node \
             port of the Service",
    sources: &[VIRTUAL_IPS, SERVICE_API],
    known: &[],
};

pub(crate) const NO_SERVICE: DocumentedRule = DocumentedRule {
    id: "no-frontend-without-a-service",
    demand: "an address of the cluster's service ranges belongs to the Service to which it is allocated, \
             so that a frontend without a Service must not exist",
    sources: &["https://kubernetes.io/docs/reference/networking/virtual-ips/#avoiding-collisions"],
    known: &[],
};

pub(crate) const ONE_OWNER: DocumentedRule = DocumentedRule {
    id: "one-service-per-frontend",
    demand: "no two Services collide: a frontend leads to the endpoints of one Service; the API server \
             does not check spec.externalIPs for that",
    sources: &["https://kubernetes.io/docs/reference/networking/virtual-ips/#avoiding-collisions"],
    known: &[],
};

pub(crate) const AFFINITY: DocumentedRule = DocumentedRule {
    id: "session-affinity",
    demand: "with sessionAffinity ClientIP, connections of a client reach the same endpoint until the \
             timeout in sessionAffinityConfig is over; otherwise there is no affinity",
    sources: &["https://kubernetes.io/docs/reference/networking/virtual-ips/#session-affinity"],
    known: &[],
};

pub(crate) const SOURCE_KEPT: DocumentedRule = DocumentedRule {
    id: "cluster-ip-keeps-the-source",
    demand: "a Pod that connects to a cluster IP keeps its source address. kube-proxy rewrites it here, \
             because the frontend's port is the number of a node port",
    sources: &[
        "https://kubernetes.io/docs/tutorials/services/source-ip/#source-ip-for-services-with-type-clusterip",
    ],
    known: &["https://github.com/kubernetes/kubernetes/issues/132068"],
};
