//! A flag that ends the loops of other threads.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag when it is dropped, also by a panic.
///
/// Threads of a [`scope`](std::thread::scope) that run until the flag is set would otherwise keep a test that
/// failed from ending.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
