//! Monitors of changes by other programs: to the machine's addresses and to packet rules.

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

/// How long to wait for further notifications: an interface usually gets several addresses at once.
const SETTLE_TIME: Duration = Duration::from_millis(200);

/// Starts a thread that calls `changed` when the machine's own addresses changed.
///
/// The thread ends when `changed` returns `false`. A notification alone proves no change: the kernel
/// also sends them for Pod interfaces, and those for link-local addresses change nothing here. The
/// thread therefore compares the addresses before and after.
///
/// # Errors
/// If a socket cannot be opened or the addresses cannot be read at the start. A later failure is
/// logged and ends the thread; from then on only resyncs find changes.
pub(crate) fn addresses(
    form: ServiceAddresses,
    mut changed: impl FnMut() -> bool + Send + 'static,
) -> Result<(), Failure> {
    let groups = [RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR];
    let mut notices = Listener::open(protocols::NETLINK_ROUTE, &groups)?;
    let mut addresses = Addresses::open(form)?;
    let mut last = addresses.read_machine()?;
    spawn("addresses", move || {
        wait_for(&notices)?;
        std::thread::sleep(SETTLE_TIME);
        discard(&mut notices)?;
        let now = addresses.read_machine()?;
        let has_changed = now != last;
        last = now;
        Ok(!has_changed || changed())
    });
    Ok(())
}

/// Starts a thread that calls `changed` when another program changed our table or a forward chain.
///
/// The thread ends when `changed` returns `false`. `port` is the netlink port of our own changes,
/// which are ignored.
///
/// # Errors
/// If the socket cannot be opened. A later failure is logged and ends the thread; from then on only
/// resyncs find changes.
pub(crate) fn rules(
    port: u32,
    mut changed: impl FnMut(Tampering) -> bool + Send + 'static,
) -> Result<(), Failure> {
    let mut watch = Watch::open(filter::TABLE, port)?;
    spawn("packet rules", move || {
        wait_for(&watch)?;
        let mut tamperings = watch.read()?;
        // One repair covers all changes of a kind: pass on the first of each kind only.
        let (mut has_table, mut has_forward) = (false, false);
        tamperings.retain(|tampering| {
            let is_first = (tampering.concerns_our_table() && !has_table)
                || (tampering.concerns_forwarding() && !has_forward);
            has_table |= tampering.concerns_our_table();
            has_forward |= tampering.concerns_forwarding();
            is_first
        });
        Ok(tamperings.into_iter().all(&mut changed))
    });
    Ok(())
}

/// Starts a thread that calls `step` until it returns `false` or fails.
fn spawn(what: &'static str, mut step: impl FnMut() -> Result<bool, Failure> + Send + 'static) {
    std::thread::spawn(move || {
        loop {
            match step() {
                Ok(true) => {}
                Ok(false) => return,
                Err(failure) => {
                    tracing::error!(
                        "{failure}; changes of {what} are now found at resyncs only; restart to monitor them again"
                    );
                    return;
                }
            }
        }
    });
}

fn wait_for(notices: &impl AsFd) -> Result<(), Failure> {
    loop {
        let mut readable = [PollFd::from_borrowed_fd(notices.as_fd(), PollFlags::IN)];
        match poll(&mut readable, None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::kernel(errno, "waiting for notifications")),
        }
    }
}

/// Discards all waiting notifications.
fn discard(notices: &mut Listener) -> Result<(), Failure> {
    loop {
        match notices.read(|_| ()) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            // `ENOBUFS`: notifications were lost. They carry nothing that the caller needs, because it
            // reads all addresses next.
            Err(ipvs_netlink::Error::AnswersLost) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
