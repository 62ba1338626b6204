//! A node: a world to be told of, a proxier, a kernel, and time.

use std::collections::BTreeSet;
use std::time::Duration;

use proxier::testing::filter::{Filter, FilterConfig};
use proxier::testing::ledger::LedgerFile;
use proxier::testing::model::{Cidr, Node as NodeObject};
use proxier::testing::plan::{NodePortAddresses, PlanConfig, Planner, ServiceAddresses, desired};
use proxier::testing::store::{Event, Touched};
use proxier::testing::sync::{Applied, Error, Proxier};
use tempfile::TempDir;

use crate::kernel::Kernel;
use crate::world::World;

/// How long removed destinations may keep their connections.
const DRAIN: Duration = Duration::from_secs(120);

pub(crate) struct Node {
    pub(crate) world: World,
    pub(crate) kernel: Kernel,
    proxier: Proxier<Kernel>,
    now: Duration,
    directory: TempDir,
}

fn config() -> PlanConfig {
    PlanConfig {
        node_name: "here".into(),
        scheduler: "rr".parse().unwrap(),
        node_port_addresses: NodePortAddresses::default(),
        service_addresses: ServiceAddresses::Routes,
        drain: DRAIN,
    }
}

impl Node {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kernel = Kernel::new(&directory.path().join("state"));
        let proxier = proxier(&kernel, &directory);
        let mut node = Self {
            world: World::default(),
            kernel,
            proxier,
            now: Duration::from_secs(1_000),
            directory,
        };
        node.tell_all();
        node
    }

    /// Another process takes over.
    pub(crate) fn restart(&mut self) {
        self.proxier = proxier(&self.kernel, &self.directory);
        self.tell_all();
        self.resync();
    }

    /// Removes or empties the ledger's file while the process runs; its next resync survives.
    pub(crate) fn lose_ledger(&mut self, is_cut: bool) {
        let file = self.directory.path().join("state");
        match is_cut {
            true => std::fs::write(&file, "").unwrap(),
            false => _ = std::fs::remove_file(&file),
        }
        self.kernel.behave();
        self.resync();
    }

    pub(crate) fn tell(&mut self, event: Option<Event>) {
        self.proxier.receive(event);
    }

    fn tell_all(&mut self) {
        let node = NodeObject {
            name: "here".into(),
            addresses: vec![[172, 18, 0, 2].into()],
            zone: None,
            region: None,
            pod_cidrs: Vec::<Cidr>::new(),
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

    /// Answers whether the process survived it; the next one is there already if not.
    pub(crate) fn sync(&mut self) -> bool {
        let result = self.proxier.sync(self.now);
        self.finish(result)
    }

    pub(crate) fn resync(&mut self) -> bool {
        let result = self.proxier.resync(self.now);
        self.finish(result)
    }

    fn finish(&mut self, result: Result<Applied, Error>) -> bool {
        let applied = result.unwrap();
        assert_eq!(applied.ops.len(), applied.outcomes.len());
        let has_died = self.kernel.stop_dying();
        if has_died {
            self.proxier = proxier(&self.kernel, &self.directory);
            self.tell_all();
        }
        !has_died
    }

    /// Lets everything come to rest: nothing fails any more, everybody hangs up, time passes.
    pub(crate) fn calm_down(&mut self) {
        self.kernel.behave();
        self.kernel.close_all_connections();
        self.tell_all();
        self.resync();
        self.come_to_rest();
    }

    /// Does what is due until nothing is.
    pub(crate) fn come_to_rest(&mut self) {
        for _ in 0..1_000 {
            let Some(due) = self.proxier.next_due() else {
                return;
            };
            self.now = self.now.max(due);
            self.sync();
        }
        panic!("never at rest: {:?}", self.proxier);
    }

    pub(crate) fn nothing_foreign_is_touched(&self) {
        assert!(self.kernel.has_foreign());
    }

    /// Everything is as planned, and there is nothing else of ours.
    pub(crate) fn kernel_is_what_it_should_be(&self) {
        self.plan_is_the_one_from_scratch();
        let state = self.kernel.state();
        let desired = self.proxier.desired();
        assert_eq!(state.addresses, desired.addresses);
        let ours = |key: &&ipvs_netlink::ServiceKey| !Kernel::is_foreign(key);
        let found: BTreeSet<_> = state.virtual_servers.keys().filter(ours).collect();
        assert_eq!(found, desired.virtual_servers.keys().collect());
        for (key, wanted) in &desired.virtual_servers {
            let found = &state.virtual_servers[key];
            assert_eq!(*wanted.destinations, *found.destinations, "{key}");
            assert_eq!(wanted.service, found.service);
        }
        self.rules_are_what_they_should_be();
    }

    /// The packet rules are those that the plan makes from scratch.
    fn rules_are_what_they_should_be(&self) {
        let mut filter = Filter::new(FilterConfig::default());
        let mut planner = Planner::new(config());
        let snapshot = self.proxier.snapshot();
        let changed = planner.update(snapshot, self.proxier.machine(), Touched::All);
        filter.follow(planner.desired(), &changed, snapshot.node());
        assert_eq!(self.kernel.rules().as_ref(), Some(filter.table()));
    }

    /// As above, but what is not wanted any more may still be on its way out.
    pub(crate) fn kernel_serves_what_it_should(&self) {
        self.plan_is_the_one_from_scratch();
        let state = self.kernel.state();
        let desired = self.proxier.desired();
        assert_eq!(state.addresses, desired.addresses);
        for (key, wanted) in &desired.virtual_servers {
            let found = &state.virtual_servers[key];
            let destinations = found.destinations.iter();
            let serving = destinations.filter(|destination| {
                destination.weight > 0 || wanted.has_destination(&destination.key)
            });
            assert!(wanted.destinations.iter().eq(serving), "{key}");
        }
        self.rules_are_what_they_should_be();
    }

    pub(crate) fn plan_is_the_one_from_scratch(&self) {
        let proxier = &self.proxier;
        let (from_scratch, problems) = desired(proxier.snapshot(), proxier.machine(), &config());
        assert_eq!(*proxier.desired(), from_scratch);
        assert_eq!(proxier.problems(), problems);
    }

    /// Neither by this process nor by the next.
    pub(crate) fn nothing_is_written(&mut self) {
        let before = self.kernel.writes();
        self.sync();
        self.resync();
        assert_eq!(self.kernel.writes(), before);
        self.restart();
        self.sync();
        assert_eq!(self.kernel.writes(), before);
    }
}

fn proxier(kernel: &Kernel, directory: &TempDir) -> Proxier<Kernel> {
    let state_file = LedgerFile::new(directory.path().join("state"));
    Proxier::new(kernel.clone(), config(), state_file)
        .unwrap()
        .filtering(FilterConfig::default())
}
