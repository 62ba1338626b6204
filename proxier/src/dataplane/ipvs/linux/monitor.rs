//! Monitors of changes by other programs: to addresses, local routes and packet rules.

use std::os::fd::AsFd;
use std::time::Duration;

use netlink::listener::Listener;
use netlink::transport::protocols;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::Level;

use super::addresses::Addresses;
use super::notice_filter::{self, Subject};
use crate::dataplane::Failure;
use crate::plan::ServiceAddresses;
use crate::util::clock;
use crate::util::conditions::{Coverage, LastingConditions};
use crate::util::timer::Timer;
use nftables::{RulesWatch, Tampering};

// Multicast groups of include/uapi/linux/rtnetlink.h.
const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV4_ROUTE: u32 = 7;
const RTNLGRP_IPV6_IFADDR: u32 = 9;
const RTNLGRP_IPV6_ROUTE: u32 = 11;

/// How long to wait for further notifications: an interface usually gets several addresses at once.
const SETTLE_TIME: Duration = Duration::from_millis(200);

/// The same for routes: a flush is one notification per route.
const FLUSH_TIME: Duration = Duration::from_millis(50);

/// The pause before a failed monitor is opened again: doubled from the first to the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Waits for notifications and returns the changes that they report.
type Look<T> = Box<dyn FnMut() -> Result<Vec<T>, Failure> + Send>;

/// Starts a thread that calls `changed` when the machine's own addresses changed.
///
/// The thread ends when `changed` returns `false`. A notification alone proves no change: the kernel
/// also sends them for Pod interfaces. The thread therefore compares the addresses before and after.
/// `port` is the netlink port of our own changes, which are ignored.
///
/// # Errors
/// If a socket cannot be opened or the addresses cannot be read at the start. After a later failure,
/// the thread opens its sockets again and calls `changed`, because it may have missed a change.
pub(crate) fn addresses(
    form: ServiceAddresses,
    yield_devices: &[String],
    port: u32,
    mut changed: impl FnMut() -> bool + Send + 'static,
) -> Result<(), Failure> {
    let groups = [RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR];
    let yield_devices = yield_devices.to_vec();
    let open = move || {
        let mut notices = Listener::open(protocols::NETLINK_ROUTE, &groups)?;
        notice_filter::attach(&notices, Subject::InterfaceAddresses, port)?;
        let mut addresses = Addresses::open(form, &yield_devices)?;
        // Read after the socket is open, so that no change falls between them.
        let mut last = addresses.read_machine()?;
        let look: Look<()> = Box::new(move || {
            wait_for(&notices)?;
            std::thread::sleep(SETTLE_TIME);
            discard(&mut notices)?;
            // Read after the notifications are discarded: a later change sends another one.
            let now = addresses.read_machine()?;
            let has_changed = now != last;
            last = now;
            Ok(if has_changed { vec![()] } else { Vec::new() })
        });
        Ok(look)
    };
    Monitor::open("addresses", (), open)?.start(move |()| changed());
    Ok(())
}

/// Starts a thread that calls `changed` when another program changed local routes or the carrier.
///
/// The thread ends when `changed` returns `false`. `port` is the netlink port of our own changes,
/// which are ignored.
///
/// The link group is needed although routes have groups of their own: the kernel deletes the IPv4
/// routes of a device with it, and reports only the device (`fib_flush`).
///
/// # Errors
/// If the socket cannot be opened. After a later failure, the thread opens it again and calls
/// `changed`.
pub(crate) fn local_routes(
    port: u32,
    mut changed: impl FnMut() -> bool + Send + 'static,
) -> Result<(), Failure> {
    let groups = [
        RTNLGRP_LINK,
        RTNLGRP_IPV4_IFADDR,
        RTNLGRP_IPV6_IFADDR,
        RTNLGRP_IPV4_ROUTE,
        RTNLGRP_IPV6_ROUTE,
    ];
    let open = move || {
        let mut notices = Listener::open(protocols::NETLINK_ROUTE, &groups)?;
        notice_filter::attach(&notices, Subject::ServiceAddresses, port)?;
        let look: Look<()> = Box::new(move || {
            wait_for(&notices)?;
            std::thread::sleep(FLUSH_TIME);
            discard(&mut notices)?;
            Ok(vec![()])
        });
        Ok(look)
    };
    Monitor::open("local routes", (), open)?.start(move |()| changed());
    Ok(())
}

