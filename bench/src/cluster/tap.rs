//! Reads all netlink messages of a network namespace, with the kernel's timestamps.
//!
//! The kernel copies each message to the device `nlmon0`. This shows the time at which a change
//! arrives in the kernel, in the same way for every proxy. The messages are read every few
//! milliseconds: a reader that wakes up for each would compete with the proxy for the processor.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use rustix::process::setpriority_process;
use rustix::thread::gettid;
use serde::{Deserialize, Serialize};

use super::datagram::messages;
use super::limit::{Recording, Request};
use crate::process::ip;
use socket::PacketSocket;

mod socket;

/// The pause between two readings.
const PAUSE: Duration = Duration::from_millis(10);

/// The nice value of a thread that runs when no other wants to.
const LOWEST_PRIORITY: i32 = 19;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;

/// The number of messages that were sent to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Requests for a change or for one object.
    pub(crate) requests: u64,
    /// Requests for a whole table.
    pub(crate) dumps: u64,
    /// The bytes of both.
    pub(crate) bytes: u64,
    /// Messages in either direction that were not read, because too many waited.
    pub(crate) lost: u64,
}

impl Counts {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            dumps: self.dumps - before.dumps,
            bytes: self.bytes - before.bytes,
            lost: self.lost - before.lost,
        }
    }
}

