//! The way of one packet through our rules and IPVS, or through the table of maps.
//!
//! The rules themselves decide who is admitted and masqueraded, so that nothing is decided twice.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;

use ipvs_netlink as ipvs;
use nftables::{End, Match, Packet, Place, Table};

use super::step::Answering;
use crate::cluster::model::{Family, Protocol, SourceAddress};
use crate::dataplane::ipvs::Wanted;
use crate::dataplane::ipvs::observed::Observed;
use crate::plan::Desired;
use crate::plan::frontend::Frontend;

/// The priority of IPVS in the hook input: our chains up to 97 run before it.
const IPVS_INPUT: i32 = 98;
/// The priority of IPVS in the hook output.
const IPVS_OUTPUT: i32 = -98;

/// The most endpoints that are tried. A table of maps draws among as many slots for each frontend.
const MOST_DRAWS: u32 = 16_384;

/// What decides about packets.
#[derive(Clone, Copy)]
pub(crate) enum Rules<'a> {
    /// IPVS, with the rules beside it; `None` if the kernel lacks these.
    Ipvs(Option<&'a Table>, Servers<'a>),
    /// A table of maps.
    Maps(&'a Table),
    /// A relay that serves this plan; with the clients inside the cluster.
    Relay(&'a Desired, &'a [Match]),
}

/// The name that ends a connection which the relay does not serve.
const RELAY: &str = "relay";

/// The virtual servers.
#[derive(Clone, Copy)]
pub(crate) enum Servers<'a> {
    /// Those of the plan.
    Planned(Wanted<'a>),
    /// Those of the kernel.
    Observed(&'a Observed),
}

/// The addresses of this machine.
#[derive(Clone, Copy)]
pub(crate) struct Addresses<'a> {
    /// Those of its interfaces.
    pub(crate) own: &'a BTreeSet<IpAddr>,
    /// Those that are local for Services.
    pub(crate) services: &'a dyn Fn(IpAddr) -> bool,
}

impl Addresses<'_> {
    fn are_local(&self, address: IpAddr) -> bool {
        self.is_own(address) || (self.services)(address)
    }

    /// Returns whether a process of this node receives packets to `address`.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.own.contains(&address)
    }
}

/// Where a packet arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    Endpoint(Answering),
    /// A process of this node that listens there, or none.
    Process,
    /// It leaves this node as it is.
    Leaves,
    /// A rule of ours ends it.
    Ended(End),
    /// The virtual server has no destination with a weight above 0.
    NoDestination,
}

/// Where the packets of a client arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    /// The first packet's; other packets differ in the endpoint only.
    pub(crate) arrival: Arrival,
    /// The endpoints to which packets lead.
    pub(crate) endpoints: BTreeSet<Answering>,
    /// Whether IPVS finds the endpoints by the firewall mark of clients inside the cluster.
    pub(crate) has_mark: bool,
}

impl Servers<'_> {
    /// Returns the destinations of a virtual server that accept connections; `None` if it does not exist.
    fn accepting(self, key: &ipvs::ServiceKey) -> Option<Vec<SocketAddr>> {
        match self {
            Self::Planned(wanted) => {
                let server = wanted.get(key)?;
                let accepting = server.endpoints.iter().filter(|it| it.weight > 0);
                Some(accepting.map(|it| (it.address, it.port).into()).collect())
            }
            Self::Observed(observed) => {
                let server = observed.virtual_servers.get(key)?;
                let accepting = server.destinations.iter().filter(|it| it.weight > 0);
                Some(
                    accepting
                        .map(|it| (it.key.address, it.key.port).into())
                        .collect(),
                )
            }
        }
    }

    /// Returns the endpoint for a packet, and whether the virtual server has its firewall mark; `None` if it matches no
    /// virtual server.
    fn choose(self, packet: &mut Packet) -> Option<(Option<SocketAddr>, bool)> {
        let family = Family::from(packet.destination.ip());
        let mark = packet.mark;
        let by_mark = self.accepting(&ipvs::ServiceKey::Mark { family, mark });
        let frontend = Frontend {
            address: packet.destination.ip(),
            protocol: packet.protocol,
            port: packet.destination.port(),
        };
        // The kernel looks for marked packets first (`ip_vs_service_find`).
        let by_mark = by_mark.filter(|_| mark != 0);
        let has_mark = by_mark.is_some();
        let accepting = by_mark.or_else(|| self.accepting(&frontend.into()))?;
        let count = u32::try_from(accepting.len()).unwrap_or(u32::MAX);
        packet.choices = packet.choices.max(count);
        let index = packet.draw.checked_rem(count);
        let chosen = index.and_then(|index| accepting.get(index as usize).copied());
        Some((chosen, has_mark))
    }
}

