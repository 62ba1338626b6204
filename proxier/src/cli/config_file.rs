//! Notices changes of the configuration file.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

use anyhow::Context as _;
use rustix::fs::inotify;

use crate::sources::message::Message;

/// Starts a thread that stops the daemon when the file is written or renamed. Returns a flag that the thread
/// sets then.
///
/// kube-proxy watches the same events of the same path, and ends with exit code 1, so that the kubelet starts
/// it again with the new configuration. An update of a ConfigMap replaces a symbolic link, which causes
/// neither event. So a mistake in a ConfigMap does not stop all nodes at once.
pub(super) fn watch(path: &Path, listener: SyncSender<Message>) -> anyhow::Result<Arc<AtomicBool>> {
    let watching = || format!("watching the configuration file {}", path.display());
    let events = inotify::init(inotify::CreateFlags::CLOEXEC).with_context(watching)?;
    let wanted = inotify::WatchFlags::MODIFY | inotify::WatchFlags::MOVE_SELF;
    inotify::add_watch(&events, path, wanted).with_context(watching)?;
    let changed = Arc::new(AtomicBool::new(false));
    let flag = changed.clone();
    let path = path.to_owned();
    std::thread::spawn(move || {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 1024];
        let mut reader = inotify::Reader::new(&events, &mut buffer);
        loop {
            match reader.next() {
                Err(rustix::io::Errno::INTR) => {}
                // The file was deleted or its file system unmounted, so no event will follow.
                Ok(event) if event.events().contains(inotify::ReadFlags::IGNORED) => return,
                Ok(event)
                    if !event
                        .events()
                        .intersects(inotify::ReadFlags::MODIFY | inotify::ReadFlags::MOVE_SELF) => {
                }
                found => {
                    match found {
                        Ok(_) => tracing::error!(
                            "the content of the configuration file {} changed; exiting, to be started \
                             again with the new one",
                            path.display()
                        ),
                        Err(error) => tracing::error!(
                            "watching the configuration file {}: {error}; exiting",
                            path.display()
                        ),
                    }
                    flag.store(true, Ordering::Relaxed);
                    // If the queue is full or closed, exit at once: the kernel continues to serve.
                    if listener.try_send(Message::Stop).is_err() {
                        std::process::exit(1);
                    }
                    return;
                }
            }
        }
    });
    Ok(changed)
}
