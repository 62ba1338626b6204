//! The series that events and rounds write.
//!
//! A handle costs one atomic operation per value. To find the series by name and labels, the recorder
//! would allocate the labels, hash them and take a lock.

use std::collections::BTreeMap;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::cluster::model::Family;
use crate::observe::instruments::{FAMILIES, family_name};

/// The series of each family.
#[derive(Debug)]
pub(super) struct FamilySeries<T>([T; 2]);

impl<T> FamilySeries<T> {
    fn new(series: impl Fn(&'static str) -> T) -> Self {
        Self(FAMILIES.map(family_name).map(series))
    }

    pub(super) fn of(&self, family: Family) -> &T {
        let [v4, v6] = &self.0;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// Returns the handles of both families, because a round programs both.
    pub(super) fn both(&self) -> &[T; 2] {
        &self.0
    }
}

/// The counters of a metric with two labels, by the values of these labels.
#[derive(Debug)]
pub(super) struct CounterTable {
    name: &'static str,
    labels: [&'static str; 2],
    counters: BTreeMap<[&'static str; 2], Counter>,
}

impl CounterTable {
    fn new(name: &'static str, labels: [&'static str; 2]) -> Self {
        Self {
            name,
            labels,
            counters: BTreeMap::new(),
        }
    }

    /// Returns the counter with these values of the labels.
    pub(super) fn with(&mut self, values: [&'static str; 2]) -> &Counter {
        let ([one, other], [first, second]) = (self.labels, values);
        let counter = || counter!(self.name, one => first, other => second);
        self.counters.entry(values).or_insert_with(counter)
    }
}

/// The number of changes: of all, and of those that wait for a round.
#[derive(Debug)]
pub(super) struct ChangeSeries {
    pub(super) total: Counter,
    pub(super) pending: Gauge,
}

/// The series of events.
#[derive(Debug)]
pub(super) struct EventSeries {
    pub(super) services: ChangeSeries,
    pub(super) slices: ChangeSeries,
    pub(super) last_queued: FamilySeries<Gauge>,
}

impl Default for EventSeries {
    fn default() -> Self {
        Self {
            services: ChangeSeries {
                total: counter!("kubeproxy_sync_proxy_rules_service_changes_total"),
                pending: gauge!("kubeproxy_sync_proxy_rules_service_changes_pending"),
            },
            slices: ChangeSeries {
                total: counter!("kubeproxy_sync_proxy_rules_endpoint_changes_total"),
                pending: gauge!("kubeproxy_sync_proxy_rules_endpoint_changes_pending"),
            },
            last_queued: FamilySeries::new(
                |family| gauge!("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "ip_family" => family),
            ),
        }
    }
}

/// The series of rounds.
#[derive(Debug)]
pub(super) struct RoundSeries {
    pub(super) rounds: CounterTable,
    pub(super) ops: CounterTable,
    pub(super) duration: FamilySeries<Histogram>,
    pub(super) last: FamilySeries<Gauge>,
    pub(super) latency: FamilySeries<Histogram>,
    pub(super) virtual_servers: Gauge,
    pub(super) service_addresses: Gauge,
    pub(super) silent: Gauge,
    pub(super) draining: Gauge,
}

impl Default for RoundSeries {
    fn default() -> Self {
        Self {
            rounds: CounterTable::new("ipvs_proxier_rounds_total", ["extent", "result"]),
            ops: CounterTable::new("ipvs_proxier_ops_total", ["op", "result"]),
            duration: FamilySeries::new(
                |family| histogram!("kubeproxy_sync_proxy_rules_duration_seconds", "ip_family" => family),
            ),
            last: FamilySeries::new(
                |family| gauge!("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "ip_family" => family),
            ),
            latency: FamilySeries::new(
                |family| histogram!("kubeproxy_network_programming_duration_seconds", "ip_family" => family),
            ),
            virtual_servers: gauge!("ipvs_proxier_virtual_servers"),
            service_addresses: gauge!("ipvs_proxier_service_addresses"),
            silent: gauge!("ipvs_proxier_silent_endpoints"),
            draining: gauge!("ipvs_proxier_draining_destinations"),
        }
    }
}
