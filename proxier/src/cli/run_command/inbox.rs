//! The messages for the daemon: requests to stop, and changes of the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::super::stop_requests::StopRequests;
use super::super::{Setup, config_file};
use crate::cli::config::Resolved;
use crate::dataplane::ipvs::linux::monitor;
use crate::observe::serve::OnBindFailure;
use crate::plan::ServiceAddresses;
use crate::sources::message::{Message, QUEUE_LENGTH};

/// The messages for the daemon.
pub(super) struct Inbox {
    pub(super) sender: SyncSender<Message>,
    pub(super) messages: Receiver<Message>,
    /// Becomes `true` when the source of objects is open. Until then, a signal ends the process at once: reading a file
    /// may hang.
    pub(super) has_source: Arc<AtomicBool>,
    /// Becomes `true` if the process stops because its configuration file changed; `None` without a file.
    pub(super) has_new_config: Option<Arc<AtomicBool>>,
    /// Becomes `true` if the process stops because a server could not listen (`bindAddressHardFail`).
    pub(super) has_bind_failure: Arc<AtomicBool>,
}

impl Inbox {
    /// Returns an inbox that receives a stop request on a signal and on a change of the configuration file.
    pub(super) fn open(resolved: &Resolved) -> anyhow::Result<Self> {
        let (sender, messages) = sync_channel(QUEUE_LENGTH);
        let has_source = Arc::<AtomicBool>::default();
        stop_on_signals(sender.clone(), has_source.clone())?;
        let file = resolved.file();
        let has_new_config = file.map(|path| config_file::watch(path, sender.clone()));
        Ok(Self {
            sender,
            messages,
            has_source,
            has_new_config: has_new_config.transpose()?,
            has_bind_failure: Arc::default(),
        })
    }

    /// Returns what a server does that cannot listen. A process that ends so stops as on a signal, so that
    /// its Event is written.
    pub(super) fn on_bind_failure(&self, setup: &Setup) -> OnBindFailure {
        if !setup.settings.servers.hard_fail {
            return OnBindFailure::Retry;
        }
        let (sender, has_failed) = (self.sender.clone(), self.has_bind_failure.clone());
        OnBindFailure::End(Box::new(move || {
            has_failed.store(true, Ordering::Relaxed);
            // Fails if the daemon has stopped already.
            let _ = sender.send(Message::Stop);
        }))
    }
}

/// Starts a thread that sends a stop request on SIGTERM and SIGINT.
fn stop_on_signals(
    listener: SyncSender<Message>,
    has_source: Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("installing signal handlers")?;
    std::thread::spawn(move || {
        let mut requests = StopRequests::new(listener);
        for _ in signals.forever() {
            // If nobody reads the queue yet, exit at once: the kernel continues to serve.
            let is_read = has_source.load(Ordering::Relaxed);
            if !is_read || !requests.send() {
                std::process::exit(0);
            }
        }
    });
    Ok(())
}

/// Starts a thread that sends a message when the machine's own addresses change.
///
/// `port` is the netlink port of our own changes.
pub(super) fn send_changes_of_machine(
    form: ServiceAddresses,
    yield_devices: &[String],
    port: u32,
    listener: &SyncSender<Message>,
) -> anyhow::Result<()> {
    let addresses = listener.clone();
    monitor::addresses(form, yield_devices, port, move || {
        addresses.send(Message::MachineChanged).is_ok()
    })?;
    Ok(())
}

/// Starts threads that send a message when another program changes addresses or local routes.
///
/// `port` is the netlink port of our own changes.
pub(super) fn send_changes_of_addresses(
    form: ServiceAddresses,
    yield_devices: &[String],
    port: u32,
    listener: &SyncSender<Message>,
) -> anyhow::Result<()> {
    send_changes_of_machine(form, yield_devices, port, listener)?;
    let routes = listener.clone();
    monitor::local_routes(port, move || routes.send(Message::AddressesChanged).is_ok())?;
    Ok(())
}
