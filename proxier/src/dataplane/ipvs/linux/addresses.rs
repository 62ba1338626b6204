//! Service addresses in the kernel: local routes on the carrier or on `lo`, or addresses on the carrier.
//!
//! Routes are the default: adding addresses to one device costs time quadratic in their number (10,000 take 3 s, 10,000
//! routes 0.1 s), and daemons that list addresses of interfaces see no route. The kernel keeps two routes to one address
//! only if their metrics differ. Ours have metrics of their own, so that they coexist with those of other programs, and
//! with each other while `--service-addresses` changes: the new form is added before the old one is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use netlink::batch::Batch;
use netlink::transport::{Transport, protocols};
use netlink::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use rustix::io::Errno;

use super::link::{
    Device, create_carrier, delete_carrier, find_link, prepare_carrier, release_carrier,
};
use super::rtnetlink::{
    AF_INET, AF_INET6, CARRIER_METRIC, InterfaceAddress, LOOPBACK_INDEX, LOOPBACK_METRIC,
    LocalRoute, OUR_PROTOCOL, RTM_DELADDR, RTM_DELROUTE, RTM_GETADDR, RTM_GETROUTE, RTM_NEWADDR,
    RTM_NEWROUTE, read_interface_address, read_local_route, write_addresses_on,
    write_interface_address, write_local_routes, write_route,
};
use super::{mtu, next_hops, routing_rules, tunnels};
use crate::dataplane::ipvs::observed::{Carrier, LocalAddresses};
use crate::dataplane::ipvs::op::{AddressForm, CARRIER, Op};
use crate::dataplane::{Failure, Outcome};
use crate::plan::{Machine, Peers, ServiceAddresses, SourceFlaw};

/// The prefix length of the link-local addresses that the kernel generates.
const LINK_LOCAL_LENGTH: u8 = 64;

/// The service addresses of one network namespace.
#[derive(Debug)]
pub(super) struct Addresses {
    transport: Transport,
    form: ServiceAddresses,
    /// The devices whose addresses other programs serve.
    yield_devices: Vec<Arc<str>>,
    /// Whether IPv4 routes are on `lo` for the moment, although the carrier is their place.
    ///
    /// When the last IPv4 address of a device is deleted, the kernel deletes all IPv4 routes of the
    /// device, without a notification (`fib_disable_ip`). While the carrier has addresses (kube-proxy's),
    /// routes on it would be lost with them. So the routes on `lo` replace these addresses first, and
    /// the routes on the carrier replace those on `lo` when the carrier is free of addresses.
    is_bridging: bool,
    /// The locked MTU of our IPv4 routes ([`mtu`]), as read last; `None` if they have none.
    mtu: Option<u32>,
    /// The addresses of other machines when they were last read.
    peers: Peers,
}

impl Addresses {
    pub(super) fn open(form: ServiceAddresses, yield_devices: &[String]) -> Result<Self, Failure> {
        let transport = Transport::open(protocols::NETLINK_ROUTE)?;
        // Otherwise the kernel ignores the table in a dump request, and sends the routes of all
        // tables.
        transport.filter_dumps();
        Ok(Self {
            transport,
            form,
            yield_devices: yield_devices.iter().map(|name| (&**name).into()).collect(),
            is_bridging: false,
            mtu: None,
            peers: Peers::default(),
        })
    }

    /// Returns the netlink port of our changes, which notifications carry.
    pub(super) fn port(&self) -> u32 {
        self.transport.port()
    }

    /// Reads the addresses of interfaces; [`Machine`] says which matter.
    pub(super) fn read_machine(&mut self) -> Result<Machine, Failure> {
        let carrier = self.carrier()?.map(|link| link.index);
        let mut yield_devices = BTreeMap::new();
        for name in &self.yield_devices {
            if let Some(link) = find_link(&mut self.transport, name)? {
                yield_devices.insert(link.index, name.clone());
            }
        }
        let mut machine = Machine::default();
        for entry in self.interface_addresses(0)? {
            if Some(entry.interface) == carrier || is_on_every_machine(entry.address) {
                continue;
            }
            if let Some(flaw) = entry.flaw() {
                machine.flaw(entry.address, flaw);
            }
            match yield_devices.get(&entry.interface) {
                Some(name) => _ = machine.yielded.insert(entry.address, name.clone()),
                None => _ = machine.addresses.insert(entry.address),
            }
        }
        // An address on a yielded device belongs to the node if another interface has it, too.
        let Machine {
            addresses, yielded, ..
        } = &mut machine;
        yielded.retain(|address, _| !addresses.contains(address));
        Ok(machine)
    }

