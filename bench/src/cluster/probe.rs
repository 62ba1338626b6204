//! Finds out when a client can connect for the first time.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::tap::now;

/// Tries to connect to an address until it succeeds.
pub(super) struct Probe {
    connected: Arc<OnceLock<Duration>>,
    stop: Arc<AtomicBool>,
}

impl Probe {
    pub(super) fn start(address: SocketAddr) -> Self {
        let connected = Arc::new(OnceLock::new());
        let stop = Arc::new(AtomicBool::new(false));
        let probe = Self {
            connected: connected.clone(),
            stop: stop.clone(),
        };
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                // Shorter than the first retransmission of a SYN after 1 s, which would hide when
                // the Service began to work.
                if TcpStream::connect_timeout(&address, Duration::from_millis(100)).is_ok() {
                    // This thread alone writes it, once.
                    let _ = connected.set(now());
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        probe
    }

    /// Waits until a client could connect, for `limit` at most.
    pub(super) fn wait(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.connected().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns when a client could connect for the first time.
    pub(super) fn connected(&self) -> Option<Duration> {
        self.connected.get().copied()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
