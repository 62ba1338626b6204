//! Explains the way of a client's packets through this node: who answers a new connection, and why.
//!
//! ```text
//! question ─▶ frontend, first packet ─▶ Rules::pass ─▶ Passed ─┐
//! plan, survey of endpoints ──────────────────────────────────┼─▶ steps ─▶ Explanation
//! kernel, host ───────────────────────────────────────────────┘
//! ```
//!
//! The rules of the dataplane decide, as values (`passage`); the plan gives the words.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nftables::{End, Match, Packet};

use crate::cluster::model::{Family, Protocol, ServicePort, TrafficPolicy};
use crate::dataplane::Planned;
use crate::plan::frontend::Frontend;
use crate::plan::{Balancing, FrontendKind, FrontendPlan, Scope};

pub(crate) mod connection;
mod endpoints;
pub(crate) mod finding;
pub(crate) mod host;
pub(crate) mod kernel;
pub(crate) mod live;
pub(crate) mod passage;
pub(crate) mod question;
pub(crate) mod step;

use finding::*;
use passage::{Addresses, Arrival, Passed, Rules};
use question::From;
use step::{Explanation, Outcome, Seen, Step};

/// A port of a client. No rule depends on it.
const CLIENT_PORT: u16 = 50_000;

/// What an explanation is made from.
#[derive(Clone, Copy)]
pub(crate) struct Sight<'a> {
    pub(crate) planned: Planned<'a>,
    /// What decides about packets.
    pub(crate) rules: Rules<'a>,
    /// Where the rules are seen.
    pub(crate) seen: Seen,
    /// Whether an address is local for Services.
    pub(crate) services: &'a dyn Fn(IpAddr) -> bool,
    /// The clients inside the cluster.
    pub(crate) inside: &'a [Match],
    /// The device by which the packets of a client arrive, if it is known.
    pub(crate) device: &'a dyn Fn(IpAddr) -> Option<String>,
    /// More steps about a frontend: what the kernel and the host say.
    pub(crate) more: &'a dyn Fn(&Asked) -> anyhow::Result<Vec<Step>>,
}

/// A question, and what the rules say about it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) frontend: Frontend,
    pub(crate) packet: Packet,
    pub(crate) passed: Passed,
}