impl Rules<'_> {
    /// Returns where the packets of a client arrive that begin as `packet`.
    pub(crate) fn pass(self, packet: &Packet, addresses: Addresses<'_>) -> Passed {
        let mut first = packet.clone();
        let mut has_mark = false;
        let arrival = self.arrive(&mut first, addresses, &mut has_mark);
        let mut endpoints = BTreeSet::new();
        for draw in 0..first.choices.min(MOST_DRAWS) {
            let mut packet = Packet {
                draw,
                ..packet.clone()
            };
            if let Arrival::Endpoint(answering) = self.arrive(&mut packet, addresses, &mut false) {
                endpoints.insert(answering);
            }
        }
        Passed {
            arrival,
            endpoints,
            has_mark,
        }
    }

    fn arrive(self, packet: &mut Packet, addresses: Addresses<'_>, has_mark: &mut bool) -> Arrival {
        let is_sent = packet.source_is_local;
        packet.destination_is_local = addresses.are_local(packet.destination.ip());
        let arriving = match is_sent {
            true => Place::Output,
            false => Place::Prerouting,
        };
        match self {
            Self::Relay(desired, inside) => relay(desired, inside, packet, addresses),
            Self::Maps(table) => {
                if let Some(end) = table.pass(arriving, .., packet) {
                    return Arrival::Ended(end);
                }
                self.deliver(packet, addresses, Bound::Unbounded)
            }
            Self::Ipvs(table, servers) => {
                let ipvs = if is_sent { IPVS_OUTPUT } else { IPVS_INPUT };
                let before = (Bound::Unbounded, Bound::Excluded(ipvs));
                let is_local = addresses.are_local(packet.destination.ip());
                if let Some(table) = table {
                    let end = match is_sent {
                        true => table.pass(Place::Output, before, packet),
                        false => table.pass(Place::Prerouting, .., packet).or_else(|| {
                            let input = is_local.then_some(Place::Input)?;
                            table.pass(input, before, packet)
                        }),
                    };
                    if let Some(end) = end {
                        return Arrival::Ended(end);
                    }
                }
                // IPVS does not see what passes by.
                let chosen = (is_local || is_sent).then(|| servers.choose(packet));
                match chosen.flatten() {
                    None => self.deliver(packet, addresses, Bound::Excluded(ipvs)),
                    Some((None, _)) => Arrival::NoDestination,
                    Some((Some(endpoint), by_mark)) => {
                        *has_mark = by_mark;
                        packet.original.get_or_insert(packet.destination);
                        packet.destination = endpoint;
                        self.to_endpoint(packet, addresses)
                    }
                }
            }
        }
    }

    /// Sends a packet on from IPVS to its endpoint.
    fn to_endpoint(self, packet: &mut Packet, addresses: Addresses<'_>) -> Arrival {
        let is_own = addresses.is_own(packet.destination.ip());
        if let Self::Ipvs(Some(table), _) = self {
            // A packet for a process of this node goes on in the hook in which it is.
            let end = match (is_own, packet.source_is_local) {
                (true, true) => {
                    let after = (Bound::Excluded(IPVS_OUTPUT), Bound::Unbounded);
                    table.pass(Place::Output, after, packet)
                }
                (true, false) => None,
                (false, _) => table.pass(Place::Output, .., packet),
            };
            let end = end.or_else(|| {
                let leaving = (!is_own || packet.source_is_local).then_some(Place::Postrouting)?;
                table.pass(leaving, .., packet)
            });
            if let Some(end) = end {
                return Arrival::Ended(end);
            }
        }
        endpoint(packet)
    }

    /// Delivers a packet that no virtual server takes, or that a table of maps has translated. In the hook input, the
    /// chains after `ipvs` are left.
    fn deliver(self, packet: &mut Packet, addresses: Addresses<'_>, ipvs: Bound<i32>) -> Arrival {
        let table = match self {
            Self::Ipvs(table, _) => table,
            Self::Maps(table) => Some(table),
            Self::Relay(..) => None,
        };
        let is_local = addresses.are_local(packet.destination.ip());
        let input = match packet.source_is_local {
            // From a process by the device lo: IPVS is not left yet.
            true => Bound::Unbounded,
            false => ipvs,
        };
        let end = table.and_then(|table| {
            let leaves = packet.source_is_local || !is_local;
            let postrouting = leaves.then(|| table.pass(Place::Postrouting, .., packet));
            postrouting.flatten().or_else(|| {
                let input = is_local.then_some((input, Bound::Unbounded))?;
                table.pass(Place::Input, input, packet)
            })
        });
        match end {
            Some(end) => Arrival::Ended(end),
            None if packet.original.is_some() => endpoint(packet),
            None if is_local => Arrival::Process,
            None => Arrival::Leaves,
        }
    }
}

/// Returns where a connection arrives that a relay accepts: as `Route::pool_for` of the relay decides.
fn relay(
    desired: &Desired,
    inside: &[Match],
    packet: &mut Packet,
    addresses: Addresses<'_>,
) -> Arrival {
    let frontend = Frontend {
        address: packet.destination.ip(),
        protocol: packet.protocol,
        port: packet.destination.port(),
    };
    let Some(plan) = desired.frontends.get(&frontend) else {
        return match addresses.are_local(frontend.address) {
            true => Arrival::Process,
            false => Arrival::Leaves,
        };
    };
    let is_inside = inside.iter().any(|client| packet.matches(client));
    let endpoints = match &plan.inside {
        Some(inside) if is_inside => &inside.endpoints,
        _ => &plan.endpoints,
    };
    let ranges = plan.profile.access.source_ranges.as_ref();
    let is_admitted = ranges.is_none_or(|ranges| ranges.contains(packet.source.ip()));
    let accepting: Vec<_> = endpoints.iter().filter(|it| it.weight > 0).collect();
    let count = u32::try_from(accepting.len()).unwrap_or(u32::MAX);
    packet.choices = packet.choices.max(count);
    let index = packet.draw.checked_rem(count).filter(|_| is_admitted);
    let Some(chosen) = index.and_then(|index| accepting.get(index as usize)) else {
        // A TCP client is reset.
        return Arrival::Ended(match (is_admitted, packet.protocol) {
            (false, Protocol::Udp) => End::Dropped(RELAY.into()),
            _ => End::Rejected(RELAY.into()),
        });
    };
    packet.destination = (chosen.address, chosen.port).into();
    // The relay connects itself.
    let sees_client = plan.profile.relay.source == SourceAddress::Client
        && desired.local_endpoints.contains(&chosen.address);
    packet.is_masqueraded = !sees_client;
    endpoint(packet)
}

fn endpoint(packet: &Packet) -> Arrival {
    Arrival::Endpoint(Answering {
        address: packet.destination,
        masqueraded: packet.is_masqueraded,
    })
}
