//! A node: a proxier, the cluster that it follows, its kernel, and its clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use proxier::testing::dataplane::Applied;
use proxier::testing::dataplane::Dataplane as _;
use proxier::testing::dataplane::Failure;
use proxier::testing::dataplane::ipvs::{Changes, Ipvs, MarkChanges, Wanted};
use proxier::testing::destinations::planned;
use proxier::testing::filter::{Filter, FilterConfig, LocalMode, MarkBit};
use proxier::testing::frontend::Frontend;
use proxier::testing::ledger::LedgerFile;
use proxier::testing::model::{Cidr, Node as NodeObject, ObjectName, Service};
use proxier::testing::plan::{PlanConfig, Planner, desired};
use proxier::testing::store::{Event, Touched};
use proxier::testing::sync::Proxier;
use tempfile::TempDir;

use crate::kernel::Kernel;
use crate::world::{Change, World};

/// The time that a removed destination keeps its connections.
const DRAIN: Duration = Duration::from_secs(120);

pub(crate) struct Node {
    pub(crate) world: World,
    pub(crate) kernel: Kernel,
    proxier: Proxier<Ipvs<Kernel>>,
    now: Duration,
    drain: Duration,
    directory: TempDir,
}

fn config(drain: Duration) -> PlanConfig {
    PlanConfig {
        node_name: "here".into(),
        drain,
        ..PlanConfig::default()
    }
}

/// Returns a configuration whose tables have all optional parts.
fn packets() -> FilterConfig {
    FilterConfig {
        // Both families, so that no Problem depends on our Node.
        local_mode: LocalMode::ClusterCidr(
            ["10.244.0.0/16", "fd00:244::/32"]
                .map(|text| text.parse().unwrap())
                .into(),
        ),
        input_accept_bit: Some(MarkBit::INPUT_ACCEPT),
        hides_arp: true,
        ..FilterConfig::default()
    }
}

impl Node {
    pub(crate) fn start() -> Self {
        Self::with_drain(DRAIN)
    }

    /// Returns a node on which removed destinations keep their connections for `drain`.
    pub(crate) fn with_drain(drain: Duration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kernel = Kernel::new(&directory.path().join("ledger"));
        let proxier = proxier(&kernel, &directory, drain);
        let mut node = Self {
            world: World::default(),
            kernel,
            proxier,
            now: Duration::from_secs(1_000),
            drain,
            directory,
        };
        node.relist();
        node
    }

    /// Replaces the process by a new one.
    pub(crate) fn restart(&mut self) {
        self.proxier = proxier(&self.kernel, &self.directory, self.drain);
        self.relist();
        self.resync();
    }

    /// Applies `damage` to the ledger's file, as another program would. The process then makes a resync.
    pub(crate) fn lose_ledger(&mut self, damage: impl FnOnce(&std::path::Path)) {
        damage(&self.directory.path().join("ledger"));
        self.kernel.clear_faults();
        self.resync();
    }

    /// Applies a change to the cluster and delivers its event.
    pub(crate) fn change(&mut self, change: Change) {
        let event = self.world.apply(change);
        self.receive(event);
    }

    pub(crate) fn receive(&mut self, event: Option<Event>) {
        self.proxier.receive(event);
    }

