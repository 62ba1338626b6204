//! Routes by which packets with a mark reach this machine's sockets, whatever their destination.
//!
//! Layouts and numbers from `include/uapi/linux/fib_rules.h` and `rtnetlink.h`.

use std::fmt;

use netlink::Result;
use netlink::attr::{Writer, attributes, find};
use netlink::transport::{Transport, protocols};
use netlink::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use rustix::io::Errno;

use super::rtnetlink::{
    AF_INET, AF_INET6, LOOPBACK_INDEX, OUR_PROTOCOL, RT_SCOPE_HOST, RTA_OIF, RTM_DELROUTE,
    RTM_GETROUTE, RTM_NEWROUTE, RTN_LOCAL, split,
};
use crate::cluster::model::Family;

const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
pub(super) const RTM_GETRULE: u16 = 34;

const FR_ACT_TO_TBL: u8 = 1;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_FWMASK: u16 = 16;
const FRA_PROTOCOL: u16 = 21;

/// The routing table of the routes. A table with this number of another program keeps its other routes.
const TABLE: u8 = 73;

/// The place of the rules: after the rule for local addresses (0), before all other programs' known ones.
const PRIORITY: u32 = 1;

/// A rule that sends marked packets to the table, or the table's only route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AnswerRoute {
    /// `ip rule add fwmark MARK/MARK table 73`.
    Rule(Family),
    /// `ip route add local default dev lo table 73`.
    Route(Family),
}

impl fmt::Display for AnswerRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(family) => {
                let family = name(*family);
                write!(f, "{family} rule {PRIORITY} to routing table {TABLE}")
            }
            Self::Route(family) => {
                let family = name(*family);
                write!(f, "{family} local default route of routing table {TABLE}")
            }
        }
    }
}

/// The routes of one network namespace.
#[derive(Debug)]
pub(crate) struct AnswerRoutes {
    transport: Transport,
    mark: u32,
}

impl AnswerRoutes {
    /// Opens a socket. The routes are for packets with all bits of `mark`.
    pub(crate) fn open(mark: u32) -> Result<Self> {
        let transport = Transport::open(protocols::NETLINK_ROUTE)?;
        Ok(Self { transport, mark })
    }

    /// Adds what is missing.
    pub(crate) fn add(&mut self, family: Family) -> Result<()> {
        // The route comes first: a packet that finds no route in the table would continue in the others.
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        let doing = "adding the local default route of answers";
        self.transport
            .request(RTM_NEWROUTE, flags, doing, |writer| {
                write_route(writer, family)
            })?;
        let mark = self.mark;
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        let doing = "adding the routing rule of answers";
        let added = self.transport.request(RTM_NEWRULE, flags, doing, |writer| {
            write_rule(writer, family, mark)
        });
        unless(added, &[Errno::EXIST])
    }

    /// Removes all of them, and returns what existed.
    pub(crate) fn remove(&mut self) -> Result<Vec<AnswerRoute>> {
        // Of each family, the rule comes before the route, so no rule leads to an empty table.
        let found = self.find()?;
        for &each in &found {
            let mark = self.mark;
            let doing = format!("deleting the {each}");
            let deleted = match each {
                AnswerRoute::Rule(family) => {
                    self.transport.request(RTM_DELRULE, 0, &doing, |writer| {
                        write_rule(writer, family, mark)
                    })
                }
                AnswerRoute::Route(family) => {
                    self.transport.request(RTM_DELROUTE, 0, &doing, |writer| {
                        write_route(writer, family)
                    })
                }
            };
            // Another program may have deleted it since `find`: the kernel lacks a rule with ENOENT, a route
            // with ESRCH.
            unless(deleted, &[Errno::NOENT, Errno::SRCH])?;
        }
        Ok(found)
    }

    /// Returns which of them exist.
    pub(crate) fn find(&mut self) -> Result<Vec<AnswerRoute>> {
        let mut found = Vec::new();
        for family in [Family::V4, Family::V6] {
            self.dump(RTM_GETRULE, family, read_rule, &mut found)?;
            self.dump(RTM_GETROUTE, family, read_route, &mut found)?;
        }
        Ok(found)
    }

    fn dump(
        &mut self,
        kind: u16,
        family: Family,
        read: fn(Family, &[u8]) -> Result<Option<AnswerRoute>>,
        found: &mut Vec<AnswerRoute>,
    ) -> Result<()> {
        let mut dumped = Vec::new();
        let result = self.transport.dump(
            kind,
            "reading the routing of answers",
            |writer| writer.header(&[number(family), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Vec::clear,
            &mut dumped,
            |dumped, message| {
                dumped.extend(read(family, message.payload)?);
                Ok(())
            },
        );
        found.extend(dumped);
        match result {
            // A kernel without IPv6, or without policy routing.
            Err(error) if matches!(error.errno(), Some(Errno::AFNOSUPPORT | Errno::OPNOTSUPP)) => {
                Ok(())
            }
            other => other.map(drop),
        }
    }
}

/// Ignores a refusal in `done`: the kernel already has the requested state.
fn unless(result: Result<()>, done: &[Errno]) -> Result<()> {
    match result {
        Err(error) if error.errno().is_some_and(|it| done.contains(&it)) => Ok(()),
        other => other,
    }
}

fn name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

fn number(family: Family) -> u8 {
    match family {
        Family::V4 => AF_INET,
        Family::V6 => AF_INET6,
    }
}

/// Writes `struct fib_rule_hdr` and its attributes.
fn write_rule(writer: &mut Writer<'_>, family: Family, mark: u32) {
    let family = number(family);
    writer.header(&[family, 0, 0, 0, TABLE, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0]);
    writer.u32(FRA_PRIORITY, PRIORITY);
    writer.u32(FRA_FWMARK, mark);
    // The other bits of the mark belong to other programs.
    writer.u32(FRA_FWMASK, mark);
    writer.u8(FRA_PROTOCOL, OUR_PROTOCOL);
}

/// Writes `struct rtmsg` and its attributes.
fn write_route(writer: &mut Writer<'_>, family: Family) {
    let (scope, kind) = (RT_SCOPE_HOST, RTN_LOCAL);
    writer.header(&[
        number(family),
        0,
        0,
        0,
        TABLE,
        OUR_PROTOCOL,
        scope,
        kind,
        0,
        0,
        0,
        0,
    ]);
    writer.u32(RTA_OIF, LOOPBACK_INDEX);
}

fn read_rule(family: Family, payload: &[u8]) -> Result<Option<AnswerRoute>> {
    let (header, rest) = split::<12>(payload)?;
    let protocol = find(attributes(rest), FRA_PROTOCOL)?;
    let protocol = protocol.map(|protocol| protocol.u8()).transpose()?;
    let is_ours = header[4] == TABLE && protocol == Some(OUR_PROTOCOL);
    Ok(is_ours.then_some(AnswerRoute::Rule(family)))
}

fn read_route(family: Family, payload: &[u8]) -> Result<Option<AnswerRoute>> {
    let (header, _) = split::<12>(payload)?;
    let [_, length, _, _, table, protocol, _, kind, ..] = header;
    let is_ours = (length, table, protocol, kind) == (0, TABLE, OUR_PROTOCOL, RTN_LOCAL);
    Ok(is_ours.then_some(AnswerRoute::Route(family)))
}
