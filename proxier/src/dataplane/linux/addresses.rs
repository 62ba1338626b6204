//! Service addresses in the kernel: local routes, or addresses on a dummy device.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipvs_netlink as ipvs;
use ipvs_netlink::batch::Batch;
use ipvs_netlink::transport::{Answer, Transport, protocols};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};

use super::rtnetlink::{
    InterfaceAddress, LocalRoute, RTM_DELADDR, RTM_DELROUTE, RTM_GETADDR, RTM_GETLINK,
    RTM_GETROUTE, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE, read_device_named, read_foreign_route,
    read_interface_address, read_route, write_all, write_dummy_device, write_interface_address,
    write_route,
};
use crate::dataplane::{Failure, Outcome};
use crate::op::Op;
use crate::plan::ServiceAddresses;

/// The dummy device to which kube-proxy's IPVS mode adds service addresses.
const DUMMY_DEVICE: &str = "kube-ipvs0";

/// The service addresses of one network namespace.
#[derive(Debug)]
pub(super) struct Addresses {
    transport: Transport,
    form: ServiceAddresses,
}

impl Addresses {
    pub(super) fn open(form: ServiceAddresses) -> Result<Self, Failure> {
        Ok(Self {
            transport: Transport::open(protocols::NETLINK_ROUTE)?,
            form,
        })
    }

    /// Reads the machine's own addresses; [`crate::plan::Machine`] says which these are.
    pub(super) fn read_machine(&mut self) -> Result<BTreeSet<IpAddr>, Failure> {
        let dummy = self.dummy_device()?;
        let is_own = |entry: &InterfaceAddress| {
            Some(entry.interface) != dummy && !is_on_every_machine(entry.address)
        };
        let addresses = self.interface_addresses()?;
        Ok(addresses
            .into_iter()
            .filter(is_own)
            .map(|entry| entry.address)
            .collect())
    }

    /// Reads our service addresses, each with its preferred source.
    pub(super) fn read(&mut self) -> Result<BTreeMap<IpAddr, Option<IpAddr>>, Failure> {
        match self.form {
            ServiceAddresses::Routes => Ok(self.routes()?),
            ServiceAddresses::Dummy => {
                let Some(dummy) = self.dummy_device()? else {
                    return Ok(BTreeMap::new());
                };
                let on_dummy = |entry: &InterfaceAddress| {
                    entry.interface == dummy && !is_on_every_machine(entry.address)
                };
                let addresses = self.interface_addresses()?.into_iter().filter(on_dummy);
                Ok(addresses.map(|entry| (entry.address, None)).collect())
            }
        }
    }

    /// Reads the foreign local addresses, each with a description of its form.
    pub(super) fn read_foreign(&mut self) -> Result<BTreeMap<IpAddr, String>, Failure> {
        let mut foreign: BTreeMap<IpAddr, String> = self
            .dump(
                RTM_GETROUTE,
                "reading the routes",
                |found: &mut Vec<_>, payload| {
                    found.extend(read_foreign_route(payload)?);
                    Ok(())
                },
            )?
            .into_iter()
            .map(|(address, protocol)| (address, format!("local route of protocol {protocol}")))
            .collect();
        if self.form == ServiceAddresses::Routes
            && let Some(dummy) = self.dummy_device()?
        {
            let addresses = self.interface_addresses()?.into_iter();
            let on_dummy = addresses.filter(|entry| entry.interface == dummy);
            let others = on_dummy.filter(|entry| !is_on_every_machine(entry.address));
            foreign
                .extend(others.map(|entry| (entry.address, format!("on device {DUMMY_DEVICE}"))));
        }
        Ok(foreign)
    }

