//! The routing rules of other programs that select packets by their source.
//!
//! Layouts and numbers from `include/uapi/linux/fib_rules.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink::Result;
use netlink::attr::{attributes, find};
use netlink::transport::Transport;
use rustix::io::Errno;

use super::answer_routes::RTM_GETRULE;
use super::rtnetlink::{AF_INET, AF_INET6, RT_TABLE_LOCAL, split};
use crate::cluster::model::Cidr;

const FRA_SRC: u16 = 2;
const FIB_RULE_INVERT: u32 = 2;
const RT_TABLE_MAIN: u8 = 254;

/// Returns the networks whose packets a rule sends to another table than the usual ones.
///
/// Other conditions of the rules are ignored, so there may be too many.
pub(super) fn sources(transport: &mut Transport) -> Result<Vec<Cidr>> {
    let mut sources = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let found = transport.list(
            RTM_GETRULE,
            "reading the routing rules",
            |writer| writer.header(&[family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            read,
        );
        match found {
            Ok(found) => sources.extend(found),
            // A kernel without IPv6, or without policy routing.
            Err(error) if matches!(error.errno(), Some(Errno::AFNOSUPPORT | Errno::OPNOTSUPP)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sources)
}

fn read(payload: &[u8]) -> Result<Option<Cidr>> {
    let (header, rest) = split::<12>(payload)?;
    let [family, _, length, _, table, _, _, _, a, b, c, d] = header;
    let is_inverted = u32::from_ne_bytes([a, b, c, d]) & FIB_RULE_INVERT != 0;
    if is_inverted || [RT_TABLE_MAIN, RT_TABLE_LOCAL].contains(&table) {
        return Ok(None);
    }
    let Some(source) = find(attributes(rest), FRA_SRC)? else {
        return Ok(None);
    };
    let source = match family {
        AF_INET => IpAddr::from(Ipv4Addr::from(source.array::<4>()?)),
        AF_INET6 => Ipv6Addr::from(source.array::<16>()?).into(),
        _ => return Ok(None),
    };
    Ok(Cidr::new(source, length).ok())
}