impl Sight<'_> {
    /// Explains the way from `from`, which is not [`From::Any`], to `frontend`.
    ///
    /// # Errors
    /// Those of [`Sight::more`].
    pub(crate) fn explain(&self, from: From, frontend: Frontend) -> anyhow::Result<Explanation> {
        let own = &self.planned.machine.addresses;
        let addresses = Addresses {
            own,
            services: self.services,
        };
        let packet = self.packet(from, &frontend, addresses);
        let passed = self.rules.pass(&packet, addresses);
        let asked = Asked {
            frontend,
            packet,
            passed,
        };
        let plan = self.planned.desired().frontends.get(&frontend);
        let mut steps = match plan {
            Some(plan) => self.of_frontend(from, plan, &asked),
            None => self.of_no_frontend(&asked),
        };
        steps.extend((self.more)(&asked)?);
        let question = format!("{from} to {frontend}");
        let endpoints = asked.passed.endpoints.into_iter().collect();
        Ok(Explanation::new(question, steps, endpoints))
    }

    /// Returns the first packet of a connection.
    fn packet(&self, from: From, frontend: &Frontend, addresses: Addresses<'_>) -> Packet {
        let to = frontend.address;
        let source = match from {
            From::Address(address) => address,
            From::Node | From::Any => self.own_source(to, addresses),
            From::Outside => self.outsider(to.into()),
        };
        let is_own = match from {
            From::Address(address) => addresses.is_own(address),
            From::Node | From::Any => true,
            From::Outside => false,
        };
        let device = match is_own {
            true => String::new(),
            false => self.device_of(source),
        };
        let source = SocketAddr::new(source, CLIENT_PORT);
        Packet::new(frontend.protocol, source, frontend.socket(), &device)
    }

    /// Returns the address from which a process of this node connects to `to`.
    fn own_source(&self, to: IpAddr, addresses: Addresses<'_>) -> IpAddr {
        if addresses.is_own(to) {
            return to;
        }
        let preferred = self.planned.desired().addresses.get(&to).copied().flatten();
        let node = self.planned.snapshot.node();
        let named = || node.and_then(|node| node.address(to.into()));
        preferred.or_else(named).unwrap_or(to)
    }

    /// Returns an address of documentation (RFC 5737, 3849), as an example of a client outside the cluster.
    fn outsider(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        }
    }

    /// Returns the name of a device of the kind by which packets from `source` should arrive.
    fn guessed_device(&self, source: IpAddr) -> &'static str {
        let node = self.planned.snapshot.node();
        let is_pod = node.is_some_and(|node| node.pod_cidrs.iter().any(|it| it.contains(source)))
            || self.planned.desired().local_endpoints.contains(&source);
        if is_pod { "veth" } else { "eth" }
    }

    /// Returns whether a client is outside the cluster.
    pub(crate) fn is_outside(&self, from: From) -> bool {
        let address = match from {
            From::Outside => return true,
            From::Node | From::Any => return false,
            From::Address(address) => address,
        };
        let socket = SocketAddr::new(address, CLIENT_PORT);
        let mut packet = Packet::new(Protocol::Tcp, socket, socket, &self.device_of(address));
        packet.source_is_local = self.planned.machine.has(&address);
        !self.is_inside(&packet)
    }

    /// Returns the device by which packets from `source` arrive, or one of its kind.
    fn device_of(&self, source: IpAddr) -> String {
        (self.device)(source).unwrap_or_else(|| self.guessed_device(source).to_owned())
    }

    fn is_inside(&self, packet: &Packet) -> bool {
        self.inside.iter().any(|client| packet.matches(client))
    }

    /// Explains a destination that is no frontend of the plan.
    fn of_no_frontend(&self, asked: &Asked) -> Vec<Step> {
        let Asked {
            frontend, passed, ..
        } = asked;
        let address = frontend.address;
        let at_address = || {
            self.planned
                .desired()
                .frontends
                .range(Frontend::range_at(address))
        };
        let owners: BTreeSet<_> = at_address().map(|(_, plan)| &plan.owner.service).collect();
        let owners: Vec<String> = owners.into_iter().map(ToString::to_string).collect();
        let ports: Vec<String> = at_address()
            .map(|(it, _)| format!("{} {}", it.protocol, it.port))
            .collect();
        let node_port = self.node_port(frontend.protocol, frontend.port);
        let is_own = address.is_loopback() || self.planned.machine.has(&address);
        let outcome = match &passed.arrival {
            Arrival::Ended(End::Rejected(_)) | Arrival::NoDestination => Outcome::Refused,
            Arrival::Ended(End::Dropped(_)) => Outcome::Dropped,
            Arrival::Endpoint(_) => Outcome::Answered,
            Arrival::Process | Arrival::Leaves => Outcome::Unknown,
        };
        let step = if let Some(owner) = node_port.filter(|_| is_own) {
            let what = format!(
                "port {} is a node port of Service {owner}, which this node does not serve at {address}",
                frontend.port
            );
            let because = match address.is_loopback() {
                true => {
                    "the kernel routes no packet from 127.0.0.1 to an endpoint; --localhost-nodeports is not set"
                }
                false => "--nodeport-addresses (nodePortAddresses) leaves the address out",
            };
            // No rule of ours ends it; a process that listens there would answer.
            let outcome = match outcome {
                Outcome::Unknown => Outcome::Refused,
                other => other,
            };
            Step::new(what, because, Seen::Plan).finding(
                &NO_NODE_PORT_HERE,
                outcome,
                "ipvs-proxier explain FROM with an address of the Node",
            )
        } else if !owners.is_empty() && !is_own {
            let services = owners.join(", ");
            let what = format!("no Service has port {} at {address}", frontend.port);
            let because = format!("spec.ports of Service {services}: {}", ports.join(", "));
            let next = "kubectl get service --all-namespaces";
            Step::new(what, because, Seen::Plan).finding(&UNLISTED_PORT, outcome, next)
        } else if is_own {
            let what = format!(
                "{frontend} is no frontend: a process of this node answers, if one listens"
            );
            let because = "an interface of this node has the address";
            let next = format!("ss --listening --numeric 'sport = :{}'", frontend.port);
            Step::new(what, because, Seen::Plan).finding(&OWN_PROCESS, outcome, next)
        } else if self.rejects_unallocated(address) {
            let what = format!(
                "no Service has {address}, an address of a service range: this node rejects connections to it"
            );
            let because =
                "a ServiceCIDR or --service-cidr has the address (--unallocated-addresses=reject)";
            let next = "kubectl get service --all-namespaces --output wide";
            Step::new(what, because, Seen::Plan).finding(&UNALLOCATED, Outcome::Refused, next)
        } else {
            let what = format!("no Service that this node serves has {address}");
            let because = "no spec.clusterIPs, spec.externalIPs, and no status.loadBalancer.ingress with mode VIP; a \
                           Service may be headless, or have the label service.kubernetes.io/service-proxy-name";
            let next = "kubectl get service --all-namespaces --output wide";
            Step::new(what, because, Seen::Plan).finding(&NO_SERVICE, outcome, next)
        };
        vec![step]
    }

    /// Returns whether packet rules reject connections to `address` because no Service has it.
    fn rejects_unallocated(&self, address: IpAddr) -> bool {
        let mut ranges = self.planned.desired().service_ranges.iter();
        let has_rules = !matches!(self.rules, Rules::Relay(..) | Rules::Ipvs(None, _));
        has_rules && ranges.any(|range| range.contains(address))
    }

    /// Returns the Service that has a node port.
    fn node_port(&self, protocol: Protocol, number: u16) -> Option<String> {
        let mut services = self.planned.snapshot.services();
        let has = |port: &ServicePort| port.protocol == protocol && port.node_port == Some(number);
        let found = services.find(|service| service.ports.iter().any(has));
        found.map(|service| service.name.to_string())
    }

    /// Explains a frontend of the plan.
    fn of_frontend(&self, from: From, plan: &FrontendPlan, asked: &Asked) -> Vec<Step> {
        let Asked {
            frontend,
            packet,
            passed,
        } = asked;
        let profile = &plan.profile;
        let kind = profile.kind;
        let mut steps = vec![Step::new(
            format!("{frontend} is {} of Service {}", noun(kind), plan.owner),
            kind.field(),
            Seen::Plan,
        )];
        let losers = self.planned.planner.losers(frontend);
        let losers: Vec<String> = losers
            .map(|plan| {
                format!(
                    "Service {} asks for it too; the older one has it",
                    plan.owner
                )
            })
            .collect();
        if let Some(first) = steps.first_mut() {
            first.details = losers;
        }
        let is_inside = self.is_inside(packet);
        if plan.inside.is_some() || profile.access.scope == Scope::Internal {
            let (side, because) = match (packet.source_is_local, is_inside) {
                (true, _) => ("inside", "the client is a process of this node"),
                (false, true) => (
                    "inside",
                    "--detect-local-mode, --cluster-cidr, or the Node's podCIDRs match it",
                ),
                (false, false) => (
                    "outside",
                    "neither --detect-local-mode, --cluster-cidr nor the Node's podCIDRs match it",
                ),
            };
            let what = format!("{} is {side} the cluster", packet.source.ip());
            steps.push(Step::new(what, because, Seen::Plan));
        }
        steps.extend(self.ranges(from, plan, asked));
        let is_ended = steps.iter().any(|step| step.finding.is_some());
        let (balancing, policy) = match &plan.inside {
            Some(inside) if is_inside => (&inside.balancing, TrafficPolicy::Cluster),
            _ => (&profile.balancing, profile.access.policy),
        };
        let endpoints = self.endpoints(plan, (policy, frontend.family()), asked);
        steps.push(match is_ended {
            true => endpoints.0,
            false => match endpoints.1 {
                Some((kind, outcome)) => {
                    let next = format!(
                        "kubectl --namespace {} get endpointslice --selector kubernetes.io/service-name={}",
                        plan.owner.service.namespace(),
                        plan.owner.service.name()
                    );
                    endpoints.0.finding(kind, outcome, next)
                }
                None => endpoints.0,
            },
        });
        if !passed.endpoints.is_empty() {
            steps.push(self.server(balancing, passed));
            // Without our rules, those of another program decide about the source.
            if !matches!(self.rules, Rules::Ipvs(None, _)) {
                steps.push(self.source(plan, asked));
            }
        }
        steps
    }

    /// Explains the source ranges of a load balancer.
    fn ranges(&self, from: From, plan: &FrontendPlan, asked: &Asked) -> Option<Step> {
        let ranges = plan.profile.access.source_ranges.as_ref()?;
        let source = asked.packet.source.ip();
        let because = format!(
            "spec.loadBalancerSourceRanges of Service {}: {ranges}",
            plan.owner.service
        );
        let next = format!(
            "kubectl --namespace {} get service {} --output jsonpath={{.spec.loadBalancerSourceRanges}}",
            plan.owner.service.namespace(),
            plan.owner.service.name()
        );
        if from == From::Outside {
            let what = "source ranges decide, and the client's address is not given";
            let step = Step::new(what, because, Seen::Plan);
            return Some(step.finding(&UNKNOWN_SOURCE, Outcome::Unknown, next));
        }
        let is_admitted = ranges.contains(source)
            || source == asked.frontend.address
                && !matches!(asked.passed.arrival, Arrival::Ended(_));
        if is_admitted {
            let what = format!("{source} is in loadBalancerSourceRanges");
            return Some(Step::new(what, because, self.seen));
        }
        let what = format!("{source} is not in loadBalancerSourceRanges");
        let outcome = match asked.passed.arrival {
            Arrival::Ended(End::Rejected(_)) => Outcome::Refused,
            _ => Outcome::Dropped,
        };
        Some(Step::new(what, because, self.seen).finding(&SOURCE_RANGES, outcome, next))
    }

    /// Explains how an endpoint is chosen.
    fn server(&self, balancing: &Balancing, passed: &Passed) -> Step {
        let scheduler = &balancing.scheduler;
        let (what, because) = match self.rules {
            Rules::Ipvs(..) => {
                let by = match passed.has_mark {
                    true => " of the firewall mark of clients inside the cluster",
                    false => "",
                };
                (
                    format!("the virtual server{by} chooses by scheduler {scheduler}"),
                    "--ipvs-scheduler, or annotation ipvs-proxier.io/scheduler",
                )
            }
            Rules::Relay(..) => (
                format!("the relay chooses by scheduler {scheduler}"),
                "--ipvs-scheduler, or annotation ipvs-proxier.io/scheduler",
            ),
            Rules::Maps(_) => (
                format!("a map of nftables chooses as scheduler {scheduler} would"),
                "--ipvs-scheduler, or annotation ipvs-proxier.io/scheduler; rr, lc and others become random",
            ),
        };
        let mut step = Step::new(what, because, self.seen);
        if let Some(seconds) = balancing.affinity_secs {
            step.details.push(format!(
                "a client stays at its endpoint for {seconds} s after its last connection (spec.sessionAffinity)"
            ));
        }
        step
    }

    /// Explains the source that endpoints see.
    fn source(&self, plan: &FrontendPlan, asked: &Asked) -> Step {
        let Asked { packet, passed, .. } = asked;
        let hidden = passed.endpoints.iter().filter(|it| it.masqueraded).count();
        let source = packet.source.ip();
        if hidden == 0 {
            let what = format!("endpoints see the client's address, {source}");
            return Step::new(what, "no rule masquerades the connection", self.seen);
        }
        let access = &plan.profile.access;
        let because = match (access.scope, access.policy) {
            _ if matches!(self.rules, Rules::Relay(..)) => {
                "the relay connects to endpoints itself (annotation ipvs-proxier.io/source-address)"
            }
            _ if passed.endpoints.iter().any(|it| it.address.ip() == source) => {
                "an endpoint that reaches itself would answer itself directly"
            }
            (Scope::Internal, _) => {
                "the client is outside the cluster for --detect-local-mode and --cluster-cidr, or --masquerade-all is set"
            }
            (_, TrafficPolicy::Cluster) => {
                "spec.externalTrafficPolicy is Cluster, so the answers must return through this node"
            }
            (_, TrafficPolicy::Local) => {
                "the client is inside the cluster, and the endpoint's answer would not return through this node"
            }
        };
        let who = match passed.endpoints.len() - hidden {
            0 => "endpoints".to_owned(),
            _ => format!("{hidden} of {} endpoints", passed.endpoints.len()),
        };
        let what = format!(
            "{who} see an address of this node instead of {source}: the connection is masqueraded"
        );
        Step::new(what, because, self.seen)
    }
}

fn noun(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => "the cluster IP",
        FrontendKind::ExternalIp => "an external IP",
        FrontendKind::LoadBalancer => "the load balancer's address",
        FrontendKind::NodePort => "a node port",
    }
}
