//! The page `/metrics`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use ipvs_netlink as ipvs;
use metrics::{counter, gauge};
use tokio::sync::Mutex;

use super::body::AnswerBody;
use crate::dataplane::Failure;
use crate::dataplane::ipvs::linux::CounterReader;
use crate::dataplane::ipvs::{Owner, Owners};
use crate::dataplane::nftables;
use crate::observe::instruments::Exporter;
use crate::observe::traffic::{HeldTraffic, ReadPages, Traffic, TrafficText};
use crate::sources::watch;

/// The age up to which a page is served again.
///
/// So this process reads the kernel at most once per second, however many clients scrape and however often.
/// Besides a few pages that clients still read, it keeps the values of one page only.
const MAX_AGE: Duration = Duration::from_secs(1);

/// What counts the traffic of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrafficCounter {
    /// IPVS: connections, packets and bytes.
    Ipvs,
    /// The table of the dataplane nftables: connections.
    Nftables,
    /// Nothing.
    None,
}

/// Makes the page.
#[derive(Debug)]
pub(crate) struct Scraper {
    exporter: Exporter,
    owners: Arc<Owners>,
    counter: TrafficCounter,
    /// The maximum number of destinations up to which each has series of its own; 0 for none.
    endpoint_limit: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    page: Option<(Instant, Page)>,
    read: ReadPages,
    reader: Option<CounterReader>,
    /// The last reason why series of Services are missing.
    missing: Option<String>,
    failures: BTreeMap<&'static str, u64>,
}

/// The values of one page.
#[derive(Clone, Debug)]
struct Page {
    /// The text of the recorded values.
    recorded: Bytes,
    /// The traffic of Services; `None` if its series are missing.
    traffic: Option<Arc<HeldTraffic>>,
}

impl From<&Page> for AnswerBody {
    fn from(page: &Page) -> Self {
        let traffic = page.traffic.clone().map(TrafficText::new);
        Self::with_traffic(page.recorded.clone(), traffic)
    }
}

impl Scraper {
    /// Returns a scraper without a page.
    pub(crate) fn new(
        exporter: Exporter,
        owners: Arc<Owners>,
        counter: TrafficCounter,
        endpoint_limit: usize,
    ) -> Self {
        Self {
            exporter,
            owners,
            counter,
            endpoint_limit,
            state: Arc::default(),
        }
    }

    /// Returns the page; `None` if that panics, which ends the process.
    pub(super) async fn page(self: Arc<Self>, status: Option<watch::Status>) -> Option<AnswerBody> {
        // Held while the kernel is read, so that clients that scrape at the same time share one page. They wait without a
        // thread.
        let mut state = self.state.clone().lock_owned().await;
        if let Some((made, page)) = &state.page
            && made.elapsed() < MAX_AGE
        {
            return Some(page.into());
        }
        // Reading the kernel blocks, and must not delay the answers to probes.
        let made = tokio::task::spawn_blocking(move || self.make(&mut state, status.as_ref()));
        made.await.ok()
    }

    fn make(&self, state: &mut State, status: Option<&watch::Status>) -> AnswerBody {
        if let Some(status) = status {
            record_watch(status, &mut state.failures);
        }
        let recorded = self.exporter.render().into();
        let lacking = self.owners.lacking().filter(|_| !self.owners.is_off());
        let (traffic, why) = match self.traffic(&mut state.reader) {
            Ok(traffic) => (traffic, lacking.map(|why| why.to_string())),
            Err(why) => (None, Some(format!("no series of Services: {why}"))),
        };
        if why != state.missing {
            if let Some(why) = &why {
                tracing::warn!("metrics: {why}");
            }
            state.missing = why;
        }
        let traffic = traffic.map(|traffic| state.read.add(traffic));
        let page = Page { recorded, traffic };
        let body = AnswerBody::from(&page);
        state.page = Some((Instant::now(), page));
        body
    }

    /// See [`Exporter::upkeep`].
    pub(super) fn upkeep(&self) {
        self.exporter.upkeep();
    }

    /// Reads the counters of Services, or returns why they are missing; `None` if they are switched off.
    fn traffic(&self, reader: &mut Option<CounterReader>) -> Result<Option<Traffic>, Failure> {
        if self.owners.is_off() || self.counter == TrafficCounter::None {
            return Ok(None);
        }
        let owners = self.owners.read();
        let traffic = match self.counter {
            TrafficCounter::Nftables => of_nftables(&owners),
            _ => self.of_ipvs(&owners, reader),
        };
        traffic.map(Some)
    }

    fn of_ipvs(
        &self,
        owners: &BTreeMap<ipvs::ServiceKey, Owner>,
        reader: &mut Option<CounterReader>,
    ) -> Result<Traffic, Failure> {
        let endpoints = owners.values().map(|owner| owner.destinations).sum();
        // The limit 0 switches them off, also while no Service has an endpoint.
        let has_endpoints = (1..=self.endpoint_limit).contains(&endpoints);
        let mut open = match reader.take() {
            Some(open) => open,
            None => CounterReader::open()?,
        };
        let wanted = |key: &ipvs::ServiceKey| has_endpoints && owners.contains_key(key);
        let mut traffic = Traffic::default();
        // After a failure, the next scrape opens another socket.
        open.read(wanted, |server, destinations| {
            if let Some(owner) = owners.get(&server.service.key) {
                traffic.add(owner, server, destinations);
            }
        })?;
        *reader = Some(open);
        Ok(traffic)
    }
}

fn of_nftables(owners: &BTreeMap<ipvs::ServiceKey, Owner>) -> Result<Traffic, Failure> {
    let counted = nftables::counted()?.into_iter();
    Ok(Traffic::of_connections(counted.filter_map(
        |(frontend, connections)| {
            let key = frontend.into();
            // A frontend that entered or left the plan a moment ago has no name.
            Some((key, owners.get(&key)?, connections))
        },
    )))
}

/// Records the state of the watch.
fn record_watch(status: &watch::Status, failures: &mut BTreeMap<&'static str, u64>) {
    for (kind, followed) in status.kinds() {
        if let Some(heard) = followed.heard {
            gauge!("ipvs_proxier_api_age_seconds", "objects" => kind)
                .set(heard.elapsed().as_secs_f64());
        }
        let before = failures.entry(kind).or_default();
        // A kind that is no longer followed begins at 0 again.
        let new = followed.failures.checked_sub(*before);
        counter!("ipvs_proxier_api_failures_total", "objects" => kind)
            .increment(new.unwrap_or(followed.failures));
        *before = followed.failures;
    }
}