/// Starts a thread that calls `changed` when another program changed our table, or something else of those
/// for which `is_relevant` returns `true` ([`RulesWatch::open`]).
///
/// The thread ends when `changed` returns `false`. `table` is our table, `port` the netlink port of our own changes,
/// which are ignored. After a failure, the thread opens its socket again and calls `changed` with
/// [`Tampering::Unknown`].
pub(crate) fn rules(
    table: &'static str,
    port: u32,
    is_relevant: impl Fn(u16, &[u8]) -> bool + Clone + Send + 'static,
    changed: impl FnMut(Tampering) -> bool + Send + 'static,
) {
    let open = move || {
        let mut watch = RulesWatch::open(table, port, is_relevant.clone())?;
        let look: Look<Tampering> = Box::new(move || {
            wait_for(&watch)?;
            let mut tamperings = watch.read()?;
            // One repair covers all changes of a kind: pass on the first of each kind only.
            let (mut has_table, mut has_foreign) = (false, false);
            tamperings.retain(|tampering| {
                let is_first = (tampering.concerns_our_table() && !has_table)
                    || (tampering.concerns_foreign() && !has_foreign);
                has_table |= tampering.concerns_our_table();
                has_foreign |= tampering.concerns_foreign();
                is_first
            });
            Ok(tamperings)
        });
        Ok(look)
    };
    Monitor::open_or_retry("packet rules", Tampering::Unknown, open).start(changed);
}

/// Reports changes of one kind until the receiver is gone; a failed socket is opened again.
struct Monitor<T, O> {
    /// The things that change, in the plural.
    what: &'static str,
    /// The report after a time without notifications.
    missed: T,
    open: O,
    look: Look<T>,
    /// The pause before the next try to open.
    retry: Timer,
    failures: LastingConditions,
}

impl<T, O> Monitor<T, O>
where
    T: Clone + Send + 'static,
    O: FnMut() -> Result<Look<T>, Failure> + Send + 'static,
{
    fn open(what: &'static str, missed: T, mut open: O) -> Result<Self, Failure> {
        let look = open()?;
        Ok(Self::with(what, missed, open, look))
    }

    /// Returns a monitor that opens its sockets again if that fails now.
    fn open_or_retry(what: &'static str, missed: T, mut open: O) -> Self {
        // A failed start is treated as a failed look: `run` logs it, and opens again.
        let look = open().unwrap_or_else(|failure| Box::new(move || Err(failure.clone())));
        Self::with(what, missed, open, look)
    }

    fn with(what: &'static str, missed: T, open: O, look: Look<T>) -> Self {
        Self {
            what,
            missed,
            open,
            look,
            retry: Timer::doubling(PAUSES.0, PAUSES.1),
            failures: LastingConditions::default(),
        }
    }

    fn start(self, changed: impl FnMut(T) -> bool + Send + 'static) {
        std::thread::spawn(move || self.run(changed));
    }

    /// Calls `changed` with each change until it returns `false`.
    fn run(mut self, mut changed: impl FnMut(T) -> bool) {
        let mut opened = clock::since_boot();
        loop {
            match (self.look)() {
                Ok(changes) => {
                    if !changes.into_iter().all(&mut changed) {
                        return;
                    }
                }
                Err(failure) => {
                    // Sockets that fail soon after they were opened must not keep a processor busy.
                    if clock::since_boot() > opened + PAUSES.1 {
                        self.retry.reset();
                    }
                    self.reopen(failure);
                    opened = clock::since_boot();
                    if !changed(self.missed.clone()) {
                        return;
                    }
                }
            }
        }
    }

    /// Opens the sockets again after `failure`, however often that takes.
    fn reopen(&mut self, mut failure: Failure) {
        loop {
            let now = clock::since_boot();
            self.retry.back_off(now);
            let pause = self.retry.due().unwrap_or(now).saturating_sub(now);
            let text = format_args!(
                "{failure}; until notifications work again, changes of {} are found at resyncs only",
                self.what
            );
            let kind = "failures to receive notifications of the kernel";
            (self.failures).add(Coverage::All, Level::ERROR, kind, text, now);
            std::thread::sleep(pause);
            match (self.open)() {
                Ok(look) => {
                    self.look = look;
                    self.failures.end(clock::since_boot());
                    return;
                }
                Err(next) => failure = next,
            }
        }
    }
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
            Err(netlink::Error::AnswersLost) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn failed() -> Failure {
        Failure::kernel(Errno::NOBUFS, "reading")
    }

    #[test]
    fn a_monitor_continues_after_failures_and_reports_that_it_missed_changes() {
        let source = |script: &[Result<&'static str, ()>]| {
            let mut script: VecDeque<_> = script.iter().copied().collect();
            let look: Look<&str> = Box::new(move || {
                let next = script.pop_front().unwrap_or(Err(()));
                next.map(|change| vec![change]).map_err(|()| failed())
            });
            Ok(look)
        };
        let mut opens = VecDeque::from([
            source(&[Ok("first"), Err(())]),
            Err(failed()),
            Err(failed()),
            source(&[Err(())]),
            source(&[Ok("second"), Ok("last")]),
        ]);
        let open = move || opens.pop_front().unwrap_or_else(|| Err(failed()));
        let mut monitor = Monitor::open("things", "missed", open).unwrap();
        monitor.retry = Timer::doubling(Duration::from_millis(1), Duration::from_millis(8));
        let mut seen = Vec::new();
        monitor.run(|change| {
            seen.push(change);
            change != "last"
        });
        assert_eq!(seen, ["first", "missed", "missed", "second", "last"]);
    }
}