    /// Notes the addresses of `machine` that routing rules of other programs select as sources.
    pub(super) fn read_rules(&mut self, machine: &mut Machine) -> Result<(), Failure> {
        let rules = routing_rules::sources(&mut self.transport)?;
        let addresses = machine.addresses.iter().copied();
        let is_selected = |it: &IpAddr| rules.iter().any(|rule| rule.contains(*it));
        let selected: Vec<IpAddr> = addresses.filter(is_selected).collect();
        for address in selected {
            machine.flaw(address, SourceFlaw::SelectedByRule);
        }
        Ok(())
    }

    /// Reads the MTU that our IPv4 routes should have.
    ///
    /// Without this call they have that of `lo`, which suits connections that end at this node.
    pub(super) fn read_mtu(&mut self) -> Result<(), Failure> {
        self.mtu = mtu::smallest(&mut self.transport)?;
        Ok(())
    }

    /// Reads the addresses of other machines with which this one speaks.
    pub(super) fn read_peers(&mut self) -> Peers {
        let Peers {
            next_hops,
            tunnel_ends,
            ..
        } = &mut self.peers;
        for (known, found) in [
            (next_hops, next_hops::read(&mut self.transport)),
            (tunnel_ends, tunnels::read(&mut self.transport)),
        ] {
            match found {
                Ok(mut found) => {
                    found.retain(|address| !is_on_every_machine(*address));
                    // An equal set keeps its place in memory, by which the planner recognises it.
                    if found != **known {
                        *known = Arc::new(found);
                    }
                }
                // A round must not fail because a routing daemon changes routes all the time. The last ones hold.
                Err(error) => tracing::debug!("{error}"),
            }
        }
        self.peers.clone()
    }

    /// Reads the service addresses in all forms, the carrier, and foreign local routes.
    pub(super) fn read(&mut self) -> Result<LocalAddresses, Failure> {
        let carrier = self.carrier()?;
        let index = carrier.map(|link| link.index);
        let mut found = Found::default();
        let on_carrier = match index {
            // Kernels before 4.20 do not filter by interface.
            Some(index) => (self.interface_addresses(index)?.into_iter())
                .filter(|entry| entry.interface == index)
                .collect(),
            None => Vec::new(),
        };
        self.is_bridging = on_carrier.iter().any(|entry| entry.address.is_ipv4());
        for entry in on_carrier {
            self.add_address(&entry, &mut found);
        }
        // After the addresses, which decide whether a route on `lo` is in its place
        // (`is_bridging`).
        for route in self.routes()? {
            self.add_route(route, index, &mut found);
        }
        Ok(LocalAddresses {
            addresses: found.addresses.into_iter().collect(),
            leftovers: found.leftovers,
            outdated: found.outdated,
            carrier: carrier.map(|link| Carrier {
                is_ours: link.is_ours,
                is_ready: link.is_ready,
            }),
            foreign: found.foreign,
        })
    }

    fn add_route(&self, route: LocalRoute, carrier: Option<u32>, found: &mut Found) {
        let LocalRoute {
            address, source, ..
        } = route;
        if route.protocol != OUR_PROTOCOL {
            let text = format!("local route of protocol {}", route.protocol);
            found.foreign.insert(address, text);
            return;
        }
        match self.place(address, carrier) {
            Some((_, metric)) if metric != route.metric => {
                let form = AddressForm::Route(route.metric);
                found.leftovers.insert((address, form));
            }
            Some((Some(device), _)) if device == route.device => {
                if route.mtu != self.mtu_to(address) {
                    found.outdated.insert(address);
                }
                found.addresses.push((address, source));
            }
            // Our metric, but another device: no route can be added beside it. A source that no
            // plan contains makes it differ, so a `SetAddress` replaces it.
            Some(_) => found.addresses.push((address, Some(address))),
            None => _ = (found.leftovers).insert((address, AddressForm::Route(route.metric))),
        }
    }

