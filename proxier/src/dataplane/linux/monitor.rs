//! Noticing what others change: the machine's own addresses, our packet rules.

use std::os::fd::AsFd;
use std::time::Duration;

use ipvs_netlink::listener::Listener;
use ipvs_netlink::transport::protocols;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::addresses::Addresses;
use crate::dataplane::Failure;
use crate::filter;
use crate::nftables::{Tampering, Watch};
use crate::plan::ServiceAddresses;

// Multicast groups of include/uapi/linux/rtnetlink.h.
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV6_IFADDR: u32 = 9;

/// How long to wait for more of the same: an interface is seldom given just one address.
const SETTLE: Duration = Duration::from_millis(200);

/// Calls `changed` whenever the addresses that [`crate::plan::Machine`] wants are not what they were,
/// in a thread that ends when `changed` says `false`.
///
/// Notifications come for every pod's interface; most leave the machine's own addresses as they are.
///
/// # Errors
/// When a socket cannot be opened or the addresses cannot be read now. Should that happen later, it
/// is logged, and changes are found at the next resync only.
pub fn addresses(
    form: ServiceAddresses,
    mut changed: impl FnMut() -> bool + Send + 'static,
) -> Result<(), Failure> {
    let groups = [RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR];
    let mut notices = Listener::open(protocols::NETLINK_ROUTE, &groups)?;
    let mut addresses = Addresses::open(form)?;
    let mut last = addresses.of_machine()?;
    keep_looking("addresses", move || {
        wait(&notices)?;
        std::thread::sleep(SETTLE);
        drain(&mut notices)?;
        let now = addresses.of_machine()?;
        let is_news = now != last;
        last = now;
        Ok(!is_news || changed())
    });
    Ok(())
}

/// Calls `changed` with what somebody else did to our packet rules, or to forward chains that matter,
/// in a thread that ends when `changed` says `false`. `port` is the socket by which we change them.
///
/// # Errors
/// When the socket cannot be opened. Should it fail later, that is logged, and what is changed is found
/// at the next resync only.
pub fn rules(
    port: u32,
    mut changed: impl FnMut(Tampering) -> bool + Send + 'static,
) -> Result<(), Failure> {
    let mut watch = Watch::open(filter::TABLE, port)?;
    keep_looking("packet rules", move || {
        wait(&watch)?;
        let mut news = watch.read()?;
        // One repair of a kind is enough for all that is told at once.
        let (mut in_table, mut in_forward) = (false, false);
        news.retain(|piece| {
            let is_first = (piece.concerns_our_table() && !in_table)
                || (piece.concerns_forwarding() && !in_forward);
            in_table |= piece.concerns_our_table();
            in_forward |= piece.concerns_forwarding();
            is_first
        });
        Ok(news.into_iter().all(&mut changed))
    });
    Ok(())
}

/// Calls `look` in a thread for as long as it says `true`.
fn keep_looking(
    what: &'static str,
    mut look: impl FnMut() -> Result<bool, Failure> + Send + 'static,
) {
    std::thread::spawn(move || {
        loop {
            match look() {
                Ok(true) => {}
                Ok(false) => return,
                Err(failure) => {
                    tracing::error!("{failure}; changed {what} are found at resyncs only");
                    return;
                }
            }
        }
    });
}

fn wait(notices: &impl AsFd) -> Result<(), Failure> {
    loop {
        let mut readable = [PollFd::from_borrowed_fd(notices.as_fd(), PollFlags::IN)];
        match poll(&mut readable, None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::kernel(errno, "waiting for notifications")),
        }
    }
}

fn drain(notices: &mut Listener) -> Result<(), Failure> {
    loop {
        match notices.read(|_| ()) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            // What was lost was about addresses, and those are read now anyway.
            Err(ipvs_netlink::Error::AnswersLost) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
