//! Rules and their statements.

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::set::write_duration;
use crate::value::{Value, protocol_name};
use net::{Family, Networks, Protocol};

/// A rule. The kernel executes its statements in order, until one does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule(Box<[Statement]>);

impl Rule {
    /// Returns the rule with these statements.
    pub fn new(statements: impl Into<Box<[Statement]>>) -> Self {
        Self(statements.into())
    }

    /// Returns its statements.
    pub fn statements(&self) -> &[Statement] {
        &self.0
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, statement) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            statement.fmt(f)?;
        }
        Ok(())
    }
}

/// A part of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// Continues with the next statement if the condition holds for the packet.
    Match(Match),
    /// Continues with the next statement if the set has an element for the packet.
    In {
        /// The packet's values for each part of the set's key.
        key: Box<[Selector]>,
        /// The set's name.
        set: Arc<str>,
    },
    /// Applies the map's verdict for the packet. Without such an element, the next rule follows.
    VerdictMap {
        /// The packet's values for each part of the map's key.
        key: Box<[Selector]>,
        /// The map's name.
        map: Arc<str>,
    },
    /// Sets the packet's mark.
    SetMark(NewMark),
    /// Makes the kernel report what each later rule does with the packet.
    Trace,
    /// Adds or updates an element of a map of kind [`super::SetKind::Learned`].
    Remember {
        /// The map's name.
        map: Arc<str>,
        /// The packet's value that becomes the key.
        key: Selector,
        /// The packet's value that becomes the data.
        data: Selector,
    },
    /// Changes the connection's source to an address of the outgoing interface and a random port.
    ///
    /// Random, as in kube-proxy: two processors that look for the next free port at the same time find the
    /// same one, and the kernel then drops the packet of one of them.
    Masquerade {
        /// The range of the port.
        ports: RangeInclusive<u16>,
    },
    /// Changes the sender's IP address of an ARP message.
    SetArpSender(Ipv4Addr),
    /// Binds the connection to its destination, so that it passes no further chain of destination NAT.
    ///
    /// A verdict. The rule does not match packets of the other family.
    KeepDestination(Family),
    /// Changes the connection's destination to the map's target for the packet. A verdict.
    ///
    /// Without such an element, the next rule follows. The rule does not match packets of the other family.
    DestinationNat {
        /// The family of the targets.
        family: Family,
        /// The packet's values for each part of the map's key.
        key: Box<[Selector]>,
        /// The name of a map of kind [`super::SetKind::Targets`] or [`super::SetKind::LearnedTargets`].
        map: Arc<str>,
    },
    /// Changes the connection's destination to this machine. A verdict.
    Redirect,
    /// Adds the packet's destination to a map of kind [`super::SetKind::LearnedTargets`]. If the map has the key, keeps
    /// its target and renews its time. If the map is full, the next statement follows.
    Learn {
        /// The family of the targets.
        family: Family,
        /// The map's name.
        map: Arc<str>,
        /// The packet's values for each part of the key.
        key: Box<[Selector]>,
        /// How long the element stays, in whole milliseconds.
        timeout: Duration,
    },
    /// Drops the packet and sends an error to its source.
    Reject(Reject),
    /// Applies a verdict.
    Verdict(Verdict),
}

/// A condition for packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// Its source address. A packet of the other family never matches, whatever the relation.
    Source(Relation, Networks),
    /// Its destination address is in one of these networks.
    Destination(Networks),
    /// The destination address of its connection's first packet, before translation, is in one of these networks.
    OriginalDestination(Networks),
    /// A value of it equals this one.
    Equals(Selector, Value),
    /// Its transport protocol is one of these.
    Protocol(Box<[Protocol]>),
    /// Its input interface. The name is empty for a packet that this machine sends.
    InputInterface(Relation, Arc<str>),
    /// Its input interface's name begins with this text.
    InputInterfacePrefix(Relation, Arc<str>),
    /// It begins a connection.
    New,
    /// It belongs to an established connection, or is related to one, such as an ICMP error.
    Established,
    /// Its direction is opposite to that of its connection's first packet.
    Reply,
    /// Destination NAT changed its connection.
    Translated,
    /// The packet is the first of its connection: no packet of it has left yet.
    Unconfirmed,
    /// Its mark has all of these bits.
    HasMark(u32),
    /// Its mark is 0.
    Unmarked,
    /// Its source is an address of this machine.
    SourceIsLocal,
    /// Its destination is an address of this machine.
    DestinationIsLocal,
    /// A socket with the option `IP_TRANSPARENT` receives it, whether or not its destination is an address of this
    /// machine.
    TransparentSocket,
    /// It is an ICMP or ICMPv6 echo request (ping).
    EchoRequest(Family),
    /// It is an ARP request on a link with hardware addresses of 6 bytes. Only there are the addresses at
    /// the offsets of [`Selector::ArpSender`] and [`Selector::ArpTarget`].
    ArpRequest,
}