    fn add_address(&self, entry: &InterfaceAddress, found: &mut Found) {
        let address = entry.address;
        match self.form {
            ServiceAddresses::Dummy if !is_on_every_machine(address) => {
                found.addresses.push((address, None));
            }
            ServiceAddresses::Dummy => {}
            // IPVS needs local addresses: `None` is without it.
            ServiceAddresses::Routes | ServiceAddresses::Loopback | ServiceAddresses::None => {
                if entry.is_single() || is_on_every_machine(address) {
                    found.leftovers.insert((address, AddressForm::Address));
                }
            }
        }
    }

    /// Returns the locked MTU of our route to `address`.
    ///
    /// Not for IPv6, whose packets only their sender fragments.
    fn mtu_to(&self, address: IpAddr) -> Option<u32> {
        self.mtu.filter(|_| address.is_ipv4())
    }

    /// Returns device and metric of our route to `address`; `None` if service addresses are no routes.
    fn place(&self, address: IpAddr, carrier: Option<u32>) -> Option<(Option<u32>, u32)> {
        match self.form {
            ServiceAddresses::Routes if !(self.is_bridging && address.is_ipv4()) => {
                Some((carrier, CARRIER_METRIC))
            }
            ServiceAddresses::Routes | ServiceAddresses::Loopback | ServiceAddresses::None => {
                Some((Some(LOOPBACK_INDEX), LOOPBACK_METRIC))
            }
            ServiceAddresses::Dummy => None,
        }
    }

    /// Makes a carrier of ours that of another program.
    pub(super) fn release_carrier(&mut self) -> netlink::Result<()> {
        match self.carrier()? {
            Some(link) if link.is_ours => release_carrier(&mut self.transport)?
                .map_err(|refusal| refusal.doing("handing the device kube-ipvs0 over")),
            _ => Ok(()),
        }
    }

