//! `bench trash`: adds destinations again that the kernel has just removed.
//!
//! The kernel keeps removed destinations in the network namespace's trash for two to three minutes. Each
//! added destination searches the trash from its newest entry (`ip_vs_trash_get_dest`), and takes the
//! entry of the same destination out. So the order of additions decides how far each search goes:
//!
//! * *none*: no trash, the first programming;
//! * *keys*: in the order of keys, which has nothing to do with the order of removal;
//! * *oldest*: the virtual server that was removed first comes first;
//! * *newest*: the virtual server that was removed last comes first;
//! * *later*: as *newest*, but in the order of the kernel's list after the virtual servers were added again.
//!   In Linux 7.2 that list has another order than before the removal.
//!
//! A flush removes the virtual servers in the order in which the kernel listed them before.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use ipvs_netlink::{Change, Client, ServiceKey};
use serde::Serialize;

use crate::figures;
use crate::inside;
use crate::netlink;

/// The time limit of a measurement. Its result counts the destinations that were added until then.
const PATIENCE: Duration = Duration::from_secs(60);

/// The destinations that are added between two looks at the clock.
const CHUNK: usize = 1_280;

/// Flags of `bench trash`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Number of virtual servers.
    #[arg(long, default_value_t = 4_000, value_parser = value_parser!(u32).range(1..))]
    services: u32,

    /// Destinations per virtual server.
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..))]
    destinations: u32,

    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// The order in which removed destinations are added again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Order {
    None,
    Keys,
    Oldest,
    Newest,
    Later,
}

impl Order {
    const ALL: [Self; 5] = [
        Self::None,
        Self::Newest,
        Self::Later,
        Self::Keys,
        Self::Oldest,
    ];
}

/// The result of one order.
#[derive(Debug, Serialize)]
struct Row {
    order: Order,
    destinations: usize,
    secs: f64,
}

#[derive(Debug, Serialize)]
struct Figures {
    kernel: String,
    removed: usize,
    rows: Vec<Row>,
}

impl Flags {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        inside::run("2048M", || {
            figures::print(&self.measure()?, self.json, Figures::table)
        })
    }

    fn measure(&self) -> anyhow::Result<Figures> {
        let changes = netlink::table(self.services, self.destinations);
        let (servers, destinations): (Vec<_>, Vec<_>) = changes
            .into_iter()
            .partition(|change| matches!(change, Change::AddService(_)));
        let mut rows = Vec::new();
        for order in Order::ALL {
            rows.push(lab::in_fresh_network(|| {
                measure(order, &servers, &destinations)
            })??);
            eprintln!("{:?}", rows.last());
        }
        Ok(Figures {
            kernel: lab::kernel_release(),
            removed: destinations.len(),
            rows,
        })
    }
}

/// Programs a table, removes it, and adds it again in this order.
fn measure(order: Order, servers: &[Change], destinations: &[Change]) -> anyhow::Result<Row> {
    let mut client = Client::open()?;
    apply(&mut client, servers)?;
    let mut places = places(&mut client)?;
    if order != Order::None {
        apply(&mut client, destinations)?;
        places = self::places(&mut client)?;
        client.flush()?;
        apply(&mut client, servers)?;
    }
    if order == Order::Later {
        places = self::places(&mut client)?;
    }
    let place = |change: &Change| match change {
        Change::AddDestination(key, _) => places.get(key).copied(),
        _ => None,
    };
    let mut ordered = destinations.to_vec();
    match order {
        Order::None | Order::Keys => {}
        Order::Oldest => ordered.sort_by_key(place),
        Order::Newest | Order::Later => ordered.sort_by_key(|change| Reverse(place(change))),
    }
    let start = Instant::now();
    let mut added = 0;
    for chunk in ordered.chunks(CHUNK) {
        apply(&mut client, chunk)?;
        added += chunk.len();
        if start.elapsed() > PATIENCE {
            break;
        }
    }
    Ok(Row {
        order,
        destinations: added,
        secs: start.elapsed().as_secs_f64(),
    })
}

/// Returns the position of each virtual server in the kernel's list.
fn places(client: &mut Client) -> anyhow::Result<HashMap<ServiceKey, usize>> {
    let listed = client.services()?.into_iter().map(|it| it.service.key);
    Ok(listed.zip(0..).collect())
}

fn apply(client: &mut Client, changes: &[Change]) -> anyhow::Result<()> {
    let outcomes = client.apply(changes)?;
    let result: Result<(), _> = outcomes.into_iter().collect();
    Ok(result.map_err(|error| *error)?)
}

impl Figures {
    fn table(&self) -> String {
        let Self {
            kernel, removed, ..
        } = self;
        let mut text =
            format!("{removed} destinations removed and added again, Linux {kernel}\n\n");
        for row in &self.rows {
            let each = row.secs * 1e6 / row.destinations as f64;
            let line = format!(
                "{:>10}  {:>7} added in {:>7.3} s, {each:>8.1} microseconds each\n",
                format!("{:?}", row.order).to_lowercase(),
                row.destinations,
                row.secs,
            );
            text.push_str(&line);
        }
        text
    }
}
