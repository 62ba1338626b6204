//! The text format of a trace.
//!
//! One file per kernel and scheduler. A line is an event; fields are separated by spaces; a line that
//! starts with `#` is a comment. The first other line names the scheduler, the kernel and its flavour.
//! `scenario` starts a new virtual server without servers, at time 0.
//!
//! ```text
//! trace wlc kernel 6.1.192 flavour total
//! scenario family 4 flags - expiration 86400 tcp by address
//! + a 10.0.0.1:80 3                             server a is added with weight 3
//! w a 5 8 2                                     it is set to weight 5, thresholds 8 and 2
//! - a                                           it is removed
//! c a 3 1                                       it has 3 active and 1 inactive connections
//! o a on                                        it is overloaded (or: off)
//! p s10.64.0.1 i40000 d10.96.0.1 j80 t512 a+    a new connection is sent to a
//! ```
//!
//! Flags are those of `sh` and `mh`: `-`, `port`, `fallback` or `port,fallback`. The expiration, in
//! seconds, is that of `lblc` and `lblcr`. The rest of the line describes the traffic.
//!
//! A line `+` or `w` without thresholds sets none. A removed server keeps its connections; if they change
//! before it is added again, a `c` line says so before its next `+` line. `o` lines follow from
//! thresholds and connections; they are there for a reader that does not count.
//!
//! A pick has the source (`s` address, `i` port), the destination (`d`, `j`) and the time (`t`, milliseconds
//! since the virtual server was created). A field that is missing is as in the pick before, except that
//! the source port is one greater (starting from 0). `d+` is the address after that of the pick before.
//! The last field is the server's name, or `-` for a refused connection. After the name, `+` stands
//! for one more active connection, `~` for one more inactive one, and nothing for a connection that has
//! ended already (one-packet scheduling). Every other change has its own line, before the next pick. A
//! line that ends in `*7` stands for seven equal lines.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Connections, Name, Pick};

mod read;
mod write;

/// The state from which reader and writer complete what lines leave out.
#[derive(Debug)]
pub(super) struct Memory {
    pick: Pick,
    connections: HashMap<Name, Connections>,
}

impl Memory {
    fn new() -> Self {
        let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        Self {
            pick: Pick {
                source: nowhere,
                destination: nowhere,
                at_ms: 0,
            },
            connections: HashMap::new(),
        }
    }

    /// Returns the pick that an empty line stands for.
    fn next(&self) -> Pick {
        let mut next = self.pick;
        next.source.set_port(next.source.port().wrapping_add(1));
        next
    }
}

impl Connections {
    /// Returns the counts with one connection more, of the kind that the mark after a name gives.
    fn and(self, mark: char) -> Self {
        let is_active = mark == '+';
        Self {
            active: self.active + u32::from(is_active),
            inactive: self.inactive + u32::from(!is_active),
        }
    }
}

/// Returns the address that follows `address`.
fn next_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(it) => Ipv4Addr::from_bits(it.to_bits().wrapping_add(1)).into(),
        IpAddr::V6(it) => Ipv6Addr::from_bits(it.to_bits().wrapping_add(1)).into(),
    }
}