    /// Applies `ops`, which must all concern addresses or the carrier.
    pub(super) fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(ops.len());
        for run in ops.chunk_by(|one, next| one.address().is_some() && next.address().is_some()) {
            let result = match run {
                [Op::AddCarrier] => create_carrier(&mut self.transport).map(|answer| vec![answer]),
                [Op::SetCarrier] => prepare_carrier(&mut self.transport).map(|answer| vec![answer]),
                [Op::DeleteCarrier] => {
                    delete_carrier(&mut self.transport).map(|answer| vec![answer])
                }
                _ => match self.batch(run) {
                    Ok(Some(mut batch)) => self.transport.run(&mut batch),
                    Ok(None) => {
                        let missing = |op| Err(Box::new(Failure::kernel(Errno::NODEV, op)));
                        outcomes.extend(run.iter().map(missing));
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            match result {
                Ok(answers) => outcomes.extend(answers.into_iter().zip(run).map(|(answer, op)| {
                    answer.map_err(|refusal| Box::new(Failure::from(refusal.doing(op))))
                })),
                Err(error) => {
                    let failure = Box::new(Failure::from(error));
                    outcomes.extend(run.iter().map(|_| Err(failure.clone())));
                }
            }
        }
        outcomes
    }

    /// Returns the requests of `ops`, one for each; `None` if the carrier that they need is missing.
    fn batch(&mut self, ops: &[Op]) -> netlink::Result<Option<Batch>> {
        let needs_carrier = |op: &Op| match op {
            Op::AddAddress(..) | Op::SetAddress(..) => self.form.use_carrier(),
            Op::DeleteAddress(_) => self.form == ServiceAddresses::Dummy,
            Op::DeleteLeftover(_, form) => *form == AddressForm::Address,
            _ => false,
        };
        let mut carrier = None;
        if ops.iter().any(needs_carrier) {
            let Some(link) = self.carrier()? else {
                return Ok(None);
            };
            carrier = Some(link.index);
        }
        let interface = carrier.unwrap_or_default();
        let mut batch = Batch::new();
        for op in ops {
            let Some(address) = op.address() else {
                continue;
            };
            let create = match op {
                Op::AddAddress(..) => NLM_F_CREATE | NLM_F_EXCL,
                // Without CREATE, replacing a route that was deleted since the read would fail with
                // ENOENT.
                _ => NLM_F_CREATE | NLM_F_REPLACE,
            };
            match (*op, self.place(address, carrier)) {
                (Op::AddAddress(_, source) | Op::SetAddress(_, source), Some(place)) => {
                    let route = LocalRoute {
                        mtu: self.mtu_to(address),
                        ..our_route(address, source, place)
                    };
                    push_route(&mut batch, RTM_NEWROUTE, create, &route)?;
                }
                (Op::AddAddress(..) | Op::SetAddress(..), None) => {
                    push_address(&mut batch, RTM_NEWADDR, create, address, interface)?;
                }
                // No device: the route is on the carrier or on `lo`, and its metric identifies it.
                (Op::DeleteLeftover(_, AddressForm::Route(metric)), _)
                | (Op::DeleteAddress(_), Some((_, metric))) => {
                    let route = our_route(address, None, (None, metric));
                    push_route(&mut batch, RTM_DELROUTE, 0, &route)?;
                }
                (Op::DeleteLeftover(_, AddressForm::Address), _) | (Op::DeleteAddress(_), None) => {
                    push_address(&mut batch, RTM_DELADDR, 0, address, interface)?;
                }
                _ => {}
            }
        }
        Ok(Some(batch))
    }

    fn carrier(&mut self) -> netlink::Result<Option<Device>> {
        find_link(&mut self.transport, CARRIER)
    }

    /// Reads the addresses on `interface`, or on all with 0.
    fn interface_addresses(&mut self, interface: u32) -> netlink::Result<Vec<InterfaceAddress>> {
        self.transport.list(
            RTM_GETADDR,
            "reading the addresses",
            |writer| write_addresses_on(writer, interface),
            read_interface_address,
        )
    }

    /// Reads the local routes that the kernel did not make.
    fn routes(&mut self) -> netlink::Result<Vec<LocalRoute>> {
        let mut of_family = |family| {
            self.transport.list(
                RTM_GETROUTE,
                "reading the routes",
                |writer| write_local_routes(writer, family),
                read_local_route,
            )
        };
        let mut routes = of_family(AF_INET)?;
        routes.extend(of_family(AF_INET6)?);
        Ok(routes)
    }
}

/// The service addresses in the kernel, by their forms.
#[derive(Default)]
struct Found {
    addresses: Vec<(IpAddr, Option<IpAddr>)>,
    leftovers: BTreeSet<(IpAddr, AddressForm)>,
    outdated: BTreeSet<IpAddr>,
    foreign: BTreeMap<IpAddr, String>,
}

/// Returns our route to `address`, on any device if none is given.
fn our_route(
    address: IpAddr,
    source: Option<IpAddr>,
    (device, metric): (Option<u32>, u32),
) -> LocalRoute {
    LocalRoute {
        address,
        source,
        device: device.unwrap_or_default(),
        metric,
        mtu: None,
        // The kernel deletes only a route with the same protocol and metric (`fib_table_delete`,
        // `ip6_route_del`): a foreign route to the address stays.
        protocol: OUR_PROTOCOL,
    }
}

fn push_route(batch: &mut Batch, kind: u16, flags: u16, route: &LocalRoute) -> netlink::Result<()> {
    batch.push(kind, flags, |writer| write_route(writer, route))
}

fn push_address(
    batch: &mut Batch,
    kind: u16,
    flags: u16,
    address: IpAddr,
    interface: u32,
) -> netlink::Result<()> {
    let mut entry = InterfaceAddress::single(address, interface);
    if is_on_every_machine(address) {
        // The kernel deletes an address only with its own prefix length (`inet6_addr_del`).
        entry.prefix_length = LINK_LOCAL_LENGTH;
    }
    batch.push(kind, flags, |writer| {
        write_interface_address(writer, &entry)
    })
}

/// Returns whether the address is loopback or IPv6 link-local.
///
/// Such addresses exist on every machine, so that they identify none.
fn is_on_every_machine(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
    }
}
