//! The causes of changes.

use std::fmt;
use std::sync::Arc;

use crate::cluster::model::ObjectName;
use crate::dataplane::ipvs::op::CARRIER;
use crate::plan::FrontendKind;

/// The reason of a change; prints as a clause: `the endpoint is not ready`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChangeCause {
    /// The Service has the frontend.
    Requested(FrontendKind),
    /// Clients inside and outside the cluster reach different endpoints.
    InsideClients,
    /// No Service has the frontend.
    NoService,
    /// The policy of this kind of frontend is Local, and this node has no endpoint that serves.
    NoLocalEndpoint(FrontendKind),
    /// The policy of this kind of frontend is Local, and the endpoint is on another node.
    NotLocal(FrontendKind, Option<Arc<str>>),
    /// The destination is an endpoint of a younger Service with the same frontend.
    Contested(ObjectName),
    /// No EndpointSlice of the Service lists the endpoint.
    Unlisted,
    /// The endpoint is not ready.
    NotReady,
    /// The endpoint is terminating, and others are ready.
    Terminating,
    /// Topology hints select other endpoints for this node.
    Hints,
    /// The annotation `topology-keys` selects other endpoints.
    TopologyKeys,
    /// The endpoint is ready.
    Ready,
    /// The endpoint is terminating but serves, and no endpoint is ready.
    LastResort,
    /// `spec.sessionAffinity`.
    Affinity,
    /// An annotation `ipvs-proxier.io/..`.
    Annotation(&'static str),
    /// A setting of the node.
    Setting(&'static str),
    /// Kubernetes has no weights.
    NoWeights,
    /// Endpoints are reached by masquerading only.
    NotMasqueraded,
    /// No route or address makes the service address local.
    AddressMissing,
    /// The service address is local in another form.
    AddressForm,
    /// The route has another preferred source than the node's address.
    Source,
    /// The route has another MTU than the smallest of the node's links.
    Mtu,
    /// No Service has the address.
    AddressUnused,
    /// The device does not exist.
    CarrierMissing,
    /// The device is down, as kube-proxy leaves it, or has addresses of its own.
    CarrierDown,
    /// No service address needs the device.
    CarrierUnused,
    /// The kernel lacks our rules or has others.
    Rules,
    /// The same, while kube-proxy's rules exist.
    RulesBesideOthers,
}

impl ChangeCause {
    /// Returns whether a difference of addresses affects one Service, not the node.
    pub(super) fn is_of_service(&self) -> bool {
        matches!(self, Self::AddressMissing)
    }
}

/// Returns the field of the policy that applies to frontends of this kind.
fn policy(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => "internalTrafficPolicy",
        _ => "externalTrafficPolicy",
    }
}

impl fmt::Display for ChangeCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested(kind) => {
                write!(f, "the Service has this frontend ({})", kind.field())
            }
            Self::InsideClients => f.write_str(
                "with externalTrafficPolicy Local, clients inside the cluster reach the endpoints of \
                 all nodes, and clients outside those of this node",
            ),
            Self::NoService => f.write_str("no Service has this frontend"),
            Self::NoLocalEndpoint(kind) => write!(
                f,
                "{} is Local, and no endpoint on this node serves",
                policy(*kind)
            ),
            Self::NotLocal(kind, Some(node)) => {
                write!(f, "{} is Local, and node {node} has it", policy(*kind))
            }
            Self::NotLocal(kind, None) => {
                write!(f, "{} is Local, and its node is unknown", policy(*kind))
            }
            Self::Contested(service) => write!(
                f,
                "it serves Service {service}, which has the same frontend and is younger"
            ),
            Self::Unlisted => f.write_str("no EndpointSlice of the Service lists it"),
            Self::NotReady => f.write_str("the endpoint is not ready"),
            Self::Terminating => {
                f.write_str("the endpoint is terminating, and others are ready")
            }
            Self::Hints => f.write_str("topology hints give this node other endpoints"),
            Self::TopologyKeys => f.write_str(
                "the annotation ipvs-proxier.io/topology-keys selects other endpoints",
            ),
            Self::Ready => f.write_str("the endpoint is ready"),
            Self::LastResort => f.write_str(
                "the endpoint is terminating but still serves, and no endpoint is ready",
            ),
            Self::Affinity => f.write_str("spec.sessionAffinity says so"),
            Self::Annotation(name) => write!(f, "the annotation ipvs-proxier.io/{name} says so"),
            Self::Setting(flag) => write!(f, "{flag} says so"),
            Self::NoWeights => f.write_str("no annotation sets a weight"),
            Self::NotMasqueraded => f.write_str("endpoints of Services need masquerading"),
            Self::AddressMissing => f.write_str("no route or device makes it local"),
            Self::AddressForm => f.write_str(
                "--service-addresses asks for another form; the present form is removed after the new \
                 one exists",
            ),
            Self::Source => f.write_str(
                "connections of this node come from the address of its Node object",
            ),
            Self::Mtu => f.write_str("routes have the smallest MTU of the node's links, locked"),
            Self::AddressUnused => f.write_str("no Service has it"),
            Self::CarrierMissing => f.write_str("service addresses need it"),
            Self::CarrierDown => f.write_str(
                "routes need a device that is up and gets no IPv6 address of its own",
            ),
            Self::CarrierUnused => f.write_str("no service address needs it"),
            Self::Rules => f.write_str("the kernel does not have the planned rules"),
            Self::RulesBesideOthers => write!(
                f,
                "the kernel does not have them; the rules of the program that created {CARRIER} stay"
            ),
        }
    }
}