    /// Delivers every object of the cluster.
    fn relist(&mut self) {
        let node = NodeObject {
            name: "here".into(),
            addresses: vec![[172, 18, 0, 2].into()],
            zone: None,
            region: None,
            pod_cidrs: Vec::<Cidr>::new(),
            is_leaving: false,
        };
        let events = [
            self.world.all_services(),
            self.world.all_slices(),
            Event::Node(node),
        ];
        self.proxier.receive(events);
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    /// Makes a round. If the process is killed in it, starts the next process and returns `false`.
    pub(crate) fn sync(&mut self) -> bool {
        let result = self.proxier.sync(self.now);
        self.finish(result)
    }

    /// Makes a resync. Returns the same as [`Self::sync`].
    pub(crate) fn resync(&mut self) -> bool {
        let result = self.proxier.resync(self.now);
        self.finish(result)
    }

    fn finish(&mut self, result: Result<Applied<Changes>, Failure>) -> bool {
        let applied = result.unwrap();
        assert_eq!(applied.changes.ops.len(), applied.outcomes.len());
        let was_killed = self.kernel.finish_kill();
        if was_killed {
            self.proxier = proxier(&self.kernel, &self.directory, self.drain);
            self.relist();
        }
        !was_killed
    }

    /// Clears all faults, closes all connections, relists, and makes rounds until none is due.
    pub(crate) fn settle_without_faults(&mut self) {
        self.kernel.clear_faults();
        self.kernel.close_all_connections();
        self.relist();
        self.resync();
        self.settle();
    }

    /// Makes rounds until none is due.
    pub(crate) fn settle(&mut self) {
        for _ in 0..1_000 {
            let Some(due) = self.proxier.next_due() else {
                return;
            };
            self.now = self.now.max(due);
            self.sync();
        }
        panic!("a round is due after 1000 rounds: {:?}", self.proxier);
    }

    pub(crate) fn assert_foreign_unchanged(&self) {
        assert!(self.kernel.has_foreign());
    }

    /// Asserts that the kernel has what a plan from scratch asks for, and no other object of ours.
    pub(crate) fn assert_programmed(&mut self) {
        self.assert_planned_as_from_scratch();
        let state = self.kernel.state();
        let desired = self.proxier.desired();
        let found: BTreeMap<_, _> = state
            .addresses
            .iter()
            .map(|(it, source)| (it, *source))
            .collect();
        assert_eq!(found, desired.addresses);
        assert!(state.leftovers.is_empty(), "{:?}", state.leftovers);
        let is_ready = state.carrier.is_some_and(|carrier| carrier.is_ready);
        assert_eq!(is_ready, config(self.drain).service_addresses.use_carrier());
        let ours = |key: &ipvs_netlink::ServiceKey| !Kernel::is_foreign(key);
        let found: BTreeSet<_> = state.virtual_servers.keys().filter(ours).collect();
        let wanted = self.proxier.wanted();
        assert_eq!(found, wanted.keys().collect());
        for (key, wanted) in wanted.iter() {
            let found = &state.virtual_servers[&key];
            assert!(found.destinations.are(wanted.endpoints), "{key}");
            assert_eq!(wanted.definition(), found.definition);
        }
        self.assert_owned();
        self.assert_rules();
    }

    /// Asserts that the packet rules are those of a plan from scratch, with the guards of retired
    /// virtual servers.
    fn assert_rules(&self) {
        let mut filter = Filter::new(packets());
        let mut planner = Planner::new(config(self.drain));
        let snapshot = self.proxier.snapshot();
        let (machine, capabilities) = (
            self.proxier.machine(),
            self.proxier.dataplane().capabilities(),
        );
        let changed = planner.update(snapshot, machine, capabilities, Touched::All);
        let wanted = Wanted::new(planner.desired(), self.proxier.marks());
        let marks = MarkChanges::default();
        filter.follow(wanted, &changed, &marks, snapshot.node());
        for (key, _) in self.proxier.ledger().retired().iter() {
            Frontend::of(&key)
                .into_iter()
                .for_each(|it| filter.retire(wanted, it));
        }
        let local = &self.proxier.desired().addresses;
        let retired = self.proxier.ledger().retired().addresses();
        let kept = retired.filter(|address| local.contains_key(address));
        filter.guard(wanted, [], kept);
        assert_eq!(self.kernel.rules(), Some(filter.table(wanted)));
    }

    /// As [`Self::assert_programmed`], but accepts stale virtual servers and draining destinations.
    pub(crate) fn assert_serving(&mut self) {
        self.assert_planned_as_from_scratch();
        let state = self.kernel.state();
        let desired = self.proxier.desired();
        let found: BTreeMap<_, _> = state
            .addresses
            .iter()
            .map(|(it, source)| (it, *source))
            .collect();
        assert_eq!(found, desired.addresses);
        for (key, wanted) in self.proxier.wanted().iter() {
            let found = &state.virtual_servers[&key];
            let destinations = found.destinations.iter();
            let serving = destinations.filter(|destination| {
                destination.weight > 0 || wanted.has_destination(&destination.key)
            });
            assert!(wanted.endpoints.iter().map(planned).eq(serving), "{key}");
        }
        self.assert_owned();
        self.assert_rules();
    }

    /// Asserts that the ledger names the Service port of every desired virtual server.
    fn assert_owned(&self) {
        let owned = self.proxier.ledger().owned();
        for (key, wanted) in self.proxier.wanted().iter() {
            assert_eq!(owned.owner(&key), Some(wanted.owner()), "{key}");
        }
    }

    /// Opens TCP connections to the destination that accepts them at `index`, modulo their number.
    pub(crate) fn connect(&self, index: usize) {
        let state = self.kernel.state();
        let servers = self.proxier.wanted().iter();
        // Only TCP drains.
        let tcp = servers.filter(|(_, wanted)| !wanted.plan.profile.drain.is_zero());
        let found = tcp.filter_map(|(key, _)| Some((key, state.virtual_servers.get(&key)?)));
        let accepting = found.flat_map(|(key, found)| {
            let destinations = found.destinations.iter();
            let accepting = destinations.filter(|destination| destination.weight > 0);
            accepting.map(move |destination| (key, destination.key))
        });
        let accepting: Vec<_> = accepting.collect();
        if let Some(&(key, destination)) = accepting.get(index % accepting.len().max(1)) {
            self.kernel.connect(key, destination);
        }
    }

    /// Makes the change `step`. Asserts that it costs no connection of a Service that exists.
    pub(crate) fn assert_loses_none(&mut self, step: impl FnOnce(&mut Self)) {
        let owned = self.proxier.ledger().owned().clone();
        let before = self.proxier.snapshot().clone();
        step(self);
        // The list of before must not outlive a change.
        let problems = self.proxier.problems();
        assert_eq!(*self.proxier.current_problems(), *problems);
        for (key, destination) in self.kernel.take_lost() {
            let after = self.proxier.snapshot();
            let exists = |name: &ObjectName| {
                let owner = |it: &Service| it.name == *name;
                before.services().any(owner) && after.services().any(owner)
            };
            let owner = owned.owner(&key);
            let is_deleted = owner.is_some_and(|owner| !exists(&owner.service));
            assert!(is_deleted, "{destination} of {key} of {owner:?}");
        }
    }

    /// Asserts that the plan, and the problems, are those of a plan from scratch, except for the addresses of
    /// retired virtual servers.
    pub(crate) fn assert_planned_as_from_scratch(&mut self) {
        let proxier = &mut self.proxier;
        let (from_scratch, problems) = desired(
            proxier.snapshot(),
            proxier.machine(),
            proxier.dataplane().capabilities(),
            &config(self.drain),
        );
        let mut planned = proxier.desired().clone();
        let retired: BTreeSet<IpAddr> = proxier.ledger().retired().addresses().collect();
        planned.addresses.retain(|address, _| {
            from_scratch.addresses.contains_key(address) || !retired.contains(address)
        });
        assert_eq!(planned, from_scratch);
        // Those of this node follow from its kernel.
        let current = proxier.current_problems();
        let of_input = current.iter().filter(|it| it.object != "This node");
        assert!(of_input.eq(&problems), "{current:?}, {problems:?}");
    }

    /// Asserts that neither this process nor the next one writes to the kernel.
    pub(crate) fn assert_nothing_is_written(&mut self) {
        let before = self.kernel.writes();
        self.sync();
        self.resync();
        assert_eq!(self.kernel.writes(), before);
        self.restart();
        self.sync();
        assert_eq!(self.kernel.writes(), before);
    }
}

fn proxier(kernel: &Kernel, directory: &TempDir, drain: Duration) -> Proxier<Ipvs<Kernel>> {
    let ledger_file = LedgerFile::new(directory.path().join("ledger"));
    Proxier::new(kernel.clone(), config(drain), ledger_file)
        .unwrap()
        .filtering(packets())
}
