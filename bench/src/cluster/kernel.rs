//! Compares the kernel's tables with the cluster between the phases of a run, and empties them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use ipvs_netlink::{Change, Client, DestinationEntry};

use super::population::Population;
use crate::netlink::limit;

/// Returns whether the virtual servers have exactly the endpoints of the cluster.
///
/// `None` without virtual servers, because then the proxy uses another table.
pub(crate) fn has_exactly(population: &Population) -> anyhow::Result<Option<bool>> {
    let mut client = Client::open()?;
    let mut programmed: BTreeSet<u32> = BTreeSet::new();
    let mut servers = 0_usize;
    client.walk(|_, destinations| {
        servers += 1;
        let serving = destinations.iter().filter(|it| it.destination.weight > 0);
        programmed.extend(serving.map(|it| word(it.destination.key.address)));
    })?;
    if servers == 0 {
        return Ok(None);
    }
    let expected: BTreeSet<u32> = population.words().collect();
    let mut extra = programmed.difference(&expected);
    // The endpoint of the API server's Service is the node.
    let is_node = |word: &u32| {
        population
            .node_addresses()
            .iter()
            .any(|it| self::word(*it) == *word)
    };
    Ok(Some(expected.is_subset(&programmed) && extra.all(is_node)))
}

/// Programs the virtual servers of this namespace in a new one, and returns the time it took.
///
/// `None` without virtual servers. The messages are prepared, so no proxy can program these virtual
/// servers in less time.
pub(crate) fn limit() -> anyhow::Result<Option<Duration>> {
    let table = Client::open()?.table()?;
    if table.is_empty() {
        return Ok(None);
    }
    let changes: Vec<Change> = table
        .into_iter()
        .flat_map(|(entry, destinations)| {
            let key = entry.service.key;
            let destinations = destinations.into_iter();
            let add = move |it: DestinationEntry| Change::AddDestination(key, it.destination);
            std::iter::once(Change::AddService(entry.service)).chain(destinations.map(add))
        })
        .collect();
    let measured = lab::in_fresh_network(|| {
        let mut client = Client::open()?;
        let taken = limit::program(client.family(), &changes)?;
        let mut programmed = 0_usize;
        client.walk(|_, destinations| programmed += 1 + destinations.len())?;
        ensure!(
            programmed == changes.len(),
            "the kernel accepted {programmed} of {} messages",
            changes.len()
        );
        Ok(taken)
    })?;
    // The kernel frees the namespace in the background, which would disturb the next phase.
    std::thread::sleep(Duration::from_secs(2));
    measured.map(Some)
}

/// Returns the last four bytes of an address.
fn word(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => u32::try_from(address.to_bits() & 0xffff_ffff).unwrap_or_default(),
    }
}

/// Empties the kernel's table: IPVS, or the packet rules if IPVS is not used.
pub(crate) fn flush() -> anyhow::Result<()> {
    let mut client = Client::open()?;
    let mut servers = 0_usize;
    client.walk(|_, _| servers += 1)?;
    if servers > 0 {
        client.flush()?;
        return Ok(());
    }
    let status = Command::new("/usr/sbin/nft")
        .args(["flush", "ruleset"])
        .status();
    let status = status.context("running nft (install the package nftables)")?;
    ensure!(status.success(), "nft flush ruleset: {status}");
    Ok(())
}
