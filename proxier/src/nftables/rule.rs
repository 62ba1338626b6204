//! Rules: what is looked at, and what is done then.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::value::{Value, name};
use crate::model::{Family, Networks, Protocol};

/// A rule: statements from left to right, until one does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule(Box<[Statement]>);

impl Rule {
    /// The rule that consists of `statements`.
    pub fn new(statements: impl Into<Box<[Statement]>>) -> Self {
        Self(statements.into())
    }

    /// Its statements.
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
    /// Goes on if the packet is like this.
    Match(Match),
    /// Goes on if the set has the packet's values.
    In {
        /// What is looked up, in the order of the set's key.
        key: Box<[Selector]>,
        /// The set.
        set: Arc<str>,
    },
    /// Does what the map says for the packet's values; goes on if it says nothing.
    VerdictMap {
        /// What is looked up, in the order of the map's key.
        key: Box<[Selector]>,
        /// The map.
        map: Arc<str>,
    },
    /// Changes the packet's mark.
    SetMark(NewMark),
    /// Remembers `data` under `key` in a map of kind [`super::SetKind::Learned`].
    Remember {
        /// The map.
        map: Arc<str>,
        /// The key.
        key: Selector,
        /// What is remembered.
        data: Selector,
    },
    /// Gives the connection an address of the interface it leaves by as its source, and a random
    /// port.
    Masquerade {
        /// The ports.
        ports: RangeInclusive<u16>,
    },
    /// Answers that there is nothing here.
    Reject(Reject),
    /// Ends or leaves the chain.
    Verdict(Verdict),
}

/// What a packet is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// Its source; a packet of another family never matches, whatever the relation.
    Source(Relation, Networks),
    /// Its transport protocol is one of these.
    Protocol(Box<[Protocol]>),
    /// The interface that it came in by. A packet of this machine has none, and so is on none.
    InputInterface(Relation, Arc<str>),
    /// The interface that it came in by has a name that begins so.
    InputInterfacePrefix(Relation, Arc<str>),
    /// It begins a connection.
    New,
    /// It belongs to a connection, or answers to one by ICMP.
    Established,
    /// It goes to where its connection came from.
    Reply,
    /// Its mark has these bits.
    HasMark(u32),
    /// Its mark is not 0.
    Marked,
    /// Its source is an address of this machine.
    SourceIsLocal,
    /// It asks for an echo (ping).
    EchoRequest(Family),
}

/// Whether a comparison wants the value or anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The value, or one of the values.
    Is,
    /// None of the values.
    IsNot,
}

/// What of a packet is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Its source address; a packet of another family is not in any set.
    Source(Family),
    /// Its destination address; likewise.
    Destination(Family),
    /// Its transport protocol.
    Protocol,
    /// Its destination port, whatever the protocol; only where the protocol is looked up, too.
    DestinationPort,
    /// Its TCP destination port; a packet of another protocol is not in any set.
    TcpDestinationPort,
    /// Its mark.
    Mark,
    /// The number of its connection.
    ConnectionId,
}

/// What becomes of a packet's mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewMark {
    /// This.
    To(u32),
    /// What it is, and these bits.
    With(u32),
    /// What it is, but for these bits.
    Without(u32),
    /// What the map says; where it says nothing the rule ends.
    Mapped {
        /// What is looked up.
        key: Selector,
        /// The map.
        map: Arc<str>,
    },
}

/// How a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// With a TCP reset; only for TCP.
    TcpReset,
    /// With ICMP or ICMPv6 "port unreachable".
    PortUnreachable,
}

/// How a chain ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet passes this hook's chain.
    Accept,
    /// The packet vanishes.
    Drop,
    /// Back to where the chain was called.
    Return,
    /// On in another chain, and back.
    Jump(Arc<str>),
    /// On in another chain, and back to where this one was called.
    Goto(Arc<str>),
}

impl From<Match> for Statement {
    fn from(it: Match) -> Self {
        Self::Match(it)
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
            Self::Match(it) => it.fmt(f),
            Self::In { key, set } => write!(f, "{} @{set}", Joined(key)),
            Self::VerdictMap { key, map } => write!(f, "{} vmap @{map}", Joined(key)),
            Self::SetMark(mark) => write!(f, "meta mark set {mark}"),
            Self::Remember { map, key, data } => write!(f, "update @{map} {{ {key} : {data} }}"),
            Self::Masquerade { ports } => {
                let (first, last) = (ports.start(), ports.end());
                write!(f, "masquerade to :{first}-{last} fully-random")
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
            Self::Protocol(protocols) => match protocols[..] {
                [protocol] => write!(f, "meta l4proto {}", name(protocol)),
                _ => {
                    let names: Vec<_> = protocols.iter().map(|&it| name(it)).collect();
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
            Self::HasMark(bits) => {
                let bits = Value::Mark(*bits);
                write!(f, "meta mark & {bits} == {bits}")
            }
            Self::Marked => f.write_str("meta mark != 0x00000000"),
            Self::SourceIsLocal => f.write_str("fib saddr type local"),
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
        f.write_str(match self {
            Self::Source(Family::V4) => "ip saddr",
            Self::Source(Family::V6) => "ip6 saddr",
            Self::Destination(Family::V4) => "ip daddr",
            Self::Destination(Family::V6) => "ip6 daddr",
            Self::Protocol => "meta l4proto",
            Self::DestinationPort => "th dport",
            Self::TcpDestinationPort => "tcp dport",
            Self::Mark => "meta mark",
            Self::ConnectionId => "ct id",
        })
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
