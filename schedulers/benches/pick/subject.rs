//! The subjects of a measurement: a scheduler, an implementation, and the load.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use schedulers::{Balancer, Implementation, MhTable, Options, Registry, Request};

/// Numbers of servers.
pub(crate) const SIZES: [usize; 5] = [4, 32, 256, 2_048, 16_384];

/// The weight of heavy servers among light ones, whose weight is 1.
pub(crate) const HEAVY: u32 = 16;

/// A scheduler under a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) implementation: Implementation,
    pub(crate) load: Load,
}

/// The work in addition to picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Nothing.
    None,
    /// Every pick becomes an active connection.
    Connection,
    /// Nothing. One server of 64 is heavy, the others are light.
    FewHeavy,
}

/// Returns all subjects.
pub(crate) fn subjects() -> Vec<Subject> {
    use Implementation::{Indexed, Plain};
    let subject = |name, implementation, load| Subject {
        name,
        implementation,
        load,
    };
    let picks = ["rr", "sh", "dh", "mh", "fo", "ovf", "twos", "lblc", "lblcr"];
    let both = ["lc", "wlc", "sed", "nq"];
    picks
        .into_iter()
        .map(|name| subject(name, Indexed, Load::None))
        .chain([Indexed, Plain].map(|it| subject("wrr", it, Load::None)))
        .chain([Indexed, Plain].map(|it| subject("wrr", it, Load::FewHeavy)))
        .chain(
            both.into_iter()
                .flat_map(|name| [Indexed, Plain].map(|it| subject(name, it, Load::Connection))),
        )
        .collect()
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        f.write_str(match self.load {
            Load::None => "",
            Load::Connection => " + connection",
            Load::FewHeavy => ", few heavy",
        })?;
        if self.implementation == Implementation::Plain {
            f.write_str(", scanning")?;
        }
        Ok(())
    }
}

impl Subject {
    /// Returns a balancer with `size` servers.
    ///
    /// Weights are 1 to 100, except with [`Load::FewHeavy`]. Loads start balanced: for lc every server has
    /// the same number of active connections, for the others a number in proportion to its weight.
    pub(crate) fn balancer(self, size: usize) -> Balancer {
        let registry = Registry::kernel();
        let options = Options {
            implementation: self.implementation,
            mh_table: mh_table(size),
            ..Options::default()
        };
        // The names are the kernel's, and these sizes fit into every table.
        let build = |name| registry.build(name, &options).expect("a kernel scheduler");
        let mut balancer = Balancer::new(build("rr"), &options);
        for host in (0_u32..).take(size) {
            let address = Ipv4Addr::from(0x0a00_0000 + host);
            let weight = match self.load {
                Load::FewHeavy if host % 64 == 0 => HEAVY,
                Load::FewHeavy => 1,
                Load::None | Load::Connection => 1 + host.wrapping_mul(0x9e37_79b9) % 100,
            };
            let id = balancer
                .add(SocketAddr::new(address.into(), 80), weight)
                .expect("a new address");
            let active = if self.name == "lc" { 4 } else { 4 * weight };
            // ovf refuses when all servers have more active connections than their weight.
            let active = if self.name == "ovf" { 0 } else { active };
            balancer.set_connections(id, active, 0).expect("it is new");
        }
        balancer
            .reschedule(build(self.name), Duration::ZERO)
            .expect("the table has room");
        balancer
    }
}

/// Returns the kernel's default table, or the smallest one with a slot per server.
fn mh_table(servers: usize) -> MhTable {
    let has_room = |table: &MhTable| table.slots() as usize >= servers;
    (12..=17)
        .filter_map(MhTable::from_index)
        .find(has_room)
        .unwrap_or_default()
}

/// Returns the request of one of very many clients, all to the same address.
pub(crate) fn request(client: u32) -> Request {
    let [high, low] = [client >> 16, client & 0xffff];
    Request {
        source: Ipv4Addr::from(0x6440_0000 ^ client.wrapping_mul(0x9e37_79b9)).into(),
        source_port: u16::try_from(low).unwrap_or_default(),
        destination: Ipv4Addr::from(0x0a60_0001).into(),
        destination_port: 80,
        at: Duration::from_secs(high.into()),
    }
}
