//! A trace as text.
//!
//! One file per kernel and scheduler. A line is an event; fields are separated by spaces; `#` begins
//! a comment line. The first line that is none names the scheduler, the kernel and the flavour of its
//! cost formula; `scenario` begins a new virtual server, whose servers and time begin anew.
//!
//! ```text
//! trace wlc kernel 6.1.192 flavour total
//! scenario family 4 flags - expiration 86400 tcp by address
//! + a 10.0.0.1:80 3                             server a is added with weight 3
//! w a 5 8 2                                     it is written with weight 5, thresholds 8 and 2
//! - a                                           it is removed
//! c a 3 1                                       it has 3 active and 1 inactive connections
//! o a on                                        it is overloaded (or: off)
//! p s10.64.0.1 i40000 d10.96.0.1 j80 t512 a+    a new connection goes to a
//! ```
//!
//! Flags are those of `sh` and `mh`: `-`, `port`, `fallback` or `port,fallback`; the expiration, in
//! seconds, is that of `lblc` and `lblcr`. What follows it says in words what traffic there was.
//!
//! Adding or writing a server without thresholds is with none. The connections of one that is removed
//! live on; what became of them meanwhile stands before the line that adds it again. `o` lines follow
//! from thresholds and connections: they are there for who does not count.
//!
//! A pick says whence (`s` address, `i` port), whereto (`d`, `j`) and when (`t`, milliseconds since
//! the virtual server was made). What it leaves out is as in the pick before, except the source's
//! port, which is one more (from 0); `d+` is the address after that of the pick before. Then comes the
//! answer: a server's name, or `-` for a refused connection. What the new connection counts as stands
//! behind the name: `+` for one more active, `~` for one more inactive connection, nothing when it is
//! over already (one-packet scheduling). Everything that changed otherwise has a line of its own,
//! before the pick that sees it. A line that ends in `*7` stands for seven like it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Connections, Name, Pick};

mod read;
mod write;

/// What lines leave out: both sides of the text keep it the same way.
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

    /// The pick as it is when a line leaves everything out.
    fn next(&self) -> Pick {
        let mut next = self.pick;
        next.source.set_port(next.source.port().wrapping_add(1));
        next
    }
}

impl Connections {
    /// One more, of the kind that a pick's mark says.
    fn and(self, mark: char) -> Self {
        let is_active = mark == '+';
        Self {
            active: self.active + u32::from(is_active),
            inactive: self.inactive + u32::from(!is_active),
        }
    }
}

/// The address after this one.
fn next_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(it) => Ipv4Addr::from_bits(it.to_bits().wrapping_add(1)).into(),
        IpAddr::V6(it) => Ipv6Addr::from_bits(it.to_bits().wrapping_add(1)).into(),
    }
}