/// Whether a comparison needs equal or unequal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Equal to one of the values.
    Is,
    /// Unequal to all of the values.
    IsNot,
}

/// A value of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Its source address. The rule does not match packets of the other family.
    Source(Family),
    /// Its destination address. The rule does not match packets of the other family.
    Destination(Family),
    /// Its transport protocol.
    Protocol,
    /// Its destination port: two bytes of the transport header, whatever the protocol. Use it only
    /// together with [`Selector::Protocol`].
    DestinationPort,
    /// Its TCP destination port. The rule does not match packets of other protocols.
    TcpDestinationPort,
    /// The sender's IP address of an ARP message.
    ArpSender,
    /// The target's IP address of an ARP message.
    ArpTarget,
    /// The name of its output interface.
    OutputInterface,
    /// Its mark.
    Mark,
    /// The kernel's number for its tracked connection.
    ConnectionId,
    /// The source of its connection before NAT. The rule does not match connections of the other family.
    OriginalSource(Family),
    /// The destination of its connection before NAT. The rule does not match connections of the other family.
    OriginalDestination(Family),
    /// The destination port of its connection before NAT.
    OriginalDestinationPort,
    /// This number. nft 1.0.6 cannot print a constant in a key, so it is a counter of one value.
    Number(u32),
    /// A random number among `count` ones from `first` on.
    Random {
        /// How many numbers.
        count: u32,
        /// The first number.
        first: u32,
    },
    /// A number among `count` ones from `first` on, by a hash of its source address. The rule does not match packets
    /// of the other family.
    SourceHash {
        /// The family of the source address.
        family: Family,
        /// Whether the source port is hashed too. Use it only together with [`Selector::Protocol`].
        with_port: bool,
        /// How many numbers.
        count: u32,
        /// The first number.
        first: u32,
    },
}

/// The seed of [`Selector::SourceHash`]: without one, the kernel draws another for each rule.
pub(crate) const HASH_SEED: u32 = 0x6970_7673;

/// A new value for a packet's mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewMark {
    /// This value.
    To(u32),
    /// The present mark with these bits set.
    With(u32),
    /// The present mark with these bits cleared.
    Without(u32),
    /// The map's data for the packet. Without such an element, the rule does not match.
    Mapped {
        /// The packet's value for the map's key.
        key: Selector,
        /// The map's name.
        map: Arc<str>,
    },
}

/// The error that a rejected packet's source receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// A TCP reset. The rule must match TCP only.
    TcpReset,
    /// ICMP or ICMPv6 "port unreachable".
    PortUnreachable,
}

/// The chain or rule that follows for a packet, or the packet's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ends this chain and those that jumped to it. The hook's other chains follow.
    Accept,
    /// Drops the packet. No other chain can change that.
    Drop,
    /// Continues after the rule that jumped to this chain.
    Return,
    /// Continues in another chain and, if that one returns, with the next rule.
    Jump(Arc<str>),
    /// Continues in another chain and, if that one returns, after the rule that jumped to this chain.
    Goto(Arc<str>),
}

impl From<Match> for Statement {
    fn from(condition: Match) -> Self {
        Self::Match(condition)
    }
}

