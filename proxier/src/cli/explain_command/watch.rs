//! `explain --watch`: the same question, while packets pass.

use std::time::Duration;

use super::{Flags, MOST_CONNECTIONS};
use crate::dataplane::conntrack::{ConntrackClient, Flow};
use crate::dataplane::ipvs::connections::connections;
use crate::dataplane::nftables;
use crate::explain::way::Asked;
use crate::explain::way::live::{Counted, Live};
use crate::explain::way::question::From;
use crate::explain::way::step::Step;
use crate::host::trace::{TracedFlow, watch};
use crate::plan::frontend::Frontend;

/// What counts at a frontend.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counter {
    /// A virtual server.
    VirtualServer(ipvs_netlink::ServiceKey),
    /// The table of maps.
    Maps(Frontend),
}

impl Counter {
    /// Reads the counters; `None` if the frontend has none.
    fn read(self) -> anyhow::Result<Option<Counted>> {
        match self {
            Self::VirtualServer(key) => match ipvs_netlink::Client::open()?.service(&key) {
                Ok(found) => Ok(Some(Counted {
                    connections: found.stats.connections,
                    packets_in: found.stats.packets_in,
                    packets_out: found.stats.packets_out,
                })),
                Err(error) if error.is_no_such_service() => Ok(None),
                Err(error) => Err(error.into()),
            },
            Self::Maps(frontend) => {
                let counted = nftables::counted()?.into_iter();
                let mut counted = counted.filter(|(found, _)| *found == frontend);
                Ok(counted.next().map(|(_, connections)| Counted {
                    connections,
                    ..Counted::default()
                }))
            }
        }
    }
}

/// Returns a line for each destination of a virtual server, the busiest first.
fn destinations(counter: Counter) -> anyhow::Result<Vec<String>> {
    let Counter::VirtualServer(key) = counter else {
        return Ok(Vec::new());
    };
    let mut found = ipvs_netlink::Client::open()?.destinations(&key)?;
    found.sort_by_key(|it| std::cmp::Reverse(it.active_connections));
    let line = |it: &ipvs_netlink::DestinationEntry| {
        format!(
            "{}: {} active and {} inactive connections, {} since it was added",
            it.destination.key,
            it.active_connections,
            it.inactive_connections,
            it.stats.connections
        )
    };
    Ok(found.iter().take(MOST_CONNECTIONS).map(line).collect())
}

impl Flags {
    /// Watches the packets of a question, if `--watch` asks for it. Returns the steps about them.
    pub(super) fn watched(&self, asked: &Asked, counter: Counter) -> anyhow::Result<Vec<Step>> {
        let Some(seconds) = self.watch else {
            return Ok(Vec::new());
        };
        let time = Duration::from_secs(seconds);
        let frontend = asked.frontend;
        let client = match self.from {
            Some(From::Address(address)) => Some(address),
            _ => None,
        };
        let before = counter.read()?;
        let watched = watch(
            &TracedFlow {
                protocol: frontend.protocol,
                client,
                is_of_node: self.from == Some(From::Node),
                frontend: frontend.socket(),
            },
            time,
        )?;
        let after = counter.read()?;
        let counted = before.zip(after).map(|(before, after)| Counted {
            connections: after.connections.saturating_sub(before.connections),
            packets_in: after.packets_in.saturating_sub(before.packets_in),
            packets_out: after.packets_out.saturating_sub(before.packets_out),
        });
        let is_of_client = |address| client.is_none_or(|client| client == address);
        let connections = match counter {
            Counter::Maps(_) => None,
            Counter::VirtualServer(_) => Some(connections(MOST_CONNECTIONS, |it| {
                it.protocol == frontend.protocol
                    && it.frontend == frontend.socket()
                    && is_of_client(it.client.ip())
            })?),
        };
        let of_protocol = (frontend.family(), frontend.protocol);
        let is_wanted =
            |flow: &Flow| flow.frontend() == frontend && is_of_client(flow.original.source.ip());
        let mut tracked = ConntrackClient::open()?;
        let flows = tracked.first_flows(MOST_CONNECTIONS, of_protocol, is_wanted)?;
        let live = Live {
            watched,
            time,
            counted,
            destinations: match counted {
                Some(_) => destinations(counter)?,
                None => Vec::new(),
            },
            connections,
            flows,
        };
        Ok(live.steps(asked))
    }
}
