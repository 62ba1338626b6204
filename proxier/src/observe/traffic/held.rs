//! The pages that clients read, and what they may hold in memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Traffic;

/// The maximum number of pages in memory. A scrape each second makes a new one, so a client has 15 s to read its page,
/// longer than Prometheus waits.
const MAX_PAGES: usize = 16;

/// The page has made room for newer ones, because too many clients read different pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the page made room for newer ones")]
pub(crate) struct Displaced;

/// The traffic of a page, which all its readers share.
#[derive(Debug)]
pub(crate) struct HeldTraffic(Mutex<Option<Arc<Traffic>>>);

impl HeldTraffic {
    /// Returns the traffic for one step of a reader.
    pub(super) fn get(&self) -> Result<Arc<Traffic>, Displaced> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.clone().ok_or(Displaced)
    }

    fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// The pages that somebody may still read, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct ReadPages(VecDeque<Weak<HeldTraffic>>);

impl ReadPages {
    /// Adds a page. If there are too many, the readers of the oldest one get an error.
    pub(crate) fn add(&mut self, traffic: Traffic) -> Arc<HeldTraffic> {
        let page = Arc::new(HeldTraffic(Mutex::new(Some(Arc::new(traffic)))));
        self.0.retain(|page| page.strong_count() > 0);
        self.0.push_back(Arc::downgrade(&page));
        while self.0.len() > MAX_PAGES
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.upgrade().iter().for_each(|oldest| oldest.release());
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_do_not_read_keep_a_few_pages_only() {
        let mut pages = ReadPages::default();
        // Each page has two readers, and neither reads.
        let readers: Vec<_> = (0..2 * MAX_PAGES)
            .map(|_| {
                let page = pages.add(Traffic::default());
                [page.clone(), page]
            })
            .collect();
        let has_page = |reader: &Arc<HeldTraffic>| reader.get().is_ok();
        let held: Vec<bool> = readers
            .iter()
            .map(|both| both.iter().all(has_page))
            .collect();
        assert_eq!(held[..MAX_PAGES], [false; MAX_PAGES]);
        assert_eq!(held[MAX_PAGES..], [true; MAX_PAGES]);
        let weak: Vec<_> = (readers.iter().flatten())
            .filter_map(|reader| reader.get().ok())
            .map(|traffic| Arc::downgrade(&traffic))
            .collect();
        assert!(weak.iter().all(|traffic| traffic.strong_count() == 1));
        // Pages whose readers are gone take no place.
        drop(readers);
        let page = pages.add(Traffic::default());
        assert_eq!((pages.0.len(), has_page(&page)), (1, true));
    }
}