    /// Applies `ops`, which must all concern addresses.
    pub(super) fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        let answers = match self.form {
            ServiceAddresses::Routes => self.change_routes(ops),
            ServiceAddresses::Dummy => self.change_dummy(ops),
        };
        match answers {
            Ok(answers) => {
                let outcome = |(answer, op): (Answer, &Op)| {
                    answer.map_err(|refusal| Box::new(Failure::from(refusal.doing(op))))
                };
                answers.into_iter().zip(ops).map(outcome).collect()
            }
            Err(error) => {
                let failure = Box::new(Failure::from(error));
                ops.iter().map(|_| Err(failure.clone())).collect()
            }
        }
    }

    fn change_routes(&mut self, ops: &[Op]) -> ipvs::Result<Vec<Answer>> {
        let mut batch = Batch::new();
        for op in ops {
            let (kind, flags, route) = match *op {
                Op::AddAddress(address, source) => (
                    RTM_NEWROUTE,
                    NLM_F_CREATE | NLM_F_EXCL,
                    LocalRoute { address, source },
                ),
                Op::SetAddress(address, source) => (
                    RTM_NEWROUTE,
                    NLM_F_CREATE | NLM_F_REPLACE,
                    LocalRoute { address, source },
                ),
                // `write_route` sets our protocol. The kernel deletes only a route with the same protocol
                // (`fib_table_delete`, `ip6_route_del`): a foreign route to the address stays.
                Op::DeleteAddress(address) => (
                    RTM_DELROUTE,
                    0,
                    LocalRoute {
                        address,
                        source: None,
                    },
                ),
                _ => continue,
            };
            batch.push(kind, flags, |writer| write_route(writer, &route))?;
        }
        self.transport.run(&mut batch)
    }

    fn change_dummy(&mut self, ops: &[Op]) -> ipvs::Result<Vec<Answer>> {
        let interface = match self.dummy_device()? {
            Some(interface) => interface,
            None => self.create_dummy()?,
        };
        let mut batch = Batch::new();
        for op in ops {
            let (kind, flags, address) = match *op {
                Op::AddAddress(address, _) => (RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, address),
                Op::SetAddress(address, _) => (RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, address),
                Op::DeleteAddress(address) => (RTM_DELADDR, 0, address),
                _ => continue,
            };
            let address = InterfaceAddress { address, interface };
            batch.push(kind, flags, |writer| {
                write_interface_address(writer, &address)
            })?;
        }
        self.transport.run(&mut batch)
    }

    fn create_dummy(&mut self) -> ipvs::Result<u32> {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.transport.request(
            RTM_NEWLINK,
            flags,
            "creating the device kube-ipvs0",
            |writer| {
                write_dummy_device(writer, DUMMY_DEVICE);
            },
        )?;
        let missing = ipvs::Error::Malformed {
            what: "the device kube-ipvs0 is missing after its creation",
        };
        self.dummy_device()?.ok_or(missing)
    }

    fn dummy_device(&mut self) -> ipvs::Result<Option<u32>> {
        self.dump(
            RTM_GETLINK,
            "reading the devices",
            |found: &mut Option<u32>, payload| {
                *found = found.or(read_device_named(payload, DUMMY_DEVICE)?);
                Ok(())
            },
        )
    }

    fn interface_addresses(&mut self) -> ipvs::Result<Vec<InterfaceAddress>> {
        self.dump(
            RTM_GETADDR,
            "reading the addresses",
            |found: &mut Vec<_>, payload| {
                found.extend(read_interface_address(payload)?);
                Ok(())
            },
        )
    }

    fn routes(&mut self) -> ipvs::Result<BTreeMap<IpAddr, Option<IpAddr>>> {
        // Collected into a list first: `collect` fills the nodes of a map, insertions in key order
        // leave them half empty.
        let routes: Vec<LocalRoute> = self.dump(
            RTM_GETROUTE,
            "reading the routes",
            |found: &mut Vec<_>, payload| {
                found.extend(read_route(payload)?);
                Ok(())
            },
        )?;
        let routes = routes.into_iter();
        Ok(routes.map(|route| (route.address, route.source)).collect())
    }

    /// Runs a dump; `each` adds the content of one message to the result.
    fn dump<T: Default>(
        &mut self,
        kind: u16,
        doing: &str,
        each: impl Fn(&mut T, &[u8]) -> ipvs::Result<()>,
    ) -> ipvs::Result<T> {
        let mut found = T::default();
        // If the kernel's tables change during a dump (`NLM_F_DUMP_INTR`), the transport starts it again.
        let clear = |found: &mut T| *found = T::default();
        self.transport.dump(
            kind,
            doing,
            write_all,
            clear,
            &mut found,
            |found, message| each(found, message.payload),
        )?;
        Ok(found)
    }
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
