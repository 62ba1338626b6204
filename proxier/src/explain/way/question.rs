//! Questions: from which client, to which frontend.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::cluster::model::{Family, ObjectName, Protocol};
use crate::plan::frontend::Frontend;
use crate::plan::{Desired, FrontendKind};

/// The client of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// A host with this address.
    Address(IpAddr),
    /// A process of this node.
    Node,
    /// A client outside the cluster whose address is not known.
    Outside,
    /// Each of the two.
    Any,
}

/// The destination of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// An address and a port.
    Socket(SocketAddr),
    /// A Service, and the name or number of its port.
    Service(ObjectName, Option<String>),
}

impl FromStr for From {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "node" => Ok(Self::Node),
            "outside" => Ok(Self::Outside),
            "any" => Ok(Self::Any),
            _ => {
                let address = text.parse().map(Self::Address);
                address.map_err(|_| "is neither an address nor node, outside or any")
            }
        }
    }
}

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Node => f.write_str("a process of this node"),
            Self::Outside => f.write_str("a client outside the cluster"),
            Self::Any => f.write_str("any client"),
        }
    }
}

impl FromStr for To {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "is neither ADDRESS:PORT nor service/NAMESPACE/NAME[:PORT]";
        let Some(service) = text.strip_prefix("service/") else {
            return text.parse().map(Self::Socket).map_err(|_| FORM);
        };
        let (namespace, rest) = service.split_once('/').ok_or(FORM)?;
        let (name, port) = match rest.split_once(':') {
            Some((name, port)) => (name, Some(port.to_owned())),
            None => (rest, None),
        };
        let parts = [Some(namespace), Some(name), port.as_deref()];
        let is_part = |part: &str| !part.is_empty() && !part.contains(['/', '\0']);
        if !parts.into_iter().flatten().all(is_part) {
            return Err(FORM);
        }
        Ok(Self::Service(ObjectName::new(namespace, name), port))
    }
}

/// Returns the frontend that a client uses to reach a Service.
///
/// Clients outside the cluster use the load balancer's address, then an external IP, then the node port; all others the
/// cluster IP. `is_outside` tells which the client is.
///
/// # Errors
/// If the Service has no such port or frontend on this node, or several ports and none is named.
pub(crate) fn frontend_of(
    desired: &Desired,
    (service, port): (&ObjectName, Option<&str>),
    protocol: Option<Protocol>,
    (from, is_outside): (From, bool),
) -> Result<Frontend, String> {
    let of_service = desired.frontends.iter();
    let of_service = of_service.filter(|(_, plan)| plan.owner.service == *service);
    let all: Vec<_> = of_service.collect();
    if all.is_empty() {
        return Err(format!(
            "this node serves no Service {service}: it does not exist, is headless or of type ExternalName, or has a \
             label service.kubernetes.io/service-proxy-name"
        ));
    }
    let is_wanted = |(frontend, plan): &&(&Frontend, &crate::plan::FrontendPlan)| {
        let is_port = port.is_none_or(|port| {
            let is_number = port.parse() == Ok(frontend.port);
            *plan.owner.port == *port || is_number
        });
        is_port && protocol.is_none_or(|protocol| frontend.protocol == protocol)
    };
    let wanted: Vec<_> = all.iter().filter(is_wanted).collect();
    let mut names: Vec<String> = all
        .iter()
        .filter(|(_, plan)| plan.profile.kind == FrontendKind::ClusterIp)
        .map(|(frontend, plan)| {
            let name = &plan.owner.port;
            format!("{name} ({} {})", frontend.protocol, frontend.port)
        })
        .collect();
    names.sort();
    names.dedup();
    let ports = names.join(", ");
    let owners = wanted
        .iter()
        .map(|(frontend, plan)| (&plan.owner.port, frontend.protocol));
    let mut owners: Vec<_> = owners.collect();
    owners.sort();
    owners.dedup();
    match owners.len() {
        0 => {
            return Err(format!(
                "Service {service} has no such port; it has {ports}"
            ));
        }
        1 => {}
        _ => {
            return Err(format!(
                "Service {service} has several ports: name one of {ports}"
            ));
        }
    }
    let order = |kind: FrontendKind| match (is_outside, kind) {
        (true, FrontendKind::LoadBalancer) => 0,
        (true, FrontendKind::ExternalIp) => 1,
        (true, FrontendKind::NodePort) => 2,
        (true, FrontendKind::ClusterIp) => 3,
        (false, FrontendKind::ClusterIp) => 0,
        (false, _) => 1,
    };
    let is_of_family = |frontend: &Frontend| match from {
        From::Address(address) => frontend.family() == Family::from(address),
        _ => true,
    };
    let usable = wanted.iter().filter(|(frontend, _)| is_of_family(frontend));
    let best = usable.min_by_key(|(frontend, plan)| (order(plan.profile.kind), **frontend));
    best.map(|(frontend, _)| **frontend)
        .ok_or_else(|| format!("Service {service} has no address of the client's family"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_parsed() {
        assert_eq!("node".parse(), Ok(From::Node));
        assert_eq!(
            "fd00::1".parse::<From>(),
            Ok(From::Address("fd00::1".parse().unwrap()))
        );
        assert!("pod/x".parse::<From>().is_err());
        let service = |port: Option<&str>| {
            Ok(To::Service(
                ObjectName::new("a", "b"),
                port.map(str::to_owned),
            ))
        };
        assert_eq!("service/a/b".parse(), service(None));
        assert_eq!("service/a/b:http".parse(), service(Some("http")));
        assert_eq!(
            "[fd00::1]:80".parse(),
            Ok(To::Socket("[fd00::1]:80".parse().unwrap()))
        );
        for bad in [
            "service/a",
            "service//b",
            "service/a/b:",
            "service/a/b/c",
            "10.0.0.1",
            "a:80",
        ] {
            assert!(bad.parse::<To>().is_err(), "{bad}");
        }
    }
}