/// A running reader. Dropping it stops it.
pub(crate) struct Tap {
    tally: Arc<Mutex<Tally>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The messages read so far. Times count from 1970.
#[derive(Debug, Default)]
struct Tally {
    counts: Counts,
    /// The time of the first request; `None` before it.
    first_request: Option<Duration>,
    /// The time of the last request that is not for a whole table.
    last_request: Duration,
    /// Words that are expected, and since when.
    expected: HashMap<u32, Duration>,
    /// The time of the last message with an expected word.
    last_found: Duration,
    /// The requests since [`Tap::record`]; `None` if they are not kept.
    recording: Option<Recording>,
    /// The time from the expectation of each word to its message.
    latencies: Vec<Duration>,
}

impl Tap {
    /// Starts to read the messages of the calling thread's namespace.
    pub(crate) fn open() -> anyhow::Result<Self> {
        ip("link add nlmon0 type nlmon")?;
        ip("link set nlmon0 up")?;
        let mut socket = PacketSocket::open()?;
        let tally = Arc::new(Mutex::new(Tally::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (writes, stops) = (tally.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("tap".into())
            .spawn(move || {
                // Otherwise the reader took a quarter of the time of a proxy that sends many messages. The
                // kernel keeps them until the proxy waits. If this fails, the reader costs more.
                let _ = setpriority_process(Some(gettid()), LOWEST_PRIORITY);
                while !stops.load(Ordering::Relaxed) {
                    while let Some(received) = socket.receive() {
                        let mut tally = lock(&writes);
                        tally.counts.lost = tally.counts.lost.max(received.lost);
                        tally.keep(received.protocol, received.bytes, received.time);
                        tally.read(received.bytes, received.time);
                    }
                    std::thread::sleep(PAUSE);
                }
            })?;
        Ok(Self {
            tally,
            stop,
            thread: Some(thread),
        })
    }

    /// Expects messages with these words, from now on.
    pub(crate) fn expect(&self, words: impl IntoIterator<Item = u32>) {
        let now = now();
        let words = words.into_iter().map(|word| (word, now));
        lock(&self.tally).expected.extend(words);
    }

    /// Stops expecting these words.
    pub(crate) fn forget(&self, words: &[u32]) {
        let mut tally = lock(&self.tally);
        for word in words {
            tally.expected.remove(word);
        }
    }

    /// Returns the number of words that are still expected.
    pub(crate) fn missing(&self) -> usize {
        lock(&self.tally).expected.len()
    }

    /// Forgets the expected words without a message, and returns their number.
    pub(crate) fn give_up(&self) -> usize {
        std::mem::take(&mut lock(&self.tally).expected).len()
    }

    /// Returns the latencies of all words since the last call.
    pub(crate) fn latencies(&self) -> Vec<Duration> {
        std::mem::take(&mut lock(&self.tally).latencies)
    }

    /// Keeps all requests for changes from now on.
    pub(crate) fn record(&self) {
        lock(&self.tally).recording = Some(Recording::default());
    }

    /// Ends [`Tap::record`] and returns the requests.
    pub(crate) fn recorded(&self) -> Recording {
        lock(&self.tally).recording.take().unwrap_or_default()
    }

    pub(crate) fn counts(&self) -> Counts {
        lock(&self.tally).counts
    }

    /// Returns the time of the first request.
    pub(crate) fn first_request(&self) -> Option<Duration> {
        lock(&self.tally).first_request
    }

    /// Returns the time of the last message with an expected word.
    pub(crate) fn last_found(&self) -> Duration {
        lock(&self.tally).last_found
    }

    /// Returns the time of the last request that is not for a whole table.
    pub(crate) fn last_request(&self) -> Duration {
        lock(&self.tally).last_request
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The panic hook has printed the message of a panic already.
            let _ = thread.join();
        }
    }
}

impl Tally {
    /// Reads the messages of one `send`.
    fn read(&mut self, bytes: &[u8], time: Duration) {
        for place in messages(bytes) {
            let message = &bytes[place];
            let flags = u16::from_ne_bytes([message[6], message[7]]);
            if flags & NLM_F_REQUEST == 0 {
                continue;
            }
            self.first_request.get_or_insert(time);
            self.counts.bytes += message.len() as u64;
            if flags & NLM_F_DUMP == NLM_F_DUMP {
                self.counts.dumps += 1;
            } else {
                self.counts.requests += 1;
                self.last_request = self.last_request.max(time);
                self.find(message, time);
            }
        }
    }

    /// Adds the bytes of one `send` to the recording, if one runs.
    fn keep(&mut self, protocol: u16, bytes: &[u8], time: Duration) {
        if let Some(recording) = &mut self.recording
            && let Some(request) = Request::of(protocol, bytes, time)
        {
            recording.push(request);
        }
    }

    /// Looks for expected words in a message.
    fn find(&mut self, message: &[u8], time: Duration) {
        if self.expected.is_empty() {
            return;
        }
        for window in message.windows(4) {
            let word = u32::from_be_bytes([window[0], window[1], window[2], window[3]]);
            if !may_be_pod(word) {
                continue;
            }
            if let Some(since) = self.expected.remove(&word) {
                self.last_found = self.last_found.max(time);
                self.latencies.push(time.saturating_sub(since));
            }
        }
    }
}

/// Returns whether a word may be the end of a Pod's address. This runs for every word of every
/// message.
fn may_be_pod(word: u32) -> bool {
    // The upper nine bits of 10.128.0.0/9, and of the IPv6 Pods' b80:0/105 (`Family::pod_word`).
    matches!(word >> 23, 0x15 | 0x17)
}

/// Returns the time since 1970, the clock of the kernel's timestamps.
pub(crate) fn now() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    // The counts are consistent after every statement.
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::datagram::HEADER;
    use super::*;

    fn message(flags: u16, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER + body.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(flags.to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn an_expected_word_is_found_once() {
        let mut tally = Tally::default();
        let at = Duration::from_millis;
        tally.expected.insert(0x0a80_0007, at(5));
        tally.expected.insert(0x0b80_0008, at(6));
        let mut bytes = message(NLM_F_REQUEST | NLM_F_DUMP, &[0x0a, 0x80, 0, 7]);
        bytes.extend(message(NLM_F_REQUEST, &[1, 0x0a, 0x80, 0, 7, 9, 9]));
        bytes.extend(message(NLM_F_REQUEST, &[0x0a, 0x80, 0, 7]));
        tally.read(&bytes, at(15));
        assert_eq!(tally.latencies, [at(10)]);
        assert_eq!((tally.counts.requests, tally.counts.dumps), (2, 1));
        assert_eq!(tally.expected.len(), 1);
    }
}
