//! A userspace dataplane in this process, and the plan that it serves.

use proxier::testing::dataplane::userspace::Userspace;
use proxier::testing::dataplane::{Dataplane as _, Extent, Planned};
use proxier::testing::manifests::{self, Options};
use proxier::testing::plan::{Machine, PlanConfig, Planner, ServiceAddresses};
use proxier::testing::store::{Event, Snapshot, Touched, Update};

use super::*;

/// The configuration of a node without node ports and drains.
pub(crate) fn config() -> PlanConfig {
    PlanConfig {
        node_name: "node-a".into(),
        service_addresses: ServiceAddresses::Loopback,
        drain: Duration::ZERO,
        ..PlanConfig::default()
    }
}

/// Returns the objects of a manifest as one list of each kind.
pub(crate) fn events(manifest: &str) -> Vec<Event> {
    let options = Options {
        service_cidr: Vec::new(),
        node_name: "node-a".into(),
        permits_loopback: true,
    };
    manifests::parse(manifest, "test.yaml", &options).events
}

/// Returns the event of the one EndpointSlice in a manifest.
pub(crate) fn slice_event(manifest: &str) -> Event {
    let slice = events(manifest).into_iter().find_map(|event| match event {
        Event::EndpointSlices(Update::Reset(all)) => all.first().cloned(),
        _ => None,
    });
    Event::EndpointSlices(Update::Apply(slice.unwrap()))
}

/// Returns the manifests of a Service without endpoints.
pub(crate) fn service(name: &str, address: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\n\
         spec:\n  clusterIP: {address}\n  clusterIPs: [{address}]\n  \
         ports: [{{name: p, protocol: TCP, port: {port}}}]\n---\n"
    )
}

/// A dataplane with its plan.
pub(crate) struct Node {
    pub(crate) dataplane: Userspace,
    planner: Planner,
    snapshot: Snapshot,
    machine: Machine,
    touched: Touched,
    now: Duration,
}

impl Node {
    pub(crate) fn new(dataplane: Userspace) -> Self {
        Self {
            dataplane,
            planner: Planner::new(config()),
            snapshot: Snapshot::default(),
            machine: Machine::default(),
            touched: Touched::All,
            now: Duration::ZERO,
        }
    }

    /// Plans, and returns the work of the dataplane.
    pub(crate) fn plan(&mut self, events: impl IntoIterator<Item = Event>) -> impl FnOnce() {
        for event in events {
            self.snapshot.apply(event, &mut self.touched);
        }
        let touched = std::mem::replace(&mut self.touched, Touched::none());
        let capabilities = self.dataplane.capabilities();
        let changed = (self.planner).update(&self.snapshot, &self.machine, capabilities, touched);
        self.now += Duration::from_millis(1);
        let now = self.now;
        let planned = Planned {
            snapshot: &self.snapshot,
            machine: &self.machine,
            planner: &self.planner,
        };
        let dataplane = &mut self.dataplane;
        move || {
            let extent = Extent::Pending;
            dataplane.follow(planned, &changed, now);
            dataplane.observe(planned, extent, now).unwrap();
            dataplane.retire(planned, extent, now).unwrap();
            let changes = dataplane.changes(planned, extent, now).unwrap();
            let applied = dataplane.apply(planned, changes, extent, now);
            assert_eq!(applied.failures().count(), 0);
        }
    }
}