impl From<Verdict> for Statement {
    fn from(verdict: Verdict) -> Self {
        Self::Verdict(verdict)
    }
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Match(condition) => condition.fmt(f),
            Self::In { key, set } => write!(f, "{} @{set}", Joined(key)),
            Self::VerdictMap { key, map } => write!(f, "{} vmap @{map}", Joined(key)),
            Self::SetMark(mark) => write!(f, "meta mark set {mark}"),
            Self::Trace => f.write_str("meta nftrace set 1"),
            Self::Remember { map, key, data } => write!(f, "update @{map} {{ {key} : {data} }}"),
            Self::Masquerade { ports } => {
                let (first, last) = (ports.start(), ports.end());
                write!(f, "masquerade to :{first}-{last} fully-random")
            }
            Self::SetArpSender(address) => write!(f, "arp saddr ip set {address}"),
            Self::KeepDestination(family) => {
                let to = Selector::Destination(*family);
                write!(f, "dnat {} to {to}", family_name(*family))
            }
            Self::DestinationNat { family, key, map } => {
                write!(
                    f,
                    "dnat {} to {} map @{map}",
                    family_name(*family),
                    Joined(key)
                )
            }
            Self::Redirect => f.write_str("redirect"),
            Self::Learn {
                family,
                map,
                key,
                timeout,
            } => {
                write!(f, "update @{map} {{ {} timeout ", Joined(key))?;
                write_duration(f, *timeout)?;
                write!(f, " : {} }}", Joined(&target(*family)))
            }
            Self::Reject(Reject::TcpReset) => f.write_str("reject with tcp reset"),
            Self::Reject(Reject::PortUnreachable) => f.write_str("reject"),
            Self::Verdict(verdict) => verdict.fmt(f),
        }
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(relation, networks) => {
                let selector = Selector::Source(networks.family());
                write!(f, "{selector} {relation}{networks}")
            }
            Self::Destination(networks) => {
                let selector = Selector::Destination(networks.family());
                write!(f, "{selector} {networks}")
            }
            Self::OriginalDestination(networks) => {
                let selector = Selector::OriginalDestination(networks.family());
                write!(f, "{selector} {networks}")
            }
            Self::Equals(selector, value) => write!(f, "{selector} {value}"),
            Self::Protocol(protocols) => match protocols[..] {
                [protocol] => write!(f, "meta l4proto {}", protocol_name(protocol)),
                _ => {
                    let names = protocols.iter().copied().map(protocol_name);
                    let names: Vec<_> = names.collect();
                    write!(f, "meta l4proto {{ {} }}", names.join(", "))
                }
            },
            Self::InputInterface(relation, name) => write!(f, "iifname {relation}\"{name}\""),
            Self::InputInterfacePrefix(relation, prefix) => {
                write!(f, "iifname {relation}\"{prefix}*\"")
            }
            Self::New => f.write_str("ct state new"),
            Self::Established => f.write_str("ct state established,related"),
            Self::Reply => f.write_str("ct direction reply"),
            Self::Translated => f.write_str("ct status dnat"),
            Self::Unconfirmed => f.write_str("ct status ! confirmed"),
            Self::HasMark(bits) => {
                let bits = Value::Mark(*bits);
                write!(f, "meta mark & {bits} == {bits}")
            }
            Self::Unmarked => f.write_str("meta mark 0x00000000"),
            Self::SourceIsLocal => f.write_str("fib saddr type local"),
            Self::DestinationIsLocal => f.write_str("fib daddr type local"),
            Self::TransparentSocket => f.write_str("socket transparent 1"),
            Self::ArpRequest => f.write_str("arp operation request arp hlen 6"),
            Self::EchoRequest(Family::V4) => f.write_str("icmp type echo-request"),
            Self::EchoRequest(Family::V6) => f.write_str("icmpv6 type echo-request"),
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Is => "",
            Self::IsNot => "!= ",
        })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::OriginalSource(family) => {
                return write!(f, "ct original {} saddr", family_name(family));
            }
            Self::OriginalDestination(family) => {
                return write!(f, "ct original {} daddr", family_name(family));
            }
            Self::Number(number) => return write_numbers(f, "numgen inc", 1, "", number),
            Self::Random { count, first } => {
                return write_numbers(f, "numgen random", count, "", first);
            }
            Self::SourceHash {
                family,
                with_port,
                count,
                first,
            } => {
                let port = if with_port { " . th sport" } else { "" };
                let source = format!("jhash {}{port}", Self::Source(family));
                return write_numbers(f, &source, count, &format!(" seed {HASH_SEED:#x}"), first);
            }
            Self::OriginalDestinationPort => "ct original proto-dst",
            Self::Source(Family::V4) => "ip saddr",
            Self::Source(Family::V6) => "ip6 saddr",
            Self::Destination(Family::V4) => "ip daddr",
            Self::Destination(Family::V6) => "ip6 daddr",
            Self::Protocol => "meta l4proto",
            Self::DestinationPort => "th dport",
            Self::TcpDestinationPort => "tcp dport",
            Self::ArpSender => "arp saddr ip",
            Self::ArpTarget => "arp daddr ip",
            Self::OutputInterface => "oifname",
            Self::Mark => "meta mark",
            Self::ConnectionId => "ct id",
        };
        f.write_str(text)
    }
}

/// Writes an expression with `count` values from `first` on.
fn write_numbers(
    f: &mut fmt::Formatter<'_>,
    source: &str,
    count: u32,
    seed: &str,
    first: u32,
) -> fmt::Result {
    write!(f, "{source} mod {count}{seed}")?;
    match first {
        0 => Ok(()),
        _ => write!(f, " offset {first}"),
    }
}

/// Returns the parts of a target: the packet's destination.
pub(crate) fn target(family: Family) -> [Selector; 2] {
    [Selector::Destination(family), Selector::DestinationPort]
}

fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

impl fmt::Display for NewMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::To(mark) => Value::Mark(*mark).fmt(f),
            Self::With(bits) => write!(f, "meta mark | {}", Value::Mark(*bits)),
            Self::Without(bits) => write!(f, "meta mark & {}", Value::Mark(!bits)),
            Self::Mapped { key, map } => write!(f, "{key} map @{map}"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Return => f.write_str("return"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

struct Joined<'a>(&'a [Selector]);

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, selector) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(" . ")?;
            }
            selector.fmt(f)?;
        }
        Ok(())
    }
}
