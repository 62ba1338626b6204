//! The packet filter that services need, as a value: who is masqueraded, who is refused, who is led
//! to which endpoints. IPVS does the rest.
//!
//! ```text
//!              prerouting      input                                 IPVS          output        postrouting
//!  a client ──▶ (nothing) ──▶  0: guard, mark, refuse ─▶ 97: inside ─▶ 98, 99 ──▶ -300: restore ─▶ masquerade ──▶ endpoint
//!  a process of the node ───────────────▶ output -110: guard, mark ─▶ -99: inside ─▶ IPVS -98 ──▶ the same again
//! ```
//!
//! * *guard*: frontends that not everybody may use now: source ranges, no endpoints.
//! * *mark*: connections that must come back through this node get the masquerade bit.
//! * *refuse*: service addresses are local, so a daemon of the node that listens everywhere would
//!   answer at them; what is no frontend is refused.
//! * *inside*: clients inside the cluster get the firewall mark by which IPVS finds the endpoints
//!   that they may use and clients outside may not. IPVS compares the whole mark, so what it was
//!   before is remembered, and restored right after.
//! * *masquerade*: marked connections, and those of a Pod with itself, get an address of the node as
//!   their source. The bit is cleared.
//!
//! The table is called [`TABLE`]. It has no rules for forwarded packets: requests never take that
//! way, IPVS sends them itself; answers do, as packets of established connections. Verdicts of one
//! table cannot overrule another's, so a chain of somebody else that drops forwarded packets has to
//! let established connections pass; [`crate::nftables::Forwarding`] sees to that.
//!
//! [`Ruleset`] keeps the table and says what each change of a frontend changes in it. Guards and
//! addresses that are not needed any more linger there until what they protect is gone.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::model::{Cidr, Family, Networks, Protocol, TrafficPolicy};

mod chains;
mod frontend;
mod names;
mod ruleset;
mod surplus;

pub use ruleset::{Fingerprint, Ruleset, table};
pub use surplus::Surplus;

/// The name of the table (family `inet`).
pub const TABLE: &str = "ipvs-proxier";

/// What the operator chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Masquerade all connections to cluster IPs (`--masquerade-all`).
    pub masquerade_all: bool,
    /// The bit of packet marks that means "masquerade" (`--iptables-masquerade-bit`), 0 to 31.
    ///
    /// It is set on packets of services on their way through this node and cleared before they leave
    /// it. Others must not use it; packets that others mark with it are masqueraded, too.
    pub masquerade_bit: MasqueradeBit,
    /// How clients inside the cluster are told from others (`--detect-local-mode`).
    pub detect_local: DetectLocal,
    /// Whether service addresses with endpoints answer to ping.
    pub answer_ping: bool,
    /// The ports that the cluster uses as node ports; no masqueraded connection gets one of them.
    pub node_ports: RangeInclusive<u16>,
    /// The node's main addresses, at most one per family: where its own connections to service
    /// addresses come from.
    pub node_addresses: Vec<IpAddr>,
}

impl Default for Config {
    /// kube-proxy's defaults.
    fn default() -> Self {
        Self {
            masquerade_all: false,
            masquerade_bit: MasqueradeBit::default(),
            detect_local: DetectLocal::Networks(Vec::new()),
            answer_ping: false,
            node_ports: 30_000..=32_767,
            node_addresses: Vec::new(),
        }
    }
}

/// The place of a bit in packet marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasqueradeBit(u8);

impl MasqueradeBit {
    /// Bit `place`, if there is one: 0 to 31.
    pub fn new(place: u8) -> Option<Self> {
        (place < 32).then_some(Self(place))
    }

    /// The mark that has only this bit.
    pub fn mark(self) -> u32 {
        1 << self.0
    }
}

impl Default for MasqueradeBit {
    /// kube-proxy's, 14.
    fn default() -> Self {
        Self(14)
    }
}

/// How packets of clients inside the cluster are recognised. Processes of the node are inside
/// whatever is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// By their source address (`ClusterCIDR`, `NodeCIDR`). In a family without networks nobody is
    /// recognised.
    Networks(Vec<Cidr>),
    /// By the interface that they come in by (`BridgeInterface`).
    Bridge(Arc<str>),
    /// By how the name of that interface begins (`InterfaceNamePrefix`).
    InterfacePrefix(Arc<str>),
}

/// Where a frontend is: what a client dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The address.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

impl Place {
    fn family(&self) -> Family {
        self.address.into()
    }
}

/// What the rules have to know of a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// Whether it is a cluster IP or something that clients outside use.
    pub kind: Kind,
    /// `internalTrafficPolicy` of a cluster IP, `externalTrafficPolicy` of the others.
    pub policy: TrafficPolicy,
    /// Whether there is anybody to serve it.
    pub endpoints: Endpoints,
    /// Where clients have to come from (`loadBalancerSourceRanges` of the address's family); `None`
    /// without restriction.
    pub source_ranges: Option<Networks>,
    /// The firewall mark by which clients inside the cluster reach endpoints that clients outside do
    /// not.
    pub inside: Option<u32>,
}

/// The kinds of frontends, as far as rules differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A cluster IP.
    ClusterIp,
    /// An external IP, a load-balancer address or a node port.
    External,
}

/// Who can serve a frontend; fewer are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoints {
    /// Somebody whom every client may use.
    Some,
    /// Nobody whom clients outside may use, for want of an endpoint on this node.
    Elsewhere,
    /// Nobody at all.
    None,
}
