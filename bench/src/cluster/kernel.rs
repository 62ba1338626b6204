//! Compares the kernel's tables with the cluster between the phases of a run, and empties them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::Command;

use anyhow::{Context as _, ensure};
use ipvs_netlink::Client;
use rustix::fs::{MemfdFlags, memfd_create};

use super::population::Population;

/// Returns whether the virtual servers have exactly the endpoints of the cluster.
///
/// `None` without virtual servers, because then the proxy uses another table.
pub(crate) fn has_exactly(population: &Population) -> anyhow::Result<Option<bool>> {
    let mut client = Client::open()?;
    let mut programmed: BTreeSet<u32> = BTreeSet::new();
    let mut servers = 0_usize;
    client.walk([], |_, destinations| {
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

/// Touches the lab kernel's memory.
///
/// The host gives a page, and clears it, when the lab kernel first uses it. That took 15 % of the first
/// programming, and nothing of the limit, which is measured last. A node's memory needs no such gift.
pub(crate) fn touch_memory(bytes: usize) -> anyhow::Result<()> {
    let mut file = File::from(memfd_create("touched", MemfdFlags::empty())?);
    // Through a file, because a fault for each page would take seconds.
    let piece = vec![0; 1 << 20];
    for _ in 0..bytes / piece.len() {
        file.write_all(&piece)?;
    }
    Ok(())
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
    client.walk([], |_, _| servers += 1)?;
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
